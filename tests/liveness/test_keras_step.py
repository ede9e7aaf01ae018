"""The training step of a Keras model: profiled without training it, and read from the fit that ran
it.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from keras_recompute.errors import InvalidArgumentError, RecomputeWarning  # noqa: E402
from keras_recompute.liveness import capture_fit, profile, reconcile  # noqa: E402
from keras_recompute.liveness.keras_step import compiled_functions  # noqa: E402
from keras_recompute.liveness.reconcile import UNEXPLAINED  # noqa: E402
from keras_recompute.seams.tensorflow.concrete_functions import traces  # noqa: E402

BATCH, FEATURES, UNITS, F32 = 16, 32, 64, 4
WEIGHTS = FEATURES * UNITS + UNITS + UNITS + 1


def dense(jit_compile=True, optimizer="sgd", **options):
    """Return a compiled model of two layers with ``WEIGHTS`` weights, and a batch for it."""
    inputs = keras.Input((FEATURES,))
    x = keras.layers.Dense(UNITS, activation="tanh", name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(x), name="net")
    model.compile(optimizer, "mse", jit_compile=jit_compile, **options)
    chance = np.random.default_rng(0)
    return model, chance.normal(size=(BATCH, FEATURES)), chance.normal(size=(BATCH, 1))


def figures(program):
    """Return what does not depend on what the compiler calls things."""
    sizes = sorted((b.size_bytes, b.first_step, b.last_step, b.category) for b in program.buffers)
    return (
        program.peak_bytes,
        program.always_live_bytes,
        program.input_feed_bytes,
        program.timeline,
        sizes,
    )


def test_a_model_is_profiled_without_being_trained():
    model, x, y = dense(optimizer="adam")
    before = [w.copy() for w in model.get_weights()]
    program = profile(model, x, y)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights()))
    assert int(model.optimizer.iterations) == 0
    assert model.train_function is None
    # In Keras's type, though the arrays are of doubles
    assert program.input_feed_bytes == BATCH * (FEATURES + 1) * F32
    weights = sum(
        b.size_bytes
        for b in program.buffers
        if b.layer in ("hidden", "head") and b.category == "weight"
    )
    assert weights == WEIGHTS * F32
    moments = sum(
        b.size_bytes
        for b in program.buffers
        if b.category == "optimiser" and b.lifetime == "always-live"
    )
    # Adam's two moments, its learning rate, its count of steps
    assert moments == 2 * WEIGHTS * F32 + 4 + 8
    assert {"forward", "backward", "update"} <= {step.phase for step in program.steps}
    assert UNEXPLAINED not in [row.explanation for row in reconcile(program)]
    model.fit(x, y, batch_size=BATCH, verbose=0)  # it trains as ever
    assert int(model.optimizer.iterations) == 1


@pytest.mark.long
def test_specs_stand_for_data():
    model, x, y = dense()
    specs = tf.TensorSpec((BATCH, FEATURES)), tf.TensorSpec((BATCH, 1))
    assert (
        figures(profile(model, *specs))
        == figures(profile(model, x, y))
        == figures(profile(model, x=x, y=y))
    )


def test_inputs_by_name_and_sample_weights():
    inputs = {"a": keras.Input((8,), name="a"), "b": keras.Input((4,), name="b")}
    model = keras.Model(
        inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(list(inputs.values())))
    )
    model.compile("sgd", "mse")
    data = {"a": np.ones((BATCH, 8)), "b": np.ones((BATCH, 4))}
    program = profile(model, data, np.ones((BATCH, 1)), sample_weight=np.ones((BATCH,)))
    assert program.input_feed_bytes == BATCH * (8 + 4 + 1 + 1) * F32
    assert (
        profile(model, data, np.ones((BATCH, 1)), input_feed=["y"]).input_feed_bytes == BATCH * F32
    )


def test_what_cannot_be_profiled_is_refused():
    model, x, y = dense()
    with pytest.raises(InvalidArgumentError, match="not 0 values"):
        profile(model)
    with pytest.raises(InvalidArgumentError, match="not 4 values"):
        profile(model, x, y, y, y)
    with pytest.raises(InvalidArgumentError, match=r"got \['z'\]"):
        profile(model, x, z=y)
    with pytest.raises(InvalidArgumentError, match=r"call model\.compile"):
        profile(keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)]), x, y)


class Adversary(keras.Model):
    """Has no ``call``, a ``compile`` of its own, two optimizers, and layers without weights yet."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(UNITS, "tanh"), keras.layers.Dense(1)

    def compile(self, first, second, **options):
        super().compile(**options)
        self.optimizers = [keras.optimizers.get(first), keras.optimizers.get(second)]

    def train_step(self, data):
        for layer, optimizer in zip((self.first, self.second), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.second(self.first(data["x"])) ** 2)
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def test_a_train_step_of_its_own_is_profiled_as_fit_runs_it():
    _, x, _ = dense()
    profiled, fitted, capture = Adversary(), Adversary(), capture_fit()
    for model in (profiled, fitted):
        with pytest.raises(InvalidArgumentError, match=r"not compiled .* model\.compile\(\.\.\.\)"):
            profile(model, {"x": x})
        model.compile("sgd", "adam", jit_compile=True)
    program = profile(profiled, {"x": x})
    assert len(profiled.trainable_variables) == 4
    assert [int(optimizer.iterations) for optimizer in profiled.optimizers] == [0, 0]
    fitted.fit({"x": x.astype(np.float32)}, batch_size=BATCH, verbose=0, callbacks=[capture])
    assert figures(capture.program)[:4] == figures(program)[:4]
    profiled.fit({"x": x}, batch_size=BATCH, verbose=0)


