"""Errors of XLA for operations that it does not support, shortened to one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import XlaUnsupportedError
from .origins import Names

# TensorFlow 2.21 names the operation, and in braces the node.
_OPERATION = re.compile(r"on XLA_\w+_JIT: (\w+) \(No registered")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")


@contextmanager
def shorten_refusals(layers: Sequence[str]) -> Iterator[None]:
    """Raise XlaUnsupportedError in place of TensorFlow's error for an unsupported operation.

    ``layers`` are the names of the model's layers, by which the operation's layer is found.
    """
    try:
        yield
    except Exception as error:  # a ValueError or one of several errors of TensorFlow
        found = _OPERATION.search(str(error))
        if found is None:
            raise
        node = _NODE.search(str(error), found.start())
        layer = _layer(node.group(1), layers) if node else None
        raise _refusal(found.group(1), layer) from None


def _layer(node: str, layers: Sequence[str]) -> str | None:
    return Names.of_variables((), (), layers).layer(node) if layers else None


def _refusal(operation: str, layer: str | None) -> XlaUnsupportedError:
    where = f" of layer {layer!r}" if layer else ""
    return XlaUnsupportedError(
        f"XLA cannot compile {operation}{where}: it has no such operation. fit runs the model "
        "without jit (jit_compile=False). To profile the rest, move this layer in front of the "
        "model, such as into dataset.map",
        operation=operation,
        layer=layer,
    )
