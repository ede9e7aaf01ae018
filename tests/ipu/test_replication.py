"""Replicas train, evaluate and predict as a loop by hand that keeps each replica's state."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.oracle import assert_all_close

from .replica_models import BATCH, ByHand, configure, data, replicated

pytestmark = pytest.mark.usefixtures("graphcore_names")

UPDATES = 20


def mean_of_predictions(_: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(predicted, -1)


def four_equal_rows() -> np.ndarray:
    """Return four equal rows of numbers that are all different.

    The mean over another dropout mask then differs by far more than 1e-4. With ones, two masks of
    equal size could not be distinguished.
    """
    return np.tile(np.random.default_rng(0).normal(scale=100, size=200).astype("float32"), (4, 1))


long = pytest.mark.long


@pytest.mark.parametrize(
    ("replicas", "schedule", "accumulation", "method"),
    [
        (2, None, 2, "sum"),
        pytest.param(2, "Sequential", 2, "sum", marks=long),
        pytest.param(4, None, 1, "sum", marks=long),
        pytest.param(4, "Sequential", 1, "mean", marks=long),
        pytest.param(2, "Interleaved", 2, "sum", marks=long),
        pytest.param(4, "Interleaved", 2, "sum", marks=long),
        pytest.param(2, "Grouped", 4, "sum", marks=long),
        pytest.param(4, "Grouped", 4, "sum", marks=long),
        pytest.param(2, "Grouped", 4, "running_mean", marks=long),
        pytest.param(2, None, 3, "running_mean", marks=long),
        pytest.param(2, None, 3, "mean", marks=long),
    ],
)
def test_twenty_updates_are_those_of_a_loop_by_hand(replicas, schedule, accumulation, method):
    """In executions of two updates, all figures agree within 1e-5.

    They are losses, gradient norms, weights, replica 0's statistics and metrics.
    """
    x, y = data(UPDATES * accumulation * replicas)
    model = replicated(
        replicas, schedule, steps=2 * accumulation, accumulation=accumulation, method=method
    )
    model.set_replication_options("MEAN")
    before = model.get_weights()
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history

    by_hand = ByHand(model, before, replicas)
    by_hand.train(
        x, y, keras.optimizers.SGD(0.02, momentum=0.5), accumulation=accumulation, method=method
    )
    assert len(by_hand.per_update) == UPDATES
    np.testing.assert_allclose(model.training_record.losses, by_hand.per_update, rtol=1e-5)
    np.testing.assert_allclose(model.training_record.gradient_norms, by_hand.norms, rtol=1e-5)
    for ours, theirs, start in zip(
        model.get_weights(), by_hand.plain.get_weights(), before, strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert np.abs(theirs - start).max() > 1e-3, "a weight was not trained"
    np.testing.assert_allclose(history["loss"], [np.mean(by_hand.losses)], rtol=1e-5)
    np.testing.assert_allclose(history["mae"], [np.mean(by_hand.errors)], rtol=1e-5)
    assert np.abs(by_hand.statistics[0][0] - by_hand.statistics[1][0]).max() > 1e-3, (
        "the replicas saw the same"
    )


@pytest.mark.long
@pytest.mark.parametrize("schedule", [None, "Sequential"])
@pytest.mark.parametrize("method", ["NONE", "LIST", "SUM", "MEAN"])
def test_metrics_of_replicas_are_put_together(method, schedule):
    """Of a loss and a metric per replica, in ``evaluate`` and in ``fit`` alike."""
    x, y = data(12)
    model = replicated(3, schedule, steps=2, accumulation=2)
    model.set_replication_options(getattr(tf.keras.ipu.ReplicatedMetricReductionMethod, method))
    predicted = model(x, training=False).numpy().reshape(4, 3, BATCH, 2)  # step, replica, sample
    differences = predicted - y.reshape(4, 3, BATCH, 2)
    each = np.stack(
        [(differences**2).mean((0, 2, 3)), np.abs(differences).mean((0, 2, 3))]
    )  # loss and mae by replica
    assert np.ptp(each, axis=1).min() > 0.01, "the replicas saw the same"
    expected = {"NONE": each[:, -1], "LIST": each, "SUM": each.sum(1), "MEAN": each.mean(1)}[method]
    found = model.evaluate(x, y, batch_size=BATCH, verbose=1)
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-5)
    np.testing.assert_allclose(np.array(model.get_metrics_result()["mae"]), expected[1], rtol=1e-5)

    before = model.get_weights()
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
    by_hand = ByHand(model, before, 3)
    by_hand.train(x, y, keras.optimizers.SGD(0.02, momentum=0.5), accumulation=2)
    each = np.mean(by_hand.errors, axis=1)
    expected = {"NONE": each[-1], "LIST": each, "SUM": each.sum(), "MEAN": each.mean()}[method]
    np.testing.assert_allclose(np.array(history["mae"][0]), expected, rtol=1e-5)


@pytest.mark.parametrize("schedule", [None, pytest.param("Sequential", marks=long)])
def test_predictions_come_in_the_order_of_the_data(schedule):
    x, _ = data(12)
    model = replicated(2, schedule, steps=3, accumulation=1)
    expected = np.asarray(model(x, training=False))
    np.testing.assert_allclose(model.predict(x, batch_size=BATCH, verbose=0), expected, atol=1e-6)
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(BATCH, drop_remainder=True)
    np.testing.assert_allclose(model.predict(dataset, verbose=0), expected, atol=1e-6)
    # Steps that are given count the microbatches of all replicas.
    np.testing.assert_allclose(
        model.predict(dataset, steps=6, verbose=0), expected[: 6 * BATCH], atol=1e-6
    )


@pytest.mark.long
def test_a_dataset_is_dealt_as_arrays_are():
    x, y = data(8)
    losses = []
    for given in (
        (x, y),
        (tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True).repeat(),),
    ):
        model = replicated(2, None, steps=2, accumulation=2)
        size, steps = (BATCH, None) if len(given) == 2 else (None, 8)
        model.fit(*given, batch_size=size, steps_per_epoch=steps, shuffle=False, verbose=0)
        losses.append(model.training_record.losses)
    assert len(losses[0]) == 2, "eight microbatches, two replicas, two microbatches per update"
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("steps", [None, 4])
def test_validation_data_is_dealt_too_and_leaves_training_as_it_is(steps):
    """Loss of the last replica's validation data; as many updates as without validation."""
    x, y = data(16)
    model = replicated(2, None, steps=2, accumulation=2)
    before = model.get_weights()
    validation = {"validation_split": 1 / 2, "validation_steps": steps}
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, **validation).history
    by_hand = ByHand(model, before, 2)
    by_hand.train(
        x[: 8 * BATCH], y[: 8 * BATCH], keras.optimizers.SGD(0.02, momentum=0.5), accumulation=2
    )
    np.testing.assert_allclose(model.training_record.losses, by_hand.per_update, rtol=1e-5)
    held, target = (a[8 * BATCH :].reshape(8, BATCH, -1)[1:steps:2] for a in (x, y))
    errors = [(by_hand.plain(a, training=False) - b) ** 2 for a, b in zip(held, target)]
    np.testing.assert_allclose(history["val_loss"], [np.mean(errors)], rtol=1e-4)


