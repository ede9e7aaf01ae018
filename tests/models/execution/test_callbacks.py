"""Keras's own callbacks do to a ``Model``, and to a model on the stand-in, what they do to
Keras's.
"""

from __future__ import annotations

import contextlib
import csv

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import RecomputeError
from tests.oracle import assert_all_close

KINDS = ("checkpointed", pytest.param("stand-in", marks=pytest.mark.long))
RANDOM = np.random.default_rng(0)
X, Y = (
    RANDOM.normal(size=(32, 8)).astype(np.float32),
    RANDOM.normal(size=(32, 1)).astype(np.float32),
)
OPTIONS = {"batch_size": 8, "shuffle": False, "verbose": 0}


@contextlib.contextmanager
def made(kind, rate=0.1):
    """Give a compiled model of a kind, from the same weights each time, inside the scope that it
    needs.
    """
    keras.utils.set_random_seed(1)
    scope = contextlib.nullcontext()
    if kind == "stand-in":
        kr.ipu.install()
        from tensorflow.python import ipu

        ipu.config.reset_ipu_configuration()
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = 1
        config.configure_ipu_system()
        scope = ipu.ipu_strategy.IPUStrategy().scope()
    with contextlib.ExitStack() as leaving, scope:
        if kind == "stand-in":
            leaving.callback(kr.ipu.uninstall)
        inputs = keras.Input((8,), batch_size=8)
        x = keras.layers.Dense(16, "tanh", name="first")(inputs)
        if kind == "checkpointed":
            x = kr.RecomputationCheckpoint()(x)
        model = (kr.Model if kind == "checkpointed" else keras.Model)(
            inputs, keras.layers.Dense(1, name="last")(x)
        )
        model.compile(keras.optimizers.Adam(rate), "mse", jit_compile=True)
        yield model


def losses(history):
    return np.array(history.history["loss"])


@pytest.fixture(scope="module")
def expected():
    """The losses of six epochs of the plain model, and its weights."""
    with made("plain") as model:
        return losses(model.fit(X, Y, epochs=6, **OPTIONS)), model.get_weights()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_backup_and_restore_goes_on_where_training_broke_off(kind, expected, tmp_path):
    class BreakOff(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):  # noqa: ARG002
            if epoch == 4:
                raise RuntimeError("broken off")

    backup = lambda: keras.callbacks.BackupAndRestore(tmp_path / "backup")  # noqa: E731
    with made(kind) as model, pytest.raises(RuntimeError, match="broken off"):
        model.fit(X, Y, epochs=6, callbacks=[backup(), BreakOff()], **OPTIONS)
    with made(kind) as model:
        found = losses(model.fit(X, Y, epochs=6, callbacks=[backup()], **OPTIONS))
        np.testing.assert_allclose(found, expected[0][4:], rtol=1e-5)
        assert_all_close(model.get_weights(), expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["best.keras", pytest.param("best.weights.h5", marks=pytest.mark.long)]
)
def test_model_checkpoint_keeps_the_best_epoch(kind, name, expected, tmp_path):
    path = tmp_path / name
    kept = keras.callbacks.ModelCheckpoint(
        path, monitor="loss", save_best_only=True, save_weights_only=name.endswith(".weights.h5")
    )
    with made(kind) as model:
        model.fit(X, Y, epochs=6, callbacks=[kept], **OPTIONS)
        best = int(np.argmin(expected[0]))
        assert best == 5, "the losses of this network fall from epoch to epoch"
        found = model.evaluate(X, Y, batch_size=8, verbose=0)
    with made(kind) as model:
        if name.endswith(".keras"):
            other = keras.models.load_model(path)
        else:
            other = model
            other.optimizer.build(other.trainable_variables)  # Keras refuses the file otherwise
            other.load_weights(path)
        assert other.evaluate(X, Y, batch_size=8, verbose=0) == pytest.approx(found, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_early_stopping_stops_and_gives_the_best_weights_back(kind):
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, restore_best_weights=True)
    with made(kind, rate=1.0) as model:  # so large a step that the loss rises
        found = losses(model.fit(X, Y, epochs=50, callbacks=[stop], **OPTIONS))
        assert len(found) < 50
        assert stop.best == pytest.approx(found.min())
    with made("plain", rate=1.0) as plain:
        again = keras.callbacks.EarlyStopping(monitor="loss", patience=1, restore_best_weights=True)
        theirs = losses(plain.fit(X, Y, epochs=50, callbacks=[again], **OPTIONS))
    np.testing.assert_allclose(found, theirs, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_sets_the_rate_and_the_log_has_every_epoch(kind, tmp_path):
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(tmp_path / "board", histogram_freq=1),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=100),
        keras.callbacks.TerminateOnNaN(),
    ]
    with made(kind) as model:
        found = losses(model.fit(X, Y, epochs=3, callbacks=callbacks, **OPTIONS))
        assert float(model.optimizer.learning_rate) == pytest.approx(0.1 / 4)
    with made("plain") as plain:
        by_hand = [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
        ]
        theirs = losses(plain.fit(X, Y, epochs=3, callbacks=by_hand, **OPTIONS))
    np.testing.assert_allclose(found, theirs, rtol=1e-5)
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_allclose([float(row["loss"]) for row in rows], found, rtol=1e-6)
    assert list((tmp_path / "board" / "train").iterdir())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_learning_rate_schedule_of_the_optimiser_is_followed(kind):
    def trained(kind):
        with made(kind) as model:
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
            model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse", jit_compile=True)
            return losses(model.fit(X, Y, epochs=3, **OPTIONS))

    np.testing.assert_allclose(trained(kind), trained("plain"), rtol=1e-5)


@pytest.mark.parametrize(
    "kind", ["checkpointed", pytest.param("stand-in", marks=pytest.mark.long(every_case=True))]
)
def test_a_callback_that_raises_ends_training_with_its_own_error(kind):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002
            raise RecomputeError("on purpose")

    with made(kind) as model, pytest.raises(RecomputeError, match="on purpose"):
        model.fit(X, Y, epochs=1, callbacks=[Fails()], **OPTIONS)
