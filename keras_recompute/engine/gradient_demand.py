"""Whether the gradient of a call may be asked for.

Recomputation belongs where it may, whatever ``training`` is: a fine-tuned network runs with
``training=False``, and trainers of two networks pass no ``training`` at all.
"""

from __future__ import annotations

import tensorflow as tf

from ..seams.keras.call_context import current_training, is_symbolic
from ..seams.keras.call_stack import enclosing_step, is_being_exported
from ..seams.tensorflow.gradients import may_record


def gradient_may_be_asked() -> bool:
    """Return whether a tape, or ``tf.gradients``, may differentiate what is called here.

    Called eagerly, only a tape that records now can. What is traced into a function may be
    differentiated as a whole later, by a tape around its call or by ``tf.gradients`` in it. So
    there the answer is yes, except for what is known to be inference: ``evaluate``, ``predict``,
    shapes that Keras asks for, and functions that are written to files, unless they train.
    """
    if is_symbolic():
        return False
    if may_record():
        return True
    if tf.executing_eagerly() or enclosing_step() in ("test_step", "predict_step"):
        return False
    return current_training() is True or not is_being_exported()