class TestStates:
    @pytest.mark.long
    def test_each_replica_draws_its_own_random_numbers_unless_a_seed_is_given(self):
        """Two replicas with the same microbatch: the mean after dropout of distinct numbers."""
        from tensorflow.python import ipu

        seen = {}
        for seed in (None, 7):
            configure(2)
            with ipu.ipu_strategy.IPUStrategy().scope():
                inputs = keras.Input((200,), batch_size=1)
                model = keras.Model(inputs, keras.layers.Dropout(0.5, seed=seed)(inputs))
                model.compile("sgd", mean_of_predictions, steps_per_execution=2)
                model.set_replication_options("LIST")
            x = four_equal_rows()
            [first], [second] = (
                model.fit(x, x, batch_size=1, verbose=0).history["loss"] for _ in range(2)
            )
            seen[seed] = first
            assert abs(first[0] - second[0]) > 1e-4, "the numbers go on"
        assert abs(seen[None][0] - seen[None][1]) > 1e-4
        assert seen[7][0] == seen[7][1]

    @pytest.mark.long
    def test_all_replicas_draw_the_same_random_numbers_if_they_are_asked_to(self):
        """Also in a program that was made before, and no more after the next reset."""
        from tensorflow.python import ipu

        configure(2)
        with ipu.ipu_strategy.IPUStrategy().scope():
            inputs = keras.Input((200,), batch_size=1)
            model = keras.Model(inputs, keras.layers.Dropout(0.5)(inputs))
            model.compile("sgd", mean_of_predictions, steps_per_execution=2)
            model.set_replication_options("LIST")
        x, seen = four_equal_rows(), {}
        for number, identical in enumerate((False, True, False)):
            ipu.utils.reset_ipu_seed(7, experimental_identical_replicas=identical)
            [seen[number]] = model.fit(x, x, batch_size=1, verbose=0).history["loss"]
        assert seen[1][0] == seen[1][1]
        assert [loss[0] for loss in seen.values()] == [seen[0][0]] * 3, (
            "replica 0 starts from the seed"
        )
        assert seen[0][0] != seen[0][1] == seen[2][1]

    @pytest.mark.long
    def test_replicas_with_common_statistics_cannot_draw_the_same(self):
        from tensorflow.python import ipu

        configure(2, distributed_batch_norm_replica_group_size=2)
        ipu.utils.reset_ipu_seed(7, experimental_identical_replicas=True)
        try:
            with ipu.ipu_strategy.IPUStrategy().scope():
                inputs = keras.Input((3,), batch_size=2)
                outputs = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(inputs))
                model = keras.Model(inputs, outputs)
                model.compile("sgd", "mse", steps_per_execution=2)
            with pytest.raises(
                NotImplementedError,
                match=r"experimental_identical_replicas .* common statistics share their random",
            ):
                model.fit(
                    np.ones((8, 3), "float32"), np.ones((8, 3), "float32"), batch_size=2, verbose=0
                )
        finally:
            ipu.utils.reset_ipu_seed(7)

    @pytest.mark.long
    def test_replica_0_draws_as_one_replica_does(self):
        from tensorflow.python import ipu

        losses, ones = [], np.ones((8, 50), "float32")
        for replicas in (1, 2):
            configure(replicas)
            with ipu.ipu_strategy.IPUStrategy().scope():
                keras.utils.set_random_seed(3)
                inputs = keras.Input((50,), batch_size=1)
                model = keras.Model(inputs, keras.layers.Dropout(0.5)(inputs))
                model.compile("sgd", mean_of_predictions, steps_per_execution=2)
                model.set_replication_options("LIST")
            rows = ones[: 4 * replicas]
            [loss] = model.fit(rows, rows, batch_size=1, verbose=0).history["loss"]
            losses.append(np.ravel(loss)[0])
        assert losses[0] == losses[1]


