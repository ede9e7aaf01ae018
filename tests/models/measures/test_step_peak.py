"""What a plan is proved by: the training step that ``fit`` runs, compiled or measured, and
predictions of it.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, XlaUnsupportedError
from keras_recompute.liveness import profile
from keras_recompute.models.measures.step_peak import StepPeaks
from keras_recompute.models.measures.trained_step import trained_step
from keras_recompute.models.plans.memory_plan import plan as plan_and_prove
from keras_recompute.planning import BudgetTooSmallError

from ..plans.test_memory_plan import BATCH, LAYERS, dense, encoder

plan = functools.partial(plan_and_prove, prove=False)


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.long)])
def test_what_is_compiled_is_the_step_that_fit_runs(optimizer):
    """With the model's own loss and optimizer; what was compiled for another one does not count."""
    model = dense(3, width=32)
    x, y = np.zeros((BATCH, 32), np.float32), np.zeros((BATCH, 1), np.float32)
    for each in ["rmsprop", optimizer]:
        model.compile(each, "huber", metrics=["mae"], jit_compile=True)
        found = plan_and_prove(model, memory_budget="1GiB", sample=(x, y))[1]
    fitted = profile(model, x, y)
    assert found.compiled_peak_bytes == pytest.approx(fitted.peak_bytes, abs=256)
    kind = {"sgd": "SGD", "adam": "Adam"}[optimizer]
    assert found.method == f"compiled: a step with its {kind}, and its loss"


def test_what_stands_in_for_optimizer_and_loss_is_said():
    found = plan_and_prove(dense(3), memory_budget="1GiB", batch_size=BATCH)[1]
    expected = "a step with SGD, as it is not compiled, and the squares of its outputs as the loss"
    assert found.method == f"compiled: {expected}"
    assert str(found).endswith(f"({found.method})")


def test_the_plain_model_is_asked_first_and_no_refusal_names_more():
    """Recomputation that only costs memory: what a user's measure says, and what a plan makes of
    it.
    """
    model = dense(12)

    def dearer(candidate):
        return 1000 + len(candidate.plan.checkpoints)

    _, found = plan(model, memory_budget=1000, batch_size=BATCH, needed_bytes=dearer)
    assert (found.checkpoints, found.compiled_peak_bytes, found.plain_peak_bytes) == (
        (),
        1000,
        1000,
    )
    assert str(found).startswith("no checkpoints, the plain model fits: ")
    with pytest.raises(
        BudgetTooSmallError,
        match=r"too small for the plain model, and no plan with recomputation needs less",
    ) as refusal:
        plan(model, memory_budget=999, batch_size=BATCH, needed_bytes=dearer)
    assert refusal.value.smallest_budget_bytes == 1000


def zoomed():
    x = inputs = keras.Input((16, 16, 3))
    x = LAYERS.RandomZoom(0.2, name="zoom")(x)
    for _ in range(6):
        x = LAYERS.Conv2D(16, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, LAYERS.Dense(1)(LAYERS.GlobalAveragePooling2D()(x)))


def planned_zoomed():
    """Return what a plan found out by running the step, and whether weights are as before."""
    model = zoomed()
    before = [v.numpy() for v in model.variables]
    _, found = plan_and_prove(model, memory_budget="1GiB", batch_size=BATCH, timed=True)
    after = [v.numpy() for v in model.variables]
    are_equal = all(map(np.array_equal, before, after))
    figures = found.compiled_peak_bytes, found.jit_seconds, found.measured_peak_bytes
    return figures, str(found), are_equal


@pytest.mark.long
def test_a_model_that_xla_cannot_compile_is_measured():
    """Its convolutions keep 6 arrays of 64 x 16 x 16 x 16 floats, 1 MiB each.

    How much they need while they run depends on the processor: 20 MiB on one without AVX-512. It is
    measured in a process of its own, without memory that earlier tests have left.
    """
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawned) as alone:
        figures, said, are_equal = alone.submit(planned_zoomed).result()
    compiled_bytes, jit_seconds, measured_bytes = figures
    assert compiled_bytes is None
    assert jit_seconds is None
    assert 6 * 2**20 < measured_bytes < 32 * 2**20
    assert (
        "in the process without jit, because XLA has no ImageProjectiveTransformV3 of 'zoom'"
        in said
    )
    assert are_equal


class OwnStep(keras.Model):
    """Trains the model inside as a variational autoencoder does, by a step of its own."""

    def __init__(self, net, **options):
        super().__init__(**options)
        self.net = net

    def call(self, x):
        return self.net(x)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.net(x)))
        gradients = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.net.trainable_variables))
        return {"loss": loss}


