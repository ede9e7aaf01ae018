"""Policies of ``kr.checkpoint`` on JAX, and transformations around it."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import keras_recompute as kr

BLOCKS, WIDTH, BATCH = 8, 64, 128
LAYER = BATCH * WIDTH * 4  # bytes of one activation
RNG = np.random.default_rng(0)
X = RNG.normal(size=(BATCH, WIDTH)).astype("float32")
WEIGHTS = [RNG.normal(size=(WIDTH, WIDTH)).astype("float32") / 8 for _ in range(2 * BLOCKS)]
policies = kr.policies


def block(x, first, second):
    hidden = kr.checkpoint_name(x @ first, "hidden")
    return x + jnp.tanh(jnp.sin(hidden) @ second)


def loss_of(block_of):
    def loss(weights, x):
        for number in range(0, 2 * BLOCKS, 2):
            x = block_of(x, *weights[number : number + 2])
        return jnp.mean(x**2)

    return loss


def compiled(policy):
    gradient = jax.jit(jax.grad(loss_of(kr.checkpoint(block, policy=policy))))
    return gradient.lower(WEIGHTS, X).compile()


# In a step: a block has 2 products in the forward pass and 4 in back-propagation (the first has 3,
# since nobody asks for the gradient of x), and those that run again.
PRODUCTS = {
    "nothing": (policies.save_nothing, 8 * BLOCKS - 1),
    "matmuls": (policies.save_matmuls, 6 * BLOCKS - 1),
    "names": (policies.save_names("hidden"), 7 * BLOCKS - 1),
    "other names": (policies.save_all_but_names("hidden"), 8 * BLOCKS - 1),
    "either": (
        policies.either(policies.save_names("hidden"), policies.save_matmuls),
        6 * BLOCKS - 1,
    ),
    "JAX's own": (jax.checkpoint_policies.dots_saveable, 6 * BLOCKS - 1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_policy_decides_which_products_run_again(name):
    policy, products = PRODUCTS[name]
    wanted = jax.grad(loss_of(block))(WEIGHTS, X)
    found = jax.grad(loss_of(kr.checkpoint(block, policy=policy)))(WEIGHTS, X)
    for ours, plain in zip(found, wanted):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-7)
    assert compiled(policy).as_text().count(" dot(") == products


def test_what_is_kept_grows_with_what_is_saved():
    def temporaries(policy):
        return compiled(policy).memory_analysis().temp_size_in_bytes / LAYER

    nothing, names = temporaries(policies.save_nothing), temporaries(policies.save_names("hidden"))
    plain = jax.jit(jax.grad(loss_of(block))).lower(WEIGHTS, X).compile()
    whole = plain.memory_analysis().temp_size_in_bytes / LAYER
    # A block's input is kept each time; with the name an activation more for each block.
    assert nothing < names - 0.8 * (BLOCKS - 1)
    assert names < whole


def test_offloaded_values_wait_on_the_host():
    policy = policies.save_and_offload_names(offload=("hidden",))
    wanted = jax.grad(loss_of(block))(WEIGHTS, X)
    function = kr.checkpoint(block, policy=policy)
    found = jax.jit(jax.grad(loss_of(function)))(WEIGHTS, X)
    for ours, plain in zip(found, wanted):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-7)
    # A CPU has no other memory, and its compiled program does not say so.
    assert "MemorySpace.Host" in str(jax.make_jaxpr(jax.grad(loss_of(function)))(WEIGHTS, X))


def test_transformations_around_it():
    small = [w[:4, :4] for w in WEIGHTS[:2]]
    x = X[:3, :4]

    def plain(x, policy=None):
        function = block if policy is None else kr.checkpoint(block, policy=policy)
        return jnp.sum(jnp.sin(function(x, *small)))

    for policy in (policies.save_nothing, policies.save_matmuls):
        ours = lambda x, policy=policy: plain(x, policy)  # noqa: E731
        pairs = [
            (jax.jacrev(jax.grad(ours))(x), jax.jacrev(jax.grad(plain))(x)),
            (jax.vmap(jax.grad(ours))(x[:, None]), jax.vmap(jax.grad(plain))(x[:, None])),
            (jax.jit(jax.value_and_grad(ours))(x)[0], plain(x)),
        ]

        def scanned(function):
            def step(carry, _):
                return carry + 0.1 * jax.grad(function)(carry), None

            return jax.lax.scan(step, x, None, length=3)[0]

        pairs.append((scanned(ours), scanned(plain)))
        for found, wanted in pairs:
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_integers_and_values_from_around_the_function():
    @jax.jit
    def gradients(x, ids):
        table = jnp.sin(x)

        def function(ids, scale):
            return jnp.take(table, ids, axis=0) * scale, ids + 1

        def loss(scale, checkpoint):
            made, following = checkpoint(function)(ids, scale)
            return jnp.sum(made * following[:, None])

        plain = jax.grad(lambda s: loss(s, lambda f: f))(2.0)
        return plain, *(
            jax.grad(lambda s, p=p: loss(s, lambda f: kr.checkpoint(f, policy=p)))(2.0)
            for p in (policies.save_nothing, policies.save_matmuls)
        )

    plain, *ours = gradients(X[:4, :4], jnp.array([0, 2, 3]))
    np.testing.assert_allclose(ours, [plain] * 2, rtol=1e-6)


def test_unseeded_random_numbers_are_keras_s_error():
    function = kr.checkpoint(lambda x: x + keras.random.normal((3,)))
    with pytest.raises(ValueError, match="JAX RNG"):
        function(jnp.ones(3))