class TestCommonStatistics:
    """``norms.experimental.distributed_batch_norm_replica_group_size``."""

    @pytest.mark.long
    @pytest.mark.parametrize("schedule", [None, "Sequential", "Grouped"])
    def test_are_those_of_the_group_s_microbatches(self, schedule):
        """Four replicas in groups of two, against a loop that joins each pair's microbatches."""
        accumulation, replicas, size = 4, 4, 2
        x, y = data(UPDATES * accumulation * replicas)
        group = {"distributed_batch_norm_replica_group_size": size}
        model = replicated(
            replicas, schedule, steps=2 * accumulation, accumulation=accumulation, **group
        )
        model.set_replication_options("LIST")
        before = model.get_weights()
        history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
        # Of a pair the loss is the sum of two means: twice the mean over both.
        pairs = ByHand(model, before, replicas // size)
        pairs.train(
            x,
            y,
            keras.optimizers.SGD(0.02, momentum=0.5),
            accumulation=accumulation,
            microbatch=2 * BATCH,
            weight=2.0,
        )
        np.testing.assert_allclose(model.training_record.losses, pairs.per_update, rtol=1e-5)
        np.testing.assert_allclose(model.training_record.gradient_norms, pairs.norms, rtol=1e-5)
        assert_all_close(model.get_weights(), pairs.plain.get_weights(), atol=1e-5)
        of_pairs = np.reshape(history["mae"][0], (2, 2)).mean(axis=1)
        np.testing.assert_allclose(of_pairs, np.mean(pairs.errors, axis=1), rtol=1e-5)
        assert np.ptp(history["mae"][0]) > 1e-3, "the replicas of a pair have metrics of their own"

    def test_groups_that_do_not_divide_the_replicas(self):
        model = replicated(
            3, None, steps=1, accumulation=1, distributed_batch_norm_replica_group_size=2
        )
        with pytest.raises(
            ValueError, match="replica_group_size=2 does not divide the 3 replicas of the model"
        ):
            model.fit(*data(3), batch_size=BATCH, verbose=0)


class TestSums:
    @pytest.mark.long
    def test_an_optimizer_sums_and_averages_what_is_equal_in_all_replicas(self):
        from tensorflow.python import ipu

        class Summing(keras.optimizers.SGD):
            def apply(self, grads, trainable_variables=None):
                by_mean = [ipu.cross_replica_ops.cross_replica_mean(g) for g in grads]
                super().apply(
                    [ipu.cross_replica_ops.cross_replica_sum(g) for g in by_mean],
                    trainable_variables,
                )

        x, y = data(6)
        weights = []
        for optimizer in (Summing(0.01), keras.optimizers.SGD(0.03)):
            model = replicated(3, None, steps=2, accumulation=1)
            model.compile(optimizer, "mse", steps_per_execution=2)
            model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
            weights.append(model.get_weights())
        assert_all_close(*weights, rtol=1e-4, atol=1e-6)

    @pytest.mark.long
    def test_a_model_does_not_as_its_replicas_follow_one_another(self):
        from tensorflow.python import ipu

        def loss(y, predicted):
            return ipu.cross_replica_ops.cross_replica_mean(tf.reduce_mean((y - predicted) ** 2))

        model = replicated(2, None, steps=1, accumulation=1)
        model.compile("sgd", loss, steps_per_execution=1)
        with pytest.raises(
            NotImplementedError, match=r"sums over replicas inside a model \('2 replicas'\)"
        ):
            model.fit(*data(2), batch_size=BATCH, verbose=0)
        configure(1)
        model.fit(*data(2), batch_size=BATCH, verbose=0)
        assert len(model.training_record.losses) == 2, "one replica is all of them"


@pytest.mark.long
def test_a_report_is_of_one_replica(tmp_path, monkeypatch):
    """Two copies of two IPUs: the report has two, and says that there are two replicas."""
    import pva

    monkeypatch.setenv(
        "POPLAR_ENGINE_OPTIONS",
        json.dumps({"autoReport.all": "true", "autoReport.directory": str(tmp_path)}),
    )
    replicated(2, "Sequential", steps=2, accumulation=2).fit(*data(4), batch_size=BATCH, verbose=0)
    [folder] = tmp_path.iterdir()
    compilation = pva.openReport(folder).compilation
    assert (compilation.target.numReplicas, compilation.target.numIPUs, len(compilation.ipus)) == (
        2,
        2,
        2,
    )
    assert sum(tile.memory.alwaysLiveBytes for tile in compilation.tiles) > 0


def test_a_function_given_to_run_says_once_that_it_has_one_replica(caplog):
    from tensorflow.python import ipu

    strategy = ipu.ipu_strategy.IPUStrategy()
    for ipus, said in ((1, 0), (2, 1), (2, 1)):
        configure(ipus)
        assert float(strategy.run(tf.function(lambda: tf.constant(3.0)))) == 3
        assert (
            caplog.text.count("2 IPUs are configured, but IPUStrategy.run has one replica") == said
        )


@pytest.mark.long
def test_the_effective_batch_size_is_logged(caplog):
    model = replicated(2, None, steps=2, accumulation=2)
    with caplog.at_level("INFO", logger="keras_recompute"):
        model.fit(*data(4), batch_size=BATCH, verbose=0)
    assert (
        "distributed across 2 replicas, accumulating 2 microbatches per update: the effective "
        "batch size is 16" in caplog.text
    )