def test_the_callback_reads_the_program_that_fit_ran():
    model, x, y = dense()
    capture = capture_fit(capacity_bytes=2**20)
    model.fit(
        np.tile(x, (3, 1)),
        np.tile(y, (3, 1)),
        batch_size=BATCH,
        epochs=2,
        verbose=0,
        callbacks=[capture],
    )
    assert int(model.optimizer.iterations) == 6
    assert figures(capture.program) == figures(profile(model, x, y))
    assert capture.program.capacity_bytes == 2**20
    assert capture.compiled.program(capacity_bytes=2**20) == capture.program


def test_what_fit_traced_is_read_and_nothing_is_traced_for_it():
    counts = []
    for callbacks in ([], [capture_fit()]):
        model, x, y = dense()
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=callbacks)
        (function,) = compiled_functions(model.train_function)
        counts.append(len(traces(function)))
    assert counts[0] == counts[1] > 0


@pytest.mark.long
def test_a_shorter_last_batch():
    model, x, y = dense()
    data = np.tile(x, (2, 1))[:-3], np.tile(y, (2, 1))[:-3]
    unknown, known = capture_fit(), capture_fit(batch_size=BATCH)
    with pytest.warns(RecomputeWarning, match="size of its batches is not fixed"):
        model.fit(*data, batch_size=BATCH, verbose=0, callbacks=[unknown])
    assert unknown.program is None
    model.fit(*data, batch_size=BATCH, verbose=0, callbacks=[known])
    fixed = profile(model, x, y)
    # a mean over batches of any size divides by a number that is not known beforehand
    assert known.program.input_feed_bytes == fixed.input_feed_bytes
    assert known.program.peak_bytes == pytest.approx(fixed.peak_bytes, rel=0.05)


def test_training_is_the_same_with_the_callback():
    losses = []
    for callbacks in ([], [capture_fit()]):
        keras.utils.set_random_seed(1)
        model, x, y = dense()
        losses.append(
            model.fit(
                x, y, batch_size=4, epochs=3, verbose=0, shuffle=False, callbacks=callbacks
            ).history["loss"]
        )
    assert losses[0] == losses[1]


@pytest.mark.long
def test_several_steps_per_execution_are_read_as_one_step():
    model, x, y = dense(steps_per_execution=2)
    capture = capture_fit()
    model.fit(
        np.tile(x, (4, 1)), np.tile(y, (4, 1)), batch_size=BATCH, verbose=0, callbacks=[capture]
    )
    assert figures(capture.program) == figures(profile(model, x, y))


@pytest.mark.parametrize(
    "options", [{"jit_compile": False}, {"run_eagerly": True, "jit_compile": False}]
)
def test_a_fit_without_xla_is_said(options):
    model, x, y = dense(**options)
    capture = capture_fit()
    with pytest.warns(RecomputeWarning, match="jit_compile=True"):
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[capture])
    assert capture.program is None
    assert capture.compiled is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profile(model, x, y).peak_bytes > 0  # what XLA would make of it


# the flag that is named matters to sections that cannot be outlined; these can
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:XLA has already compiled something")
def test_a_recomputing_model_needs_less():
    from keras_recompute import Model, RecomputationCheckpoint

    def build(cls):
        inputs = x = keras.Input((256, 64), batch_size=8)
        for n in range(4):
            for _ in range(3):
                x = keras.layers.Dense(64, activation="tanh")(x)
            x = RecomputationCheckpoint(name=f"checkpoint_{n}")(x)
        model = cls(inputs, keras.layers.Dense(1)(x))
        model.compile("sgd", "mse", jit_compile=True)
        return model

    batch = tf.TensorSpec((8, 256, 64)), tf.TensorSpec((8, 256, 1))
    plain, saved = (profile(build(cls), *batch) for cls in (keras.Model, Model))
    assert saved.not_always_live_peak_bytes < 0.8 * plain.not_always_live_peak_bytes
    assert "recompute" in {step.phase for step in saved.steps}
