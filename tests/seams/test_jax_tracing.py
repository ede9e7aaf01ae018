"""Transformations and traces of JAX, where it is installed."""

import pytest

jax = pytest.importorskip("jax")

from keras_recompute.seams.jax.tracing import (  # noqa: E402
    is_mapped_here,
    is_tracing,
    scan_counts,
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


def test_what_a_scan_is_given():
    def loop(x, y, z):
        def step(carry, slices):
            return {"a": carry["a"] * x, "b": (carry["b"][0] * slices,)}, slices

        return jax.lax.scan(step, {"a": y, "b": (z,)}, ONES[:, 0])

    traced = jax.make_jaxpr(loop)(1.0, 2.0, 3.0)
    (scan,) = [each for each in traced.eqns if each.primitive.name == "scan"]
    assert scan_counts(scan.params) == (1, 2)
