"""Transformations and traces of JAX, where it is installed."""

import pytest

jax = pytest.importorskip("jax")

from keras_recompute.seams.jax.tracing import (  # noqa: E402
    is_differentiated,
    is_mapped_here,
    is_pulled_back,
    is_tracing,
    maker,
    makers_before,
    runs_at_once,
    scan_counts,
    takes_gradient,
    varying_axes,
)

ONES = jax.numpy.ones((3, 2))


def seen_by(transform):
    """Return what is said in a function that ``transform`` calls with one row or all."""
    seen = []

    def function(x):
        seen.append(is_mapped_here([x]))
        return jax.numpy.sum(x)

    transform(function)
    return seen


@pytest.mark.parametrize(
    ("transform", "mapped"),
    [
        (lambda f: f(ONES), False),
        (lambda f: jax.vmap(f)(ONES), True),
        (lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())(ONES), True),
        (lambda f: jax.vmap(jax.grad(f))(ONES), False),
        (lambda f: jax.vmap(jax.jit(f))(ONES), False),
        (lambda f: jax.jit(jax.vmap(f))(ONES), True),
        # Mapped by the outer one alone, and a constant in an inner one.
        (lambda f: jax.vmap(lambda x: jax.vmap(lambda _: f(x))(ONES))(ONES), False),
    ],
)
def test_the_innermost_transformation(transform, mapped):
    assert seen_by(transform) == [mapped]


def test_whether_a_function_is_traced():
    seen = []
    jax.jit(lambda x: seen.append(is_tracing()) or x)(ONES)
    jax.eval_shape(lambda x: seen.append(is_tracing()) or x, ONES)
    seen.append(is_tracing())
    assert seen == [True, True, False]


@pytest.mark.parametrize(
    ("transform", "at_once"),
    [
        (lambda f: f(ONES), True),
        (lambda f: jax.grad(f)(ONES), True),
        (lambda f: jax.vmap(jax.grad(f))(ONES), True),
        (lambda f: jax.jit(f)(ONES), False),
        (lambda f: jax.grad(jax.jit(f))(ONES), False),
        (lambda f: jax.jit(jax.vmap(jax.grad(f)))(ONES), False),
        (lambda f: jax.lax.map(f, ONES), False),
    ],
)
def test_whether_operations_run_now(transform, at_once):
    seen = []

    def function(x):
        seen.append(runs_at_once())
        return jax.numpy.sum(x)

    transform(function)
    assert set(seen) == {at_once}


@pytest.mark.parametrize(
    ("transform", "taken"),
    [
        (lambda f: f(ONES), False),
        (lambda f: jax.grad(f)(ONES), True),
        (lambda f: jax.jvp(f, (ONES,), (ONES,)), True),
        (lambda f: jax.jit(jax.grad(f))(ONES), True),
        (lambda f: jax.jit(jax.grad(lambda x: jax.vmap(f)(x).sum()))(ONES), True),
        (lambda f: jax.vmap(jax.grad(f))(ONES), True),
        # Whether the whole is differentiated is not known inside.
        (lambda f: jax.grad(jax.jit(f))(ONES), False),
    ],
)
def test_of_what_a_gradient_is_taken(transform, taken):
    seen = []

    def function(x):
        seen.append((takes_gradient(), is_differentiated(x), is_differentiated(ONES)))
        return jax.numpy.sum(x)

    transform(function)
    assert set(seen) == {(taken, taken, False)}


@pytest.mark.parametrize(
    ("transform", "in_reverse"),
    [
        (lambda f: f(ONES), False),
        (lambda f: jax.grad(f)(ONES), True),
        (lambda f: jax.jit(jax.vmap(jax.grad(f)))(ONES), True),
        (lambda f: jax.jacrev(f)(ONES), True),
        (lambda f: jax.grad(jax.jit(f))(ONES), False),
        (lambda f: jax.jvp(f, (ONES,), (ONES,)), False),
        (lambda f: jax.linearize(f, ONES), False),
        (lambda f: jax.linearize(jax.grad(f), ONES), False),
        (lambda f: jax.hessian(f)(ONES), False),
        (lambda f: jax.grad(lambda x: jax.jvp(f, (x,), (ONES,))[1])(ONES), False),
    ],
)
def test_whether_gradients_are_taken_in_reverse_mode_alone(transform, in_reverse):
    seen = []

    def function(x):
        seen.append(is_pulled_back([ONES, x]))
        return jax.numpy.sum(x)

    transform(function)
    assert set(seen) == {in_reverse}


def test_what_a_scan_is_given():
    def loop(x, y, z):
        def step(carry, slices):
            return {"a": carry["a"] * x, "b": (carry["b"][0] * slices,)}, slices

        return jax.lax.scan(step, {"a": y, "b": (z,)}, ONES[:, 0])

    traced = jax.make_jaxpr(loop)(1.0, 2.0, 3.0)
    (scan,) = [each for each in traced.eqns if each.primitive.name == "scan"]
    assert scan_counts(scan.params) == (1, 2)


@pytest.mark.parametrize(
    "transform",
    [
        jax.make_jaxpr,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,))),
        lambda f: jax.jit(jax.grad(jax.grad(f))),
        lambda f: jax.jit(lambda x: jax.vmap(f)(x[None])),
    ],
    ids=["trace", "grad", "jvp", "second", "vmap"],
)
def test_what_made_a_value(transform):
    seen = []

    def function(x):
        sine = jax.numpy.sin(x)
        product = sine * x
        seen.append((maker(product), makers_before(maker(product)), maker(sine)))
        return product

    transform(function)(2.0)
    ((of_product, before, of_sine),) = seen
    assert of_product.primitive.name == "mul"
    assert of_sine.primitive.name == "sin"
    assert any(each is of_sine for each in before)
    assert all(each is not of_product for each in before)


def test_nothing_made_an_array():
    assert maker(ONES) is None


def test_axes_along_which_a_value_varies():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    seen = []

    def function(x, y):
        seen.extend([varying_axes(x), varying_axes(y)])
        return x

    specs = jax.P("rows"), jax.P()
    jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0]))(ONES, ONES)
    assert seen == [{"rows"}, set()]
    assert varying_axes(ONES) == set()
