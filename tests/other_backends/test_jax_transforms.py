"""JAX's transformations around and inside ``kr.checkpoint``, beside the plain function."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning

policies = kr.policies
X = np.linspace(0.1, 1, 32, dtype="float32").reshape(8, 4)
W = np.linspace(-1, 1, 16, dtype="float32").reshape(4, 4)
POLICIES = {
    "nothing": policies.save_nothing,
    "matmuls": policies.save_matmuls,
    "offload": policies.save_and_offload_names(offload=("hidden",)),
}
# The second and third go the same way through the fence.
EACH_POLICY = ["nothing", "matmuls", pytest.param("offload", marks=pytest.mark.long)]


def block(x, w):
    hidden = kr.checkpoint_name(x @ w, "hidden")
    return jnp.tanh(jnp.sin(hidden) @ w) + x


def total(function):
    return lambda *args: jnp.sum(function(*args) ** 2)


@jax.custom_vjp
def tripled(x):
    """A sine with a gradient of its own, by which replays are seen to use it."""
    return jnp.sin(x)


tripled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (3 * g * jnp.cos(x),))


def scanned(f, w):
    return jax.lax.scan(lambda h, w: (f(h, w), jnp.sum(h)), X, w)[0]


def mapped_pairs(f, w):
    return jax.vmap(jax.vmap(f, (0, None)), (None, 0))(X, w)


THREE = np.stack([W, 2 * W, 3 * W])
# What is done with a function of x and w that is checkpointed.
TRANSFORMS = {
    "value_and_grad": lambda f: jax.value_and_grad(total(f), (0, 1))(X, W),
    "jit": lambda f: jax.jit(jax.grad(total(f), (0, 1)))(X, W),
    "jit inside": lambda f: jax.grad(total(jax.jit(f)), 1)(X, W),
    "grad of vmap": lambda f: jax.grad(lambda w: total(jax.vmap(f, (0, None)))(X, w))(W),
    "grad of two vmaps": lambda f: jax.grad(lambda w: jnp.sum(mapped_pairs(f, w) ** 2))(THREE),
    "vmap of jit": lambda f: jax.grad(lambda w: total(jax.vmap(jax.jit(f), (0, None)))(X, w))(W),
    "vmap of grad": lambda f: jax.vmap(jax.grad(total(f), 1), (0, None))(X, W),
    "vmap over weights": lambda f: jax.vmap(jax.grad(total(f), 1), (None, 0))(X, THREE),
    "vmap over other axes": lambda f: jax.vmap(f, (1, None), 1)(X[:, :, None] * X[0], W),
    "scan": lambda f: jax.grad(lambda w: jnp.sum(scanned(f, w)))(THREE),
    "map": lambda f: jax.grad(lambda w: jnp.sum(jax.lax.map(lambda r: f(r, w), X) ** 2))(W),
    "loop": lambda f: jax.grad(lambda x: jnp.sum(jax.lax.fori_loop(0, 3, lambda _, h: f(h, W), x)))(
        X
    ),
    "branch": lambda f: jax.grad(
        lambda x: jnp.sum(jax.lax.cond(x[0, 0] > 0, lambda x: f(x, W), jnp.sin, x))
    )(X),
    "jax.checkpoint outside": lambda f: jax.grad(total(jax.checkpoint(f)), 1)(X, W),
    "second derivatives": lambda f: jax.hessian(lambda v: total(f)(v[None], W))(X[0]),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(lambda v: total(f)(v[None], W)))(X[0]),
    "second derivatives of vmap": lambda f: jax.grad(
        lambda w: jnp.sum(jax.vmap(jax.grad(total(f)), (0, None))(X, w) ** 2)
    )(W),
    "named_call": lambda f: jax.grad(total(jax.named_call(f, name="block")), 1)(X, W),
    "vjp": lambda f: jax.vjp(f, X, W)[1](X),
    "partial": lambda f: jax.grad(lambda w: jnp.sum(functools.partial(f, X)(w)))(W),
    "half precision": lambda f: jax.grad(
        lambda w: jnp.sum(f(X.astype("bfloat16"), w).astype("float32"))
    )(W.astype("bfloat16")),
}
REVERSE_OVER_REVERSE = ("reverse over reverse", "second derivatives of vmap")


def assert_equal(found, wanted):
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    for ours, plain in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            np.asarray(ours, "complex128"), np.asarray(plain, "complex128"), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("policy", EACH_POLICY)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformations_around(name, policy):
    if policy == "offload" and name in REVERSE_OVER_REVERSE:
        pytest.skip("jax.checkpoint refuses the gradient of a value on the host too")
    transform = TRANSFORMS[name]
    assert_equal(transform(kr.checkpoint(block, policy=POLICIES[policy])), transform(block))


# Functions of X that have inside what the plain one has.
INSIDE = {
    "itself": lambda c: c(lambda x: c(block)(c(block)(x, W), W)),
    "jax.checkpoint": lambda c: c(lambda x: jax.checkpoint(block)(x, W)),
    "custom_vjp": lambda c: c(lambda x: tripled(tripled(x))),
    "scan": lambda c: c(lambda x: scanned(block, THREE * x[0, 0])),
    "vmap": lambda c: c(lambda x: jax.vmap(block, (0, None))(x, W)),
    "a key": lambda c: (
        lambda x: c(lambda x, k: x * jax.random.normal(k, x.shape))(x, jax.random.key(0))
    ),
    "complex numbers": lambda c: lambda x: jnp.abs(c(lambda x: jnp.exp(1j * x))(x) + x),
    "integers": lambda c: (
        lambda x: c(lambda x, i, n: x[i] * 2 if n is None else x)(x, jnp.array([1, 2]), None)
    ),
    "an integer array": lambda c: lambda x: c(lambda x, i: x * i[:, None])(x, np.arange(8)),
    "static arguments": lambda c: (
        lambda x: c(lambda x, n, *, flag, mode: block(x, W) * n if flag and mode == "a" else x)(
            x, 3, flag=True, mode="a"
        )
    ),
}


@pytest.mark.filterwarnings("ignore:policy .* names 'hidden'")  # of functions without marks
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", INSIDE)
def test_what_is_inside(name, policy):
    ours = INSIDE[name](lambda f: kr.checkpoint(f, policy=POLICIES[policy]))
    plain = INSIDE[name](lambda f: f)
    assert_equal(
        jax.jit(jax.value_and_grad(total(ours)))(X), jax.jit(jax.value_and_grad(total(plain)))(X)
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    x: jax.Array
    w: jax.Array


def test_pytrees_in_and_out():
    def function(pair, more):
        return Pair(block(pair.x, pair.w), pair.w), {"more": (more["y"] * 2, None, "text")}

    def gradient(function):
        def loss(pair, more):
            new, rest = function(pair, more)
            assert rest["more"][1:] == (None, "text")
            return jnp.sum(new.x**2) + jnp.sum(new.w * rest["more"][0])

        return jax.jit(jax.grad(loss, (0, 1)))(Pair(X, W), {"y": W})

    assert_equal(gradient(kr.checkpoint(function)), gradient(function))


def temporaries(function, *args):
    return jax.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes


BLOCKS = 8
WIDE = np.ones((64, 64), "float32")
MEMORY = {
    "grad": lambda net: (jax.grad(net), WIDE),
    "vmap of grad": lambda net: (jax.vmap(jax.grad(net)), WIDE[None].repeat(4, 0)),
    "grad of vmap": lambda net: (
        jax.grad(lambda w: jnp.sum(jax.vmap(lambda s: net(w, s))(jnp.arange(8.0)))),
        WIDE,
    ),
    "map": lambda net: (
        jax.grad(lambda w: jnp.sum(jax.lax.map(lambda s: net(w, s), jnp.arange(2.0)))),
        WIDE,
    ),
    "scan": lambda net: (
        jax.grad(lambda w: jax.lax.scan(lambda c, _: (net(w, c), None), 1.0, length=3)[0]),
        WIDE,
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_the_fence_holds_in_transformations(name):
    def step(x, w):
        return jnp.tanh(jnp.sin(jnp.cos(jnp.sin(x @ w)))) + x

    def net_of(function):
        def net(w, scale=1.0):
            x = jnp.full((256, 64), 0.1) * scale
            for _ in range(BLOCKS):
                x = function(x, w)
            return jnp.mean(x**2)

        return net

    ours = temporaries(*MEMORY[name](net_of(kr.checkpoint(step))))
    plain = temporaries(*MEMORY[name](net_of(step)))
    assert ours < 0.6 * plain


def test_an_axis_of_vmap():
    def centred(x, w):
        made = block(x, w)
        return made - jax.lax.pmean(made, "rows")

    def gradient(function):
        rows = jax.vmap(function, (0, None), axis_name="rows")
        return jax.grad(lambda w: jnp.sum(jnp.sin(rows(X, w))))(W)

    for policy in POLICIES.values():
        assert_equal(gradient(kr.checkpoint(centred, policy=policy)), gradient(centred))
    # The axis is not known where the function is traced for itself.
    with pytest.warns(RecomputeWarning, match="^'centred' uses the axis 'rows' of jax.vmap"):
        found = gradient(jax.jit(kr.checkpoint(centred)))
    assert_equal(found, gradient(centred))


def test_forward_mode_is_jax_s_error():
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(kr.checkpoint(jnp.sin), (X,), (X,))
