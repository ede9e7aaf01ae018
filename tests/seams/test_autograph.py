"""AutoGraph."""

import tensorflow as tf

from keras_recompute.seams.tensorflow.autograph import is_disabled, with_autograph


def test_autograph_is_on_unless_a_caller_turned_it_off():
    seen = []
    tf.function(lambda: seen.append(is_disabled()), autograph=True)()
    tf.function(tf.autograph.experimental.do_not_convert(lambda: seen.append(is_disabled())))()
    assert seen == [False, True]
    assert not is_disabled()


def half_if_positive(x):
    if x > 0:
        x = x / 2
    return x


def test_a_branch_on_a_tensor_is_converted_where_autograph_is_off():
    function = tf.function(with_autograph(half_if_positive), autograph=False)
    assert [float(function(tf.constant(x))) for x in (4.0, -4.0)] == [2.0, -4.0]
