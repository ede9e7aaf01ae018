"""The traceback of an operation, taken and set."""

import pytest
import tensorflow as tf

from keras_recompute.seams.tensorflow.tracebacks import (
    set_traceback,
    traceback_as_run,
    traceback_here,
)


def the_first():
    return traceback_here(), traceback_as_run()


@pytest.mark.parametrize("number", [0, 1], ids=["traceback_here", "traceback_as_run"])
def test_the_innermost_line_is_that_of_the_call(number):
    frame = list(the_first()[number])[-1]
    assert (frame.filename, frame.name) == (__file__, "the_first")


def test_an_operation_is_given_another_traceback():
    assert set_traceback is not None, (
        "this TensorFlow cannot set them: operations keep the tracebacks that they have"
    )
    with tf.Graph().as_default():
        operation = tf.constant(1.0).op
        set_traceback(operation, the_first()[0])
        assert list(operation.traceback)[-1].name == "the_first"
