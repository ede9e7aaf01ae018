"""Checkpoints by a memory budget: what is measured, by hand; what is chosen, against every choice;
and that it holds.
"""

import functools
from itertools import combinations

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.liveness import profile
from keras_recompute.models.plans.memory_plan import plan as plan_and_prove
from keras_recompute.planning import BudgetTooSmallError
from keras_recompute.planning.single_replay import replay_seconds, sections_peak_bytes
from tests.oracle import assert_all_close, loss_and_gradients

from ..peaks import residual_blocks

plan = functools.partial(plan_and_prove, prove=False)
LAYERS = keras.layers
BATCH, WIDE = 64, 8


def dense(count=6, width=WIDE, activation="relu"):
    x = inputs = keras.Input((width,))
    for number in range(count):
        x = LAYERS.Dense(width, activation=activation, name=f"dense_{number}")(x)
    return keras.Model(inputs, LAYERS.Dense(1, name="head")(x))


def residual():
    x = inputs = keras.Input((8, 8, 4))
    for number in range(3):
        y = LAYERS.Conv2D(4, 3, padding="same")(x)
        y = LAYERS.ReLU()(LAYERS.BatchNormalization()(y))
        y = LAYERS.Conv2D(4, 3, padding="same")(y)
        x = LAYERS.Add(name=f"block_{number}")([x, y])
    return keras.Model(inputs, LAYERS.Dense(1)(LAYERS.GlobalAveragePooling2D()(x)))


def blocks():
    inputs = keras.Input((16, 16, 3))
    x = LAYERS.Conv2D(4, 3, padding="same")(inputs)
    x = residual_blocks(x, 4)
    return keras.Model(inputs, LAYERS.Dense(1)(LAYERS.GlobalAveragePooling2D()(x)))


class Block(LAYERS.Layer):
    """Several layers in one: a gelu's product is all that a section keeps of it, where XLA keeps
    what follows from it too.
    """

    def __init__(self, width, **options):
        super().__init__(**options)
        self.norm, self.widen = LAYERS.LayerNormalization(), LAYERS.Dense(4 * width, "gelu")
        self.narrow = LAYERS.Dense(width)

    def call(self, x):
        return x + self.narrow(self.widen(self.norm(x)))


def composite():
    x = inputs = keras.Input((32,))
    for number in range(6):
        x = Block(32, name=f"block_{number}")(x)
    return keras.Model(inputs, LAYERS.Dense(1)(x))


def grouped():
    """As many groups as features, as in ConvNeXt: XLA makes the gradients of such kernels as if all
    were connected.
    """
    x = inputs = keras.Input((8, 8, 64))
    for number in range(3):
        x = LAYERS.Conv2D(
            64, 7, padding="same", groups=64, activation="tanh", name=f"conv_{number}"
        )(x)
    return keras.Model(inputs, LAYERS.Dense(1)(LAYERS.GlobalAveragePooling2D()(x)))


