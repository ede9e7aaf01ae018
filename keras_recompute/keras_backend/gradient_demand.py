"""Whether the gradient of a call may be asked for, on any backend."""

from __future__ import annotations

from ..seams.keras.call_context import is_symbolic
from ..seams.keras.call_stack import enclosing_step
from . import TENSORFLOW, current_backend


def gradient_may_be_asked() -> bool:
    """Return whether what is called here may be differentiated.

    On JAX a function is traced before it is known what it is for. So the answer is yes, except for
    what is known to be inference: ``evaluate``, ``predict``, and shapes that Keras asks for.
    """
    if current_backend() == TENSORFLOW:
        from ..engine import gradient_demand

        return gradient_demand.gradient_may_be_asked()
    return not is_symbolic() and enclosing_step() not in ("test_step", "predict_step")
