"""Whether the gradient of a call may be asked for, on any backend.

Recomputation belongs where it may, whatever ``training`` is: a fine-tuned network runs with
``training=False``, and trainers of two networks pass no ``training`` at all.
"""

from __future__ import annotations

from ..seams.keras.call_context import current_training, is_symbolic
from ..seams.keras.call_stack import enclosing_step, is_being_exported
from . import TENSORFLOW, current_backend


def gradient_may_be_asked() -> bool:
    """Return whether what is called here may be differentiated.

    Called eagerly on TensorFlow, only a tape that records now can. What is traced into a function,
    on TensorFlow or JAX, may be differentiated as a whole later. So there the answer is yes, except
    for what is known to be inference: ``evaluate``, ``predict``, shapes that Keras asks for, and
    functions that are written to files, unless they train.
    """
    if is_symbolic():
        return False
    is_inference = enclosing_step() in ("test_step", "predict_step")
    if current_backend() != TENSORFLOW:
        return not is_inference
    import tensorflow as tf

    from ..seams.tensorflow.gradients import may_record

    if may_record():
        return True
    if tf.executing_eagerly() or is_inference:
        return False
    return current_training() is True or not is_being_exported()