class Encoder(LAYERS.Layer):
    def __init__(self, width, count, **options):
        super().__init__(**options)
        self.blocks = [Block(width, name=f"block_{number}") for number in range(count)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def encoder():
    inputs = keras.Input((32,))
    x = Encoder(32, 6, name="encoder")(LAYERS.Dense(32)(inputs))
    return keras.Model(inputs, LAYERS.Dense(1)(x))


def smallest(model):
    with pytest.raises(BudgetTooSmallError) as refusal:
        plan(model, memory_budget=1, batch_size=BATCH)
    return refusal.value.smallest_budget_bytes


def test_dense_layers_by_hand():
    chain = plan(dense(3), memory_budget="1GiB", batch_size=BATCH)[1].chain
    value = BATCH * WIDE * 4
    # A product is kept, for the activation's gradient, and the activation's result, which the next
    # layer multiplies by. Of the head its results and their gradient.
    assert chain.activation_bytes == (2 * value, 2 * value, 2 * value, 2 * BATCH * 4)
    assert chain.state_bytes == (0, value, value, value)
    # Input and output of each, or as gradients; the head has one unit.
    assert chain.working_bytes == (2 * value, 2 * value, 2 * value, value + BATCH * 4)
    # Two for each multiplication and addition; bias and activation one for each element.
    hidden = 2 * BATCH * WIDE * WIDE + 2 * BATCH * WIDE
    assert chain.forward_seconds == (hidden, hidden, hidden, 2 * BATCH * WIDE + BATCH)
    # Weights; their gradients are alive for one section at a time.
    weights = 3 * (WIDE * WIDE + WIDE) + WIDE + 1
    assert chain.fixed_bytes == 4 * weights


def test_what_the_optimiser_keeps_counts_once_the_model_is_compiled():
    model = dense(3)
    before = plan(model, memory_budget="1GiB", batch_size=BATCH)[1].chain.fixed_bytes
    model.compile("adam", "mse")
    after = plan(model, memory_budget="1GiB", batch_size=BATCH)[1].chain.fixed_bytes
    # Two moments for each weight, a count of steps in eight bytes, a learning rate in four.
    assert after - before == 2 * 4 * model.count_params() + 8 + 4


def test_blocks_are_cut_anywhere_and_keep_products_only():
    chain = plan(residual(), memory_budget="1GiB", batch_size=BATCH)[1].chain
    value = BATCH * 8 * 8 * 4 * 4
    # Five layers to a block, the pooling, the head. Inside a block the way around it is kept too.
    assert len(chain) == 3 * 5 + 2
    assert chain.state_bytes[5:11] == (value, *[2 * value] * 4, value)
    # What a convolution makes is kept, and all else repeated; nothing reads the last one's result.
    convolutions = [chain.activation_bytes[5 * block + at] for block in range(3) for at in (0, 3)]
    # XLA also keeps the byte by which it decides when a kernel is read again.
    assert convolutions == [value + 1] * 5 + [1]
    # Means and variances of four channels; what the pooling makes, which the head multiplies by;
    # results and their gradient.
    assert (
        sum(chain.activation_bytes)
        == sum(convolutions) + 3 * 2 * 4 * 4 + BATCH * 4 * 4 + 2 * BATCH * 4
    )


@pytest.mark.parametrize("make", [dense, residual])
def test_a_larger_budget_is_never_slower_and_is_kept_to(make):
    model = make()
    least, most = (
        smallest(model),
        plan(model, memory_budget="1GiB", batch_size=BATCH)[1].plain_peak_bytes,
    )
    budgets = np.linspace(least, most, 25).astype(int).tolist()
    plans = [plan(model, memory_budget=budget, batch_size=BATCH)[1] for budget in budgets]
    assert [p.budget_bytes for p in plans] == budgets
    assert all(p.predicted_peak_bytes <= p.budget_bytes for p in plans)
    for less, more in zip(plans, plans[1:]):
        assert more.time_ratio <= less.time_ratio
        if more.time_ratio == less.time_ratio:
            assert more.predicted_peak_bytes == less.predicted_peak_bytes
    assert plans[-1].checkpoints == ()
    assert plans[-1].time_ratio == 1.0
    assert plans[0].predicted_peak_bytes == least
    assert len({p.checkpoints for p in plans}) >= 3


def test_no_other_checkpoints_are_cheaper():
    model = dense(6)
    chain = plan(model, memory_budget="1GiB", batch_size=BATCH)[1].chain
    every = [
        (0, *rest)
        for count in range(len(chain))
        for rest in combinations(range(1, len(chain)), count)
    ]
    gradients = [4 * (WIDE + 1) * WIDE] * 6 + [4 * (WIDE + 1)]
    costs = [
        (
            chain.plain_seconds + replay_seconds(chain, sections),
            sections_peak_bytes(chain, sections, gradients),
        )
        for sections in every
        if len(sections) > 1
    ]
    plain_bytes = plan(model, memory_budget="1GiB", batch_size=BATCH)[1].plain_peak_bytes
    costs.append((chain.plain_seconds, plain_bytes))
    for budget in range(smallest(model), plain_bytes + 1, 997):
        found = plan(model, memory_budget=budget, batch_size=BATCH)[1]
        best = min((seconds, peak) for seconds, peak in costs if peak <= budget)
        assert (
            found.time_ratio * chain.plain_seconds,
            found.predicted_peak_bytes,
        ) == pytest.approx(best)
    assert min(peak for _, peak in costs) == smallest(model)


def test_the_model_computes_the_same_and_has_the_checkpoints_of_the_plan():
    model = residual()
    planned, found = plan(model, memory_budget=smallest(model), batch_size=BATCH)
    assert planned.plan.checkpoints == found.checkpoints
    assert planned.plan.recomputes
    x = np.random.RandomState(0).randn(BATCH, 8, 8, 4).astype("float32")
    results = []
    for candidate in (model, planned):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(candidate(tf.constant(x), training=True) ** 2)
        results.append(tape.gradient(loss, [v.value for v in model.trainable_variables]))
    assert_all_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_a_plan_is_proven_by_compiling_few():
    model = dense(12, width=64)
    model.compile("sgd", "mse")
    batch = tf.TensorSpec((1024, 64)), tf.TensorSpec((1024, 1))
    compiled = []

    def needed_bytes(candidate):
        candidate.compile("sgd", "mse", jit_compile=True)
        program = profile(candidate, *batch)
        compiled.append(program.always_live_bytes + program.allocated_temporary_bytes)
        return compiled[-1]

    planned, found = plan(model, memory_budget="4MiB", batch_size=1024, needed_bytes=needed_bytes)
    assert found.checkpoints
    assert len(compiled) <= 1 + 5  # the plain model first
    assert needed_bytes(planned) <= 4 * 2**20


def test_the_proof_is_what_counts_and_the_cheapest_proven_is_taken():
    model = dense(12)
    asked = []

    def needed_bytes(candidate):
        count = len(candidate.plan.checkpoints)
        asked.append(count)
        return 2000 - 100 * count

    for budget, expected in ((2000, 0), (1900, 1), (1850, 2), (1500, 6)):
        asked.clear()
        _, found = plan(model, memory_budget=budget, batch_size=BATCH, needed_bytes=needed_bytes)
        assert len(found.checkpoints) == expected
        assert len(asked) <= 1 + 5  # the plain model first
    with pytest.raises(BudgetTooSmallError) as refusal:
        plan(model, memory_budget=700, batch_size=BATCH, needed_bytes=needed_bytes)
    assert refusal.value.smallest_budget_bytes == 2000 - 100 * 12  # a checkpoint at every place


@pytest.mark.long
def test_what_a_plan_promises_was_compiled():
    """A refusal names a budget that holds, and that budget is taken; the training step of ``fit``
    needs no more.
    """
    model = blocks()
    model.compile("sgd", "mse")
    with pytest.raises(BudgetTooSmallError) as refusal:
        plan_and_prove(model, memory_budget="100KiB", batch_size=16)
    budget = refusal.value.smallest_budget_bytes
    planned, found = plan_and_prove(model, memory_budget=budget, batch_size=16)
    assert found.checkpoints
    assert found.compiled_peak_bytes <= budget
    planned.compile("sgd", "mse", jit_compile=True)
    assert (
        profile(planned, tf.TensorSpec((16, 16, 16, 3)), tf.TensorSpec((16, 1))).peak_bytes
        <= 1.02 * budget
    )


def convolved(activation):
    """Six equal convolutions, each of which keeps a copy of its input in another layout."""
    x = inputs = keras.Input((16, 16, 16))
    for _ in range(6):
        x = LAYERS.Conv2D(16, 3, padding="same", activation=activation)(x)
    return keras.Model(inputs, LAYERS.Dense(1)(LAYERS.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (lambda: dense(12, width=64), 1024),
        pytest.param(grouped, 8, marks=pytest.mark.long(every_case=True)),
        # With both an input and its copy counted: 1.26 and 1.46 of what was compiled.
        (lambda: convolved("gelu"), 16),
        pytest.param(lambda: convolved("softplus"), 16, marks=pytest.mark.long(every_case=True)),
    ],
    ids=["dense", "grouped", "gelu", "softplus"],
)
def test_the_prediction_is_near_what_is_compiled(make, batch):
    model = make()
    model.compile("sgd", "mse", jit_compile=True)
    found = plan(model, memory_budget="1GiB", batch_size=batch)[1]
    program = profile(
        model, *(tf.TensorSpec((batch, *t.shape[1:])) for t in (model.inputs[0], model.outputs[0]))
    )
    assert found.plain_peak_bytes == pytest.approx(program.peak_bytes, rel=0.15)


@pytest.mark.parametrize(
    ("make", "batch", "budget"),
    [
        (lambda: dense(12, width=64, activation="tanh"), 1024, "3MiB"),
        # A prediction of 3 MiB, as if sections kept what a plain model does, refused it.
        pytest.param(composite, 1024, "2MiB", marks=pytest.mark.long),
        pytest.param(blocks, 64, "3MiB", marks=pytest.mark.long),
    ],
)
def test_the_prediction_is_near_what_is_compiled_with_checkpoints(make, batch, budget):
    model = make()
    model.compile("sgd", "mse")
    planned, found = plan(model, memory_budget=budget, batch_size=batch)
    assert found.checkpoints
    planned.compile("sgd", "mse", jit_compile=True)
    program = profile(
        planned,
        *(tf.TensorSpec((batch, *t.shape[1:])) for t in (model.inputs[0], model.outputs[0])),
    )
    assert found.predicted_peak_bytes == pytest.approx(program.peak_bytes, rel=0.2)


@pytest.mark.long
def test_blocks_inside_a_layer_are_recomputed_where_no_checkpoint_is_enough():
    """Most of the activations are in one layer, six blocks of 1024 rows of 32 and 128: no cut
    between layers halves them.
    """
    model = encoder()
    with pytest.raises(BudgetTooSmallError) as refusal:
        plan_and_prove(model, memory_budget=1, batch_size=1024)
    least = refusal.value.smallest_budget_bytes
    assert "layers=" not in str(refusal.value)
    planned, found = plan_and_prove(model, memory_budget=least, batch_size=1024)
    assert found.layers == tuple(f"encoder/block_{number}" for number in range(6))
    assert (found.checkpoints, found.compiled_peak_bytes) == ((), least)
    assert least < 0.5 * found.plain_peak_bytes
    assert str(found).startswith("6 layers recomputed one by one: ")
    assert sorted(planned.recomputed_layers) == sorted(found.layers)
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)

    ours, plain = (loss_and_gradients(each, x, mode="eager") for each in (planned, model))
    assert_all_close(ours, plain, rtol=1e-5, atol=1e-5)
    # A budget that checkpoints between layers meet is met by them.
    assert plan_and_prove(model, memory_budget="1GiB", batch_size=1024)[1].layers == ()


