"""Leaked tensors: values that a layer stores in its attributes while a section is traced.

Layers may store intermediate tensors as attributes. Outside the traced section they have no value.
So they are replaced by objects that raise an error of the package when they are used, with the
layer and the attribute; TensorFlow's error names neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from ...errors import UnsupportedError
from ...seams.tensorflow.tensors import is_eager
from .object_state import stateful_objects

_OPERATORS = """
    add sub mul truediv floordiv mod pow matmul radd rsub rmul
    rtruediv rfloordiv rmod rpow rmatmul
    neg abs lt le gt ge getitem
    len iter bool float int array tf_tensor
""".split()


class LeakedTensorError(UnsupportedError, AttributeError):
    """A leaked tensor is used.

    It is an AttributeError too, which answers callers that only ask whether an attribute exists.
    """


class LeakedTensor:
    """Stands in the ``attribute`` of a layer for ``tensor``, which was leaked there."""

    def __init__(self, tensor: tf.Tensor, *, owner: str, attribute: str, name: str) -> None:
        self._message = (
            f"{owner!r} stored the tensor {tensor.name!r}, {tensor.dtype.name}{tensor.shape}, in "
            f"its attribute {attribute!r}. {name!r} is recomputed, and outside of it the tensor "
            "has no value. Return it from the layer's call, assign it to a variable of the layer, "
            "or recompute other layers."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise LeakedTensorError(self._message)

    def __repr__(self) -> str:
        return f"<{self._message}>"


def _raising_method() -> Callable[..., Any]:
    def refuse(self: LeakedTensor, *_: Any, **__: Any) -> Any:
        raise LeakedTensorError(self._message)

    return refuse


for _name in _OPERATORS:
    setattr(LeakedTensor, f"__{_name}__", _raising_method())


def replace_leaked(objects: Iterable[Any], graph: Any, *, name: str) -> None:
    """Replace tensors of ``graph`` that the layers among ``objects`` hold.

    They are looked for in attributes, and in lists and dicts there. ``name`` is the function that
    was traced into the graph.
    """
    for owner in stateful_objects(objects):
        known_as = getattr(owner, "name", type(owner).__name__)
        for attribute, value in list(vars(owner).items()):
            if _is_of(value, graph):
                vars(owner)[attribute] = LeakedTensor(
                    value, owner=known_as, attribute=attribute, name=name
                )
            elif isinstance(value, (list, dict)):
                for key, item in list(
                    value.items() if isinstance(value, dict) else enumerate(value)
                ):
                    if _is_of(item, graph):
                        kind: Any = (
                            dict if isinstance(value, dict) else list
                        )  # Keras's own would track what is put in
                        kind.__setitem__(
                            value,
                            key,
                            LeakedTensor(item, owner=known_as, attribute=attribute, name=name),
                        )


def _is_of(value: Any, graph: Any) -> bool:
    """Whether ``value`` is a tensor of ``graph`` or of a graph inside it."""
    if not isinstance(value, tf.Tensor) or is_eager(value):
        return False
    found = value.graph
    while found is not None and found is not graph:
        found = getattr(found, "outer_graph", None)
    return found is not None
