"""What back-propagation through a section begins with runs before its branch: the peak, the same
values, and what stays.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from keras_recompute.engine.passes import leaving_out
from keras_recompute.liveness import profile
from tests.oracle import assert_all_close, numbers

from ..engine_vs_plain import differentiate, parted, through_engine

WIDTH, BATCH, DEPTH = 16, 4096, 4
STATE = 4 * WIDTH * BATCH  # bytes of one activation: 256 KiB. Weights have 1 KiB.
MATRIX = tf.Variable(numbers(WIDTH, WIDTH) * 0.3)
X = tf.TensorSpec((32, WIDTH))


def ends(x):
    return tf.nn.relu(x @ MATRIX)


def begun(function, kept_by_caller=(0,)):
    """Return which kinds of operations of the gradient run before the fence, on XLA:CPU."""
    found = []

    @tf.function(jit_compile=True, autograph=False)
    def looking(x):
        part = parted(function, [x], kept_by_caller=kept_by_caller)
        found.append([] if part.prologue is None else [op.type for op in part.prologue.operations])
        return x

    looking.get_concrete_function(X)
    return found[0]


def test_the_slope_of_the_last_activation_is_made_before_the_branch():
    assert begun(ends)[-1] == "ReluGrad"
    assert begun(lambda x: tf.nn.leaky_relu(tf.nn.relu(x @ MATRIX))) == [], (
        "it reads a result inside, which is replayed"
    )


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x @ MATRIX, id="no activation"),
        pytest.param(lambda x: tf.reduce_sum(ends(x), axis=0), id="another size"),
        pytest.param(lambda x: ends(x) + (x @ MATRIX), id="a gradient that is read twice"),
        pytest.param(lambda x: (ends(x), ends(2 * x)), id="several gradients"),
    ],
)
def test_what_stays_behind_it(function):
    assert begun(function) == []


def test_the_result_and_its_gradient_are_not_held_to_the_end_of_the_branch():
    weights = [tf.Variable(numbers(WIDTH, WIDTH, seed=n) * 0.3) for n in range(2 * DEPTH)]

    def section(w):
        def chain(x):
            for matrix in w:
                x = tf.nn.relu(x @ matrix)
            return x

        return through_engine(chain, kept_by_caller=(0,))

    def step(x):
        with tf.GradientTape() as tape:
            [handed_on] = section(weights[:DEPTH])(x)
            [result] = section(weights[DEPTH:])(handed_on)
            loss = tf.reduce_sum((result @ MATRIX) ** 2)
        return tape.gradient(loss, weights)

    def peak():
        return profile(step, tf.TensorSpec((BATCH, WIDTH))).not_always_live_peak_bytes

    with leaving_out("hoisting"):
        held = peak()
    assert peak() <= held - 0.9 * STATE


@pytest.mark.parametrize("jit", [False, True])
def test_values_and_gradients_are_the_same(jit):
    def function(x):
        return ends(ends(x))

    x = numbers(32, WIDTH, seed=3)
    expected = differentiate(function, [x], [MATRIX])
    found = differentiate(through_engine(function, kept_by_caller=(0,)), [x], [MATRIX], jit=jit)
    assert_all_close(
        [*found.outputs, *found.gradients],
        [*expected.outputs, *expected.gradients],
        rtol=1e-4,
        atol=1e-5,
    )
