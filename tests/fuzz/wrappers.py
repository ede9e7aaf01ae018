"""What stands in the place of a checkpoint: nothing, a ``tf.function``, or the real thing, with
each kind of policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import keras_recompute as kr

from .language import Steps, names_marked

Wrap = Callable[[Callable[..., Any], Any], Callable[..., Any]]

POLICIES: dict[str, Any] = {
    "save_nothing": kr.policies.save_nothing,
    "save_everything": kr.policies.save_everything,
    "save_matmuls": kr.policies.save_matmuls,
    "save_names": kr.policies.save_names("a"),
    "save_all_but_names": kr.policies.save_all_but_names("a"),
    "either": kr.policies.either(kr.policies.save_names("a"), kr.policies.save_matmuls),
    "offload": kr.policies.save_and_offload_names(offload=("a",)),
    "every other": lambda value: len(value.op.name) % 2 == 0,
}
BY_NAME = (
    "save_names",
    "save_all_but_names",
    "either",
    "offload",
)  # a name that no value has is an error


def policy_for(name: str, body: Steps) -> Any:
    """Return the policy called ``name``; one by names is replaced if ``body`` marks none."""
    return POLICIES["save_matmuls" if name in BY_NAME and "a" not in names_marked(body) else name]


def plainly(function: Callable[..., Any], _policy: Any) -> Callable[..., Any]:
    """What becomes of a checkpointed function in plain TensorFlow."""
    return function


def traced(function: Callable[..., Any], _policy: Any) -> Callable[..., Any]:
    """What stands nearest to a checkpoint in TensorFlow: a function that is traced too."""
    return tf.function(function)


def checkpointed(function: Callable[..., Any], policy: Any) -> Callable[..., Any]:
    """The real thing."""
    return kr.checkpoint(function, policy=policy)
