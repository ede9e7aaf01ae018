"""Checks of a call's arguments: which a program can be fed, and what the message calls them."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from ...errors import InvalidArgumentError
from .call_signature import FlatCall, Static, is_known_here


def check_arguments(
    given: FlatCall, *, function: str, parameters: Callable[[], Sequence[str]]
) -> None:
    """Raise InvalidArgumentError for an argument that no program can be fed.

    The message names the argument and ``function``.
    """
    for number, slot in enumerate(given.treedef.slots):
        if not isinstance(slot, Static) or slot.in_object:
            continue
        if isinstance(slot.value, keras.KerasTensor):
            raise InvalidArgumentError(
                f"{function!r} was called with the symbolic Keras tensor {slot.value.name!r} as "
                f"{given.treedef.leaf_paths(parameters())[number]}, but a checkpointed function "
                "needs values. In a functional model put a RecomputationCheckpoint layer after "
                "the layers, and build it as a keras_recompute.Model."
            )
        if isinstance(slot.value, (np.ndarray, np.generic)) and not isinstance(
            slot.value, np.bool_
        ):
            raise InvalidArgumentError(
                f"{function!r} was called with {slot.value!r:.60}, a NumPy array of "
                f"{slot.value.dtype}, as {given.treedef.leaf_paths(parameters())[number]}, and no "
                "tensor can hold it. Pass its elements as a list or a tuple."
            )
        if isinstance(slot.value, Iterator) and not isinstance(slot.value, io.IOBase):
            path = given.treedef.leaf_paths(parameters())[number]
            raise InvalidArgumentError(
                f"{function!r} was called with a {type(slot.value).__name__} as {path}: it would "
                "take values from it now and not at later calls, because Python runs a "
                f"checkpointed function once per signature. Pass the values, such as next({path}) "
                f"or list({path})."
            )
    for number, tensor in enumerate(given.tensors):
        if not is_known_here(tensor):
            raise InvalidArgumentError(
                f"{function!r} was called with {tensor.name!r} as "
                f"{given.treedef.paths(parameters())[number]}, a tensor of another graph, whose "
                "value is not known here. Call it where that tensor is made, or return the tensor "
                "from its tf.function first."
            )


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of the positional parameters of ``function``."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