def test_a_prediction_alone_names_the_layer_that_holds_most():
    with pytest.raises(
        BudgetTooSmallError,
        match=r"inside 'encoder', a Encoder, .* checkpointed\(model, layers=...\)",
    ):
        plan(encoder(), memory_budget=1, batch_size=1024)


def test_equal_layers_are_traced_once(monkeypatch):
    traced, call = [], LAYERS.Dense.call

    @functools.wraps(call)
    def counted(layer, *args, **kwargs):
        traced.append(layer.name)
        return call(layer, *args, **kwargs)

    monkeypatch.setattr(LAYERS.Dense, "call", counted)
    # 11: what one test measures is known to the next.
    models = (
        dense(40, width=11),
        dense(20, width=11),
    )
    traced.clear()
    for model in models:
        plan(model, memory_budget="1GiB", batch_size=BATCH)
    assert traced == ["dense_0", "head"]


@pytest.mark.long
def test_costs_can_be_timed_and_recurrent_layers_measured():
    x = inputs = keras.Input((16, 4), batch_size=2)
    for _ in range(2):
        x = kr.LSTM(8, return_sequences=True)(x)
    chain = plan(keras.Model(inputs, x), memory_budget="1GiB", timed=True)[1].chain
    assert all(0 < seconds < 10 for seconds in chain.forward_seconds)
    # Four gates and the cell state of each step; the outputs are those of the model, or the state
    # behind.
    assert chain.activation_bytes[0] >= 2 * 16 * (4 * 8 + 8) * 4
