"""AutoGraph conversion of single functions while the engine traces with AutoGraph disabled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx


def is_disabled() -> bool:
    """Whether a caller disabled AutoGraph."""
    return ag_ctx.control_status_ctx().status is ag_ctx.Status.DISABLED


def with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` converted by AutoGraph, which is enabled while it runs."""
    enabled = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED)
    convert = tf.__internal__.autograph.tf_convert(function, enabled)

    def call(*args: Any, **kwargs: Any) -> Any:
        with enabled:
            return convert(*args, **kwargs)

    return call
