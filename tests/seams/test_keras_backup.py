"""``AtomicBackup``, which does what Keras's BackupAndRestore does where a process may be killed at
any moment.
"""

import keras
import numpy as np
import pytest

from keras_recompute.seams.keras.backup import AtomicBackup

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
EPOCHS = 4


class Interrupted(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    """Ends the training at an update."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, *_, **__):
        if int(self.model.optimizer.iterations.numpy()) == self.at:
            raise Interrupted


def fit(folder, *callbacks, writes=True, **options):
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(8, "tanh"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", jit_compile=False)
    backup = AtomicBackup(keras.callbacks.BackupAndRestore(folder, **options), writes=writes)
    history = model.fit(
        X,
        X[:, :1],
        batch_size=4,
        shuffle=False,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[backup, *callbacks],
    ).history
    return history["loss"], model.get_weights()


@pytest.mark.long
def test_what_was_interrupted_goes_on_to_the_same_numbers_dropout_and_all(tmp_path):
    whole, weights = fit(tmp_path / "undisturbed")
    with pytest.raises(Interrupted):
        fit(tmp_path / "backup", Interrupt(5))  # two updates are an epoch: in the third
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["2"]
    (tmp_path / "backup" / "unfinished").mkdir()  # another one was begun
    losses, resumed = fit(tmp_path / "backup")
    assert losses == whole[2:]
    assert all(np.array_equal(a, b) for a, b in zip(weights, resumed))
    assert not (tmp_path / "backup").exists()


@pytest.mark.long
def test_a_process_that_does_not_write_reads(tmp_path):
    whole, _ = fit(tmp_path / "nothing", writes=False)
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(Interrupted):
        fit(tmp_path / "backup", Interrupt(3))
    before = sorted(tmp_path.rglob("*"))
    assert fit(tmp_path / "backup", writes=False)[0] == whole[1:]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
def test_the_backups_stay_where_that_is_asked_for(tmp_path):
    fit(tmp_path / "backup", delete_checkpoint=False)
    assert [path.name for path in (tmp_path / "backup").iterdir()] == [str(EPOCHS)]
