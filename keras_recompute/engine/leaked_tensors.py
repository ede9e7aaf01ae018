"""Tensors that a layer leaves in its attributes while a section of a model is traced: they have no value outside of it.

A layer may do so for whoever looks, who is often nobody: that is no mistake. So what is left is replaced by an object that
raises an error of ours when it is used, which tells the layer and the attribute; TensorFlow's would tell neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from ..errors import UnsupportedError
from ..seams.tensorflow.tensors import is_eager
from .object_state import stateful_objects

_OPERATORS = """
    add sub mul truediv floordiv mod pow matmul radd rsub rmul rtruediv rfloordiv rmod rpow rmatmul neg abs lt le gt ge getitem
    len iter bool float int array tf_tensor
""".split()


class LeakedTensorError(UnsupportedError, AttributeError):
    """A tensor that was left behind is used. An AttributeError too, as an answer to who asks whether there is an attribute."""


class LeakedTensor:
    """Stands in the ``attribute`` of a layer for ``tensor``, which was left there."""

    def __init__(self, tensor: tf.Tensor, *, owner: str, attribute: str, name: str) -> None:
        self._message = (
            f"{owner!r} stored the tensor {tensor.name!r}, {tensor.dtype.name}{tensor.shape}, in "
            f"its attribute {attribute!r}. {name!r} is recomputed, and outside of it the tensor "
            "has no value. Return it from the layer's call, assign it to a variable of the "
            "layer, or recompute other layers."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise LeakedTensorError(self._message)

    def __repr__(self) -> str:
        return f"<{self._message}>"


def _refusing() -> Callable[..., Any]:
    def refuse(self: LeakedTensor, *_: Any, **__: Any) -> Any:
        raise LeakedTensorError(self._message)

    return refuse


for _name in _OPERATORS:
    setattr(LeakedTensor, f"__{_name}__", _refusing())


def replace_leaked(objects: Iterable[Any], graph: Any, *, name: str) -> None:
    """Replace what the layers among ``objects`` hold of ``graph``, in attributes or lists and dicts in these.

    ``name`` is what was traced into the graph.
    """
    for owner in stateful_objects(objects):
        known_as = getattr(owner, "name", type(owner).__name__)
        for attribute, value in list(vars(owner).items()):
            if _is_of(value, graph):
                vars(owner)[attribute] = LeakedTensor(value, owner=known_as, attribute=attribute, name=name)
            elif isinstance(value, (list, dict)):
                for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
                    if _is_of(item, graph):
                        kind: Any = dict if isinstance(value, dict) else list  # Keras's own would track what is put in
                        kind.__setitem__(value, key, LeakedTensor(item, owner=known_as, attribute=attribute, name=name))


def _is_of(value: Any, graph: Any) -> bool:
    """Whether ``value`` is a tensor of ``graph`` or of a graph in it."""
    if not isinstance(value, tf.Tensor) or is_eager(value):
        return False
    found = value.graph
    while found is not None and found is not graph:
        found = getattr(found, "outer_graph", None)
    return found is not None
