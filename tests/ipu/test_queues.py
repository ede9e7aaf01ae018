"""Loops of a script's own: ``IPUStrategy.run``, ``next(iterator)``, infeed and outfeed queues."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.errors import RecomputeError

from .pipelines import numbers

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.fixture
def strategy():
    from tensorflow.python import ipu

    with ipu.ipu_strategy.IPUStrategy().scope() as strategy:
        yield strategy


def queue(mode: str | None = None):
    from tensorflow.python.ipu.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue

    return IPUOutfeedQueue(IPUOutfeedMode[mode] if mode else None)


def counted(n: int = 100) -> tf.data.Dataset:
    return tf.data.Dataset.range(n, output_type=tf.int32).batch(2, drop_remainder=True)


@pytest.mark.parametrize("jit", [False, True])
def test_a_training_loop_of_one_s_own(strategy, jit):
    """As in Graphcore's examples: a compiled function reads an iterator and enqueues losses."""
    x, y = numbers(24, 3), numbers(24, 1, seed=1)
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,), batch_size=4)
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    optimizer, losses = keras.optimizers.SGD(0.1), queue()
    optimizer.build(model.trainable_variables)
    start = model.get_weights()

    @tf.function(jit_compile=jit)
    def training_loop(iterator):
        for _ in tf.range(3):
            features, targets = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(features, training=True) - targets) ** 2)
            optimizer.apply(tape.gradient(loss, [v.value for v in model.trainable_variables]))
            losses.enqueue(loss)

    iterator = iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True))
    for _ in range(2):
        strategy.run(training_loop, args=(iterator,))
    found = losses.dequeue()
    assert found.shape == (6,)

    w, b = start
    for n in range(6):  # by hand: the gradient of the mean of squares
        xs, ys = x[4 * n : 4 * n + 4], y[4 * n : 4 * n + 4]
        error = xs @ w + b - ys
        assert float(found[n]) == pytest.approx(float(np.mean(error**2)), rel=1e-5)
        w, b = w - 0.1 * xs.T @ (2 * error / 4), b - 0.1 * np.mean(2 * error)
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-5)


def fill(strategy, outfeed, steps: int = 20):
    iterator = iter(counted())

    @tf.function(jit_compile=True)
    def loop(iterator):
        for _ in tf.range(steps):
            batch = next(iterator)
            outfeed.enqueue({"first": batch[0], "both": (batch, tf.cast(batch, tf.float32))})

    strategy.run(loop, args=(iterator,))


def test_an_outfeed_queue_keeps_all_in_order(strategy):
    outfeed = queue("ALL")
    assert not outfeed.enqueued
    fill(strategy, outfeed)
    assert outfeed.enqueued
    found = outfeed.dequeue()
    np.testing.assert_array_equal(found["first"], range(0, 40, 2))
    np.testing.assert_array_equal(found["both"][0], np.arange(40).reshape(20, 2))
    assert found["both"][1].dtype == tf.float32
    with pytest.raises(ValueError, match="is empty"):
        outfeed.dequeue()


def test_an_outfeed_queue_keeps_the_last_alone(strategy):
    outfeed = queue("LAST")
    fill(strategy, outfeed)
    found = outfeed.dequeue()
    assert int(found["first"]) == 38
    np.testing.assert_array_equal(found["both"][0], [38, 39])
    with pytest.raises(ValueError, match="LAST holds one result"):
        iter(outfeed)


def test_an_outfeed_queue_is_iterated_over(strategy):
    outfeed = queue()
    fill(strategy, outfeed, 3)
    assert [int(nest["first"]) for nest in outfeed] == [0, 2, 4]


def test_an_infeed_queue_feeds_a_loop(strategy):
    from tensorflow.python.ipu.ipu_infeed_queue import IPUInfeedQueue, IPUIterator

    infeed = IPUInfeedQueue(counted())
    assert infeed.number_of_tuple_elements == 1
    assert not infeed.dequeued
    iterator = IPUIterator(infeed_queue=infeed)
    with pytest.raises(ValueError, match="has not been started"):
        next(iterator)
    _ = infeed.initializer

    @tf.function(jit_compile=True)
    def total():
        found = tf.constant(0)
        for _ in tf.range(5):
            found += tf.reduce_sum(next(iterator))
        return found

    assert int(strategy.run(total)) == sum(range(10))
    assert int(strategy.run(total)) == sum(range(10, 20))
    assert infeed.dequeued
    _ = infeed.deleter
    with pytest.raises(ValueError, match="has been deleted"):
        next(iterator)


def test_a_dataset_as_an_iterator():
    from tensorflow.python.ipu.ipu_infeed_queue import IPUIterator

    np.testing.assert_array_equal(next(IPUIterator(dataset=counted())), [0, 1])
    with pytest.raises(ValueError, match="one of the two"):
        IPUIterator()


def test_a_queue_outside_the_strategy_s_run_says_what_to_do(strategy):
    del strategy
    outfeed = queue()

    @tf.function(jit_compile=True)
    def direct():
        outfeed.enqueue(tf.constant(1))

    with pytest.raises(
        RecomputeError, match=r"IPUOutfeedQueue.enqueue cannot be compiled by XLA.*IPUStrategy\.run"
    ):
        direct()


def test_what_queues_refuse():
    from tensorflow.python.ipu.ipu_infeed_queue import IPUInfeedQueue
    from tensorflow.python.ipu.ipu_outfeed_queue import IPUOutfeedQueue

    with pytest.raises(ValueError, match=r"needs elements of known shape.*drop_remainder=True"):
        IPUInfeedQueue(tf.data.Dataset.range(5).batch(2))
    with pytest.raises(TypeError, match=r"needs a tf\.data\.Dataset"):
        IPUInfeedQueue([1, 2])
    with pytest.raises(ValueError, match="prefetch_depth must be a positive"):
        IPUInfeedQueue(counted(), prefetch_depth=0)
    with pytest.raises(TypeError, match="outfeed_mode must be an IPUOutfeedMode, not 'all'"):
        IPUOutfeedQueue("all")
    with pytest.raises(ValueError, match="buffer_depth must be a positive"):
        IPUOutfeedQueue(buffer_depth=-1)
    outfeed = IPUOutfeedQueue()
    with pytest.raises(ValueError, match="nothing has been enqueued"):
        outfeed.dequeue()
    outfeed.enqueue((tf.constant(1), tf.constant(2)))
    with pytest.raises(ValueError, match="cannot take"):
        outfeed.enqueue(tf.constant(1))
    _ = outfeed.deleter
    with pytest.raises(ValueError, match="has been deleted"):
        outfeed.dequeue()


def test_double_precision_is_refused(strategy):
    cast = tf.function(lambda x: tf.cast(x, tf.float64))
    with pytest.raises(TypeError, match=r"an argument of the function .* is float64"):
        strategy.run(cast, args=(tf.constant(1.0, tf.float64),))
    with pytest.raises(TypeError, match=r"a result of the function .* is float64"):
        strategy.run(cast, args=(tf.constant(1.0),))
