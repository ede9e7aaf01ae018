"""Keras models whose weights have types and shapes and no values, so that they take no memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ContextManager

from ..errors import InvalidArgumentError
from ..keras_backend import require
from ..seams.keras.quantization import quantize_without_values
from ..seams.keras.variables import has_values, without_values

# Models made in ``abstract``. A subclass of keras.Model may make its layers and weights later.
_made: weakref.WeakSet[Any] = weakref.WeakSet()


@contextmanager
def abstract() -> Iterator[None]:
    """Build models in the block without values of their weights.

    Such a model takes hardly any memory, whatever its size. ``profile``, ``plan`` and
    ``checkpointed`` take it as any other: a compiler needs the shapes of weights alone. It cannot
    be trained or called, and whatever reads one of its weights raises InvalidArgumentError. Weights
    that are loaded into it have values from then on. ``model.quantize("int8")`` works in the block.
    On TensorFlow ``profile`` refuses a model with a weight larger than this machine's memory.

    Examples:
        >>> with kr.liveness.abstract():
        ...     model = keras.Sequential([keras.Input((10**6,)), keras.layers.Dense(10**6)])
        >>> model.count_params()  # 4 TB
        1000001000000
    """
    require("liveness.abstract")
    with without_values(_refuse, _made.add), quantize_without_values(_refuse_to_quantize):
        yield


def is_abstract(model: Any) -> bool:
    """Return whether a weight of ``model`` has no value, or would get none if it had weights."""
    return model in _made if not model.variables else not has_values(model)


def as_abstract_as(model: Any) -> ContextManager[None]:
    """Give a context in which variables are created as those of ``model`` were."""
    return abstract() if is_abstract(model) else nullcontext()


def _refuse(variable: Any) -> None:
    raise InvalidArgumentError(
        f"the value of {variable.path!r} was read, and it has none: it was created in "
        "kr.liveness.abstract(), where weights have types and shapes only. Build the model "
        "outside of it, or load its weights"
    )


def _refuse_to_quantize(mode: str) -> None:
    raise InvalidArgumentError(
        f"quantize({mode!r}) computes with the values of weights, and in kr.liveness.abstract() "
        "they have none: quantize to int8 there, or to this outside of it"
    )