@pytest.mark.long
def test_a_model_with_a_step_of_its_own_is_planned_by_kinds_of_layers():
    """Six blocks that keep several arrays each of 1024 rows of 128: recomputed, one block's are
    there at a time.
    """
    sample = np.zeros((1024, 32), np.float32)
    model = OwnStep(encoder())
    with pytest.raises(
        InvalidArgumentError, match=r"a call or train_step of its own, .* Give sample="
    ):
        plan_and_prove(model, memory_budget="1GiB", batch_size=1024)
    model.compile("sgd", jit_compile=True)
    model(sample[:1])
    plain = plan_and_prove(model, memory_budget="1GiB", sample=sample)[1]
    assert (plain.layers, plain.chain) == ((), None)
    by_size = plan_and_prove(model, memory_budget="1GiB", sample=sample[:1], batch_size=1024)[1]
    assert by_size.compiled_peak_bytes == plain.compiled_peak_bytes
    planned, found = plan_and_prove(
        model, memory_budget=plain.compiled_peak_bytes // 2, sample=sample
    )
    assert "compiled: its own training step" in str(found)
    assert len(found.layers) == 6
    planned.compile("sgd", jit_compile=True)
    assert profile(planned, sample).peak_bytes == pytest.approx(found.compiled_peak_bytes, rel=0.05)
    assert profile(model, sample).peak_bytes == pytest.approx(plain.compiled_peak_bytes, rel=0.05)
    with pytest.raises(BudgetTooSmallError) as refusal:
        plan_and_prove(model, memory_budget=1000, sample=sample)
    assert refusal.value.smallest_budget_bytes <= found.compiled_peak_bytes


def convolutions(activation, count=8):
    x = inputs = keras.Input((16, 16, 3))
    for _ in range(count):
        x = LAYERS.Conv2D(8, 3, padding="same", activation=activation)(x)
    return keras.Model(inputs, LAYERS.Dense(1)(LAYERS.GlobalAveragePooling2D()(x)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("activation", "kept"),
    # Of a softplus the product and the result. Of a gelu the product, its exponential, its error
    # function, and the result, which is made of two of them.
    [
        ("relu", 1),
        ("swish", 3),
        ("softplus", 2),
        ("gelu", 4),
    ],
)
def test_the_prediction_of_a_convolution_with_its_activation(activation, kept):
    """Read from the layer's own program at the turn: earlier what shares storage with a result was
    taken for nothing kept.
    """
    model = convolutions(activation)
    model.compile("sgd", "mse", jit_compile=True)
    found = plan(model, memory_budget="1GiB", batch_size=BATCH)[1]
    value = 4 * BATCH * 16 * 16 * 8
    assert found.plain_peak_bytes >= 7 * kept * value
    program = profile(model, tf.TensorSpec((BATCH, 16, 16, 3)), tf.TensorSpec((BATCH, 1)))
    # Never much too small. Up to a half too large: it takes no account of copies that wait for the
    # gradient that reads them.
    assert 0.85 <= found.plain_peak_bytes / program.peak_bytes <= 1.5
    planned, found = plan(model, memory_budget=int(0.7 * found.plain_peak_bytes), batch_size=BATCH)
    assert found.checkpoints
    planned.compile("sgd", "mse", jit_compile=True)
    program = profile(planned, tf.TensorSpec((BATCH, 16, 16, 3)), tf.TensorSpec((BATCH, 1)))
    assert 0.85 <= found.predicted_peak_bytes / program.peak_bytes <= 1.5


def test_what_xla_lacks_is_one_line_that_names_the_layer():
    model = zoomed()
    model.compile("sgd", "mse")
    says = r"^XLA cannot compile ImageProjectiveTransformV3 of layer 'zoom': .*jit_compile=False.*$"
    with pytest.raises(XlaUnsupportedError, match=says) as refusal:
        profile(model, tf.TensorSpec((2, 16, 16, 3)), tf.TensorSpec((2, 1)))
    assert (refusal.value.operation, refusal.value.layer) == ("ImageProjectiveTransformV3", "zoom")


@pytest.mark.long
def test_a_step_without_jit_is_measured_in_the_process():
    """Twelve gelus on 16384 rows of 64, 4 MiB an array; recomputed, those of three are there at a
    time.
    """
    deep = x = keras.Input((64,))
    for _ in range(12):
        x = LAYERS.Dense(64, activation="gelu")(x)
    model = keras.Model(deep, x)
    model.compile("adam", "mse", jit_compile=False)
    before = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    spec = tf.TensorSpec((16384, 64))
    peaks = StepPeaks(trained_step(model, spec, (spec,)), is_compiled=False)
    plain, ours = peaks.of(model), peaks.of(kr.checkpointed(model, every=3))
    assert plain > 24 * 4 * 2**20
    assert ours < 0.7 * plain
    assert peaks.method == "measured in the process without jit: a step with its Adam, and its loss"
    now = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    for after, then in zip(now, before, strict=False):  # the moments were made by measuring
        np.testing.assert_array_equal(after, then)


def test_more_without_jit_than_the_plain_model_is_said_with_both_figures(monkeypatch):
    model = dense(6)
    model.compile("sgd", "mse", jit_compile=False)
    sample = np.zeros((BATCH, 8)), np.zeros((BATCH, 1))
    # The second pair is within what a measurement tells.
    figures = iter([52 * 2**20, 39 * 2**20, 40 * 2**20, 39 * 2**20])
    monkeypatch.setattr(StepPeaks, "_measured", lambda *_: next(figures))
    says = (
        r"takes 52.0 MiB with them and 39.0 MiB without, .* "
        r"\(measured in the process without jit: "
    )
    with pytest.warns(kr.errors.RecomputeWarning, match=says):
        kr.checkpointed(model, every=2, sample=sample)
    kr.checkpointed(model, every=2, sample=sample)  # a warning would be an error
