"""``tf.recompute_grad`` without its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..layers.checkpoint import checkpoint


def recompute_grad(f: Callable[..., Any]) -> Any:
    """Return ``f`` with a backward pass that recomputes all but its inputs.

    Unlike there, keyword arguments, None and Python values, loops that read variables, dropout and
    batch normalisation work, and the returned object has the attributes of a layer or model.

    Raises:
        InvalidArgumentError: As ``checkpoint``.

    Examples:
        >>> kr.replay_count(kr.compat.recompute_grad(lambda x: tf.sin(tf.sin(x))), tf.ones(4))
        1
    """
    return checkpoint(f)
