"""``checkpointable`` of "TensorFlow 2 Gradient Checkpointing": recomputation by a call argument."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..layers.checkpoint import checkpoint


def checkpointable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn``, which recomputes in its backward pass when called with ``_checkpoint=True``.

    ``_watch_vars`` and ``_force_seed`` are accepted and ignored: variables are found, and dropout
    is exact. Every floating-point tensor among the arguments gets a gradient, not float32 alone.

    Raises:
        InvalidArgumentError: As ``checkpoint``.

    Examples:
        >>> @kr.compat.checkpointable
        ... def network(x):
        ...     return tf.sin(tf.sin(x))
        >>> kr.replay_count(lambda x: network(x, _checkpoint=True), tf.ones(4))
        1
    """
    checkpointed = checkpoint(fn)

    @functools.wraps(fn, updated=())
    def call(
        *args: Any,
        _checkpoint: bool = False,
        _watch_vars: Any = None,
        _force_seed: bool = False,
        **kwargs: Any,
    ) -> Any:
        del _watch_vars, _force_seed
        return (checkpointed if _checkpoint else fn)(*args, **kwargs)

    return call
