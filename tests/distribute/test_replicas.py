"""``fit``, ``evaluate`` and ``predict`` on several replicas, held against the same replicas run one
after the other.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError

from .networks import one_after_another
from .running import LAUNCHER, results, run


def trained(kind, replicas, jit, names):
    """Return what came of each network; all workers must say the same."""
    launched = [*LAUNCHER, "--workers", str(replicas), "-m"] if kind == "workers" else ()
    found = results(
        run("tests.distribute.train", kind, replicas, int(jit), *names, launcher=launched)
    )
    said = found.pop(0)
    assert all(other == said for other in found.values())
    assert len(found) == (replicas - 1 if kind == "workers" else 0)
    return {each.pop("case"): each for each in said}


def check(found, replicas, jit):
    for name, result in found.items():
        assert result["losses"] == pytest.approx(
            one_after_another(name, replicas, jit=jit), rel=1e-5
        ), name
        assert result["evaluated"] == pytest.approx(result["validation"], rel=1e-5), name
        # On each replica inference goes by the statistics of that replica
        if name != "convolutions":
            assert result["mae"] == pytest.approx(result["evaluated"], rel=1e-5), name


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("perceptron", marks=pytest.mark.exhaustive),
        "perceptron, a batch of 1",  # behind three full ones
    ],
)
def test_two_workers_train_to_the_losses_of_one_process(name):
    found = trained("workers", 2, True, [name])
    check(found, 2, True)
    alone = one_after_another(name, 1, jit=True)
    assert found[name]["losses"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "replicas", "jit", "names"),
    [
        pytest.param(
            "workers", 2, True, ("recurrent", "convolutions"), marks=pytest.mark.exhaustive
        ),
        ("workers", 2, False, ("transformer",)),
        # The last worker has none of it.
        pytest.param(
            "workers", 4, True, ("perceptron, a batch of 8",), marks=pytest.mark.exhaustive
        ),
        ("mirrored", 2, True, ("convolutions",)),
    ],
)
def test_networks_train_as_their_replicas_one_after_the_other(kind, replicas, jit, names):
    found = trained(kind, replicas, jit, names)
    check(found, replicas, jit)
    if jit and kind == "workers":
        alone = results(run("tests.distribute.train", "alone", replicas, 1, *names))[0]
        assert {each["case"]: each["temporaries"] for each in alone} == {
            n: r["temporaries"] for n, r in found.items()
        }


@pytest.mark.long
def test_every_sample_is_trained_on_once_however_the_data_is_shared(tmp_path):
    """Of three files one worker gets two; while it goes on the other one has no sample, and its
    statistics stay as they are.
    """
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(
            "".join(f"{n}\n" for n in range(8 * number, 8 * number + 8))
        )
    found = results(
        run("tests.distribute.data", tmp_path, launcher=[*LAUNCHER, "--workers", "2", "-m"])
    )
    assert found[0] == found[1]
    by_file, by_element, refused = found[0]
    for each in (by_file, by_element):
        assert each["mean"] == pytest.approx(11.5)  # of 0 to 23
        assert each["loss"] < 1000  # a number
    assert refused["said"].startswith(
        "the workers have different numbers of batches, in their order: 6, 2."
    )


def test_what_was_compiled_outside_of_the_scope_is_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        plain = keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(2) for _ in range(4))])
    model = kr.checkpointed(plain, every=2)
    assert model.distribute_strategy is strategy  # though it was made outside
    x = np.zeros((4, 2))
    for optimizer, scope in (
        (keras.optimizers.SGD(), strategy.scope),
        ("sgd", contextlib.nullcontext),
    ):
        with scope():
            model.compile(optimizer, "mse")
        with pytest.raises(
            InvalidArgumentError, match="from outside the scope of the MirroredStrategy"
        ):
            model.fit(x, x, verbose=0)
    with strategy.scope():
        model.compile("sgd", "mse")
    assert model.fit(x, x, verbose=0).history["loss"] == [0]


@pytest.mark.long
def test_weights_without_a_gradient_and_sparse_ones_are_those_of_one_process():
    """Of five samples and one, the last is for one replica alone: the other has no gradients and no
    slices.
    """
    [[found]] = results(run("tests.distribute.heads")).values()
    assert found["difference"] <= 1e-6


@pytest.mark.long
def test_sections_wait_for_updates_on_all_replicas_without_jit():
    """Of 8 dense layers in sections of 2, each waits for the kernels behind it on both devices."""
    names = ("sgd", "loss scale")
    [[*trained, found]] = results(run("tests.distribute.ordered_updates", *names)).values()
    assert [each["optimizer"] for each in trained] == list(names)
    for each in trained:
        assert each["difference"] == 0.0, each
        assert each["difference_eager"] <= 2e-6, each
    # Nothing for the head, whose kernel is a vector, and two kernels for each section, each with a
    # copy on both devices.
    waits = [0, 0, 4, 8, 12]
    assert found["waits_for"] == {"0": waits, "1": waits}
    # One section of both replicas: two kernels of 1 MiB, their gradients, and the sums. All of the
    # network would be 8 on each, and as many sums.
    assert found["peak_bytes"] < 16 * 2**20
