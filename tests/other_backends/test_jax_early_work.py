"""What a checkpointed call reads of older values waits for the call before."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax_temporaries import temporaries

import keras_recompute as kr
from keras_recompute.backends import CPU, GPU, TPU, tracing_for
from keras_recompute.keras_backend.jax_early_work import early_arguments
from tests.oracles.conditioned_blocks import conditioned

BLOCKS, ROWS, WIDTH, WIDE = 12, 512, 16, 256
WIDE_ARRAY = ROWS * WIDE * 4 / 2**20  # MiB


class BlocksAsFunctions:
    """The training step of a model of blocks, in which ``call`` calls each of them."""

    def __init__(self, plain, names, call):
        self.trainable_variables = plain.trainable_variables
        self.non_trainable_variables = plain.non_trainable_variables
        self._blocks, self._call = list(map(plain.get_layer, names)), call

    def stateless_call(self, weights, state, inputs, training):
        assert training
        condition, x = inputs
        with keras.StatelessScope(state_mapping=list(zip(self.trainable_variables, weights))):
            for block in self._blocks:
                # What is between two blocks follows from the first.
                x = self._call(block, x + 1.0, condition)
        return x, state


def in_a_closure(block, x, condition):
    return kr.checkpoint(lambda x: block([x, condition]))(x)


def nested(block, x, condition):
    inner = kr.checkpoint(block)
    return kr.checkpoint(lambda *values: inner(values))(x, condition)


def with_a_policy(block, x, condition):
    return kr.checkpoint(block, policy=kr.policies.save_names("none"))([x, condition])


@pytest.mark.filterwarnings("ignore:policy .* names 'none'")
@pytest.mark.parametrize(
    "recomputed",
    [
        lambda plain, names: kr.checkpointed(plain, at=names[:-1]),
        lambda plain, _: kr.checkpointed(plain, layers="block_*"),
        lambda *model: BlocksAsFunctions(*model, lambda block, *xs: kr.checkpoint(block)(xs)),
        lambda *model: BlocksAsFunctions(*model, in_a_closure),
        lambda *model: BlocksAsFunctions(*model, nested),
        lambda *model: BlocksAsFunctions(*model, with_a_policy),
    ],
    ids=["sections", "layers", "functions", "closures", "nested", "policy"],
)
def test_no_call_reads_older_values_while_the_one_before_runs(recomputed):
    array = np.zeros((ROWS, WIDTH), "float32")
    needed = temporaries(recomputed(*conditioned(BLOCKS, WIDTH, WIDE)), [array, array], array)
    # Of one block the wide array, beside the narrow one, and their gradient; of all blocks the
    # narrow array; kernels. With the wide arrays of all blocks at once it would be 13.
    assert needed <= (3 + BLOCKS * WIDTH / WIDE + 0.5) * WIDE_ARRAY


def drawn(x, kernel, key):
    h = jax.nn.gelu(x @ kernel, approximate=False)
    return x + jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h, 0.0)


def layers_with_dropout():
    x = inputs = keras.Input((WIDTH,))
    for number in range(BLOCKS):
        h = keras.layers.Dropout(0.1)(keras.layers.Dense(WIDTH, "gelu")(x))
        x = keras.layers.Add(name=f"block_{number}")([x, h])
    return keras.Model(inputs, x)


def test_no_mask_of_a_layer_is_drawn_while_a_section_before_runs():
    array = np.zeros((64 * ROWS, WIDTH), "float32")
    names = [f"block_{number}" for number in range(BLOCKS - 1)]
    model = kr.checkpointed(layers_with_dropout(), at=names)
    # The results of 12 blocks, and 5 arrays of a block at work. With masks of all it would be 27.
    assert temporaries(model, array, array) <= (BLOCKS + 5.5) * array.nbytes / 2**20


def test_no_mask_of_a_function_is_drawn_while_a_call_before_runs():
    def loss(kernels, x, key):
        for number, kernel in enumerate(kernels):
            x = kr.checkpoint(drawn)(x, kernel, jax.random.fold_in(key, number))
        return jnp.sum(x**2)

    x = jnp.zeros((64 * ROWS, WIDTH))
    kernels = [jnp.ones((WIDTH, WIDTH))] * BLOCKS
    lowered = jax.jit(jax.grad(loss)).lower(kernels, x, jax.random.key(0))
    needed = lowered.compile().memory_analysis().temp_size_in_bytes
    # The results of 12 blocks, and 7 arrays of a block at work. With masks of all it would be 27.
    assert needed <= (BLOCKS + 7.5) * x.nbytes


EIGHT = jnp.ones((4, 8))


def uniform(old):
    return jax.random.uniform(jax.random.wrap_key_data(old[0, :2].astype("uint32"))).sum()


def doubled_in_a_loop(x):
    return jax.lax.fori_loop(0, 3, lambda _, x: x + x, x)


@pytest.mark.parametrize(
    ("function", "early"),
    [
        (lambda x, old, w: x + (old @ w).sum(), [2]),  # the smaller of two
        (lambda x, old, _: x + (old @ EIGHT).sum(), [3]),  # the array that it captures
        (lambda x, old, _: x + jax.jit(lambda y: (y.T @ y).sum())(old[:2]), [1]),
        (lambda x, old, w: x + jax.checkpoint(lambda y: (y @ w).sum())(old), [2]),
        (lambda x, old, _: x + doubled_in_a_loop(old).sum(), [1]),
        (lambda x, _, w: x + (jnp.ones((9, 4)) @ w).sum(), [2]),
        (lambda x, old, _: x + uniform(old), [1]),
        (lambda x, old, _: x + (old @ EIGHT[:, :1] @ EIGHT[:1]).sum(), [3]),  # grows again
        (lambda x, old, _: x + old.T @ jnp.ones(9), []),  # smaller than what it reads
        (lambda x, old, _: (x + old.sum(0)) @ EIGHT, []),
        (lambda x, old, _: x + (old * 2.0).sum(), []),  # arithmetic is repeated where it is read
        (lambda x, old, w: jax.jit(lambda x, y: (x @ w, y))(x, old)[0], []),
        (lambda x, old, w: jax.jit(lambda x, y: (x @ w, y))(x, old)[1] @ w, [2]),
    ],
)
def test_early_work_is_a_product_or_a_draw_of_older_values_alone(function, early):
    closed = jax.make_jaxpr(function)(jnp.ones(4), jnp.ones((9, 4)), jnp.ones((4, 2)))
    assert early_arguments(closed.jaxpr, {0}, {1, 2, 3}) == early


def test_an_argument_that_cannot_wait_leaves_it_to_another():
    closed = jax.make_jaxpr(lambda x, old, w: x + (old @ w).sum())(1.0, EIGHT, jnp.ones((8, 9)))
    assert early_arguments(closed.jaxpr, {0}, {1}) == [1]
    assert early_arguments(closed.jaxpr, {0}, ()) == []


def block(x, condition, kernels, key):
    """Return what follows from ``x``, and what follows from the other arguments alone."""
    wide, narrow = kernels
    other = jnp.tanh((condition * jax.random.bernoulli(key, 0.8, condition.shape)) @ wide)
    return jnp.tanh(jnp.concatenate([x, other], -1) @ narrow), other.sum()


def loss_by(block):
    def loss(kernels, x, condition, key):
        total = 0.0
        for pair in kernels:
            x, other = block(x + 1.0, condition, pair, key)
            total += 0.01 * other
        return jnp.sum(x**2) + total

    return loss


def on_rows(loss):
    """Return ``loss`` of batches whose rows are spread over all devices."""
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, all_of_them = jax.P("rows"), jax.P()

    def of_a_part(*arguments):
        return jax.lax.psum(loss(*arguments), "rows")

    specs = all_of_them, rows, rows, all_of_them
    return jax.shard_map(of_a_part, mesh=mesh, in_specs=specs, out_specs=all_of_them)


def of_each_row(loss):
    def total(kernels, x, condition, key):
        return jax.vmap(loss, in_axes=(None, 0, 0, None))(kernels, x, condition, key).sum()

    return total


def second(loss):
    def total(*arguments):
        return sum(jnp.sum(each**2) for each in jax.tree.leaves(jax.grad(loss)(*arguments)))

    return total


@pytest.mark.parametrize(
    "step",
    [jax.value_and_grad, lambda loss: jax.jit(jax.value_and_grad(loss))]
    + [lambda loss: jax.value_and_grad(jax.jit(loss))]
    + [
        lambda loss, change=change: jax.jit(jax.value_and_grad(change(loss)))
        for change in (on_rows, of_each_row, second)
    ],
    ids=["eager", "jit-of-grad", "grad-of-jit", "shard_map", "vmap", "second-order"],
)
@pytest.mark.parametrize("backend", [CPU, GPU])  # runs on the CPU; written as for the other
def test_values_and_gradients_stay_those_of_the_plain_function(step, backend):
    rng = np.random.default_rng(3)

    def drawn(*shape):
        return jnp.asarray(0.3 * rng.normal(size=shape), "float32")

    kernels = [(drawn(4, 16), drawn(20, 4)) for _ in range(3)]
    arguments = kernels, drawn(8, 4), drawn(8, 4), jax.random.key(0)
    wanted = step(loss_by(block))(*arguments)
    with tracing_for(backend):
        made = step(loss_by(kr.checkpoint(block)))(*arguments)
    for ours, plain in zip(jax.tree.leaves(made), jax.tree.leaves(wanted)):
        limit = 2e-6 * max(1.0, float(jnp.abs(plain).max()))
        np.testing.assert_allclose(ours, plain, rtol=0, atol=limit)


@pytest.mark.parametrize(("backend", "barriers"), [(GPU, 2), (TPU, 0), (CPU, 0)])
def test_on_a_gpu_early_work_stands_behind_a_barrier(backend, barriers):
    kernels = [(jnp.ones((4, 16)), jnp.ones((20, 4)))] * 3
    rows = jnp.ones((8, 4))
    with tracing_for(backend):
        traced = jax.make_jaxpr(loss_by(kr.checkpoint(block)))(
            kernels, rows, rows, jax.random.key(0)
        )
    # One for each call but the first.
    assert str(traced).count("optimization_barrier") == barriers
