"""The signature of a call: its arguments or results as tensors and a TreeDef.

Tensors are what a program is fed and what it returns. Everything else (structure, None, bools,
numbers, strings, layers) belongs to the TreeDef, which is a part of the key of a program. JAX's
PyTreeDef is the model.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import tensorflow as tf

from ...errors import InvalidArgumentError
from ...seams.keras.layers import attach_mask, mask_of
from ...seams.tensorflow.tensors import is_composite, is_eager
from .containers import OBJECT, Kind, kind_of

_SMALL_BYTES = 2**16
# Equal ones do the same.
_VALUES = (range, tf.DType, tf.TypeSpec, np.dtype)


class IdentityKey:
    """Wraps an object so that it is equal to itself only.

    It keeps the object, so that no other object gets its id.
    """

    def __init__(self, value: Any) -> None:
        # Every access to a method makes a new object.
        self._parts = (value.__self__, value.__func__) if inspect.ismethod(value) else (value,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self._ids() == other._ids()

    def __hash__(self) -> int:
        return hash(self._ids())

    def _ids(self) -> tuple[int, ...]:
        return tuple(map(id, self._parts))


@dataclass(frozen=True)
class _Dense:
    """One tensor, followed by its mask if Keras attached one."""

    masked: bool
    count = property(lambda self: 1 + self.masked)

    def fill(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        if self.masked:
            attach_mask(*tensors)
        return tensors[0]


@dataclass(frozen=True)
class _Composite:
    """The components of a ragged or sparse tensor."""

    spec: tf.TypeSpec
    count: int

    def fill(self, tensors: Sequence[tf.Tensor]) -> Any:
        return tf.nest.pack_sequence_as(self.spec, list(tensors), expand_composites=True)


@dataclass(frozen=True)
class Static:
    """Anything except a tensor. Plain values are equal by value, all others by identity."""

    key: Any
    value: Any
    in_object: bool = False
    count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def fill(self, _: Sequence[tf.Tensor]) -> Any:
        return self.value


Slot = Union[_Dense, _Composite, Static]


@dataclass(frozen=True)
class Node:
    """A container.

    ``number`` counts mutable containers in the order in which they are found; None for others.
    """

    kind: Kind
    type: type
    names: Any
    children: tuple[Tree, ...]
    number: int | None = None


@dataclass(frozen=True)
class Leaf:
    """What the slot of this number holds."""

    slot: int


@dataclass(frozen=True)
class SharedContainer:
    """The container of this number, which is also elsewhere in the nest."""

    number: int


@dataclass(frozen=True)
class ArgumentRef:
    """In results: the container or, if ``is_leaf``, the leaf of this number among the arguments."""

    number: int
    is_leaf: bool = False


Tree = Union[Node, Leaf, SharedContainer, ArgumentRef]


@dataclass(frozen=True)
class TreeDef:
    """A nest without its tensors. Two are equal if one program can serve both."""

    slots: tuple[Slot, ...]
    tree: Tree

    def unflatten(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Return the nest with ``tensors`` in it."""
        return Unflattener(self.slots, tensors).build(self.tree)

    @property
    def static_leaves(self) -> list[Any]:
        """The leaves of the nest that are no tensors."""
        return [slot.value for slot in self.slots if isinstance(slot, Static)]

    def paths(self, parameters: Sequence[str] = ()) -> list[str]:
        """Return the path of each tensor in ``(args, kwargs)``, such as ``params[0]``.

        ``parameters`` are the names of positional parameters.
        """
        leaves = self.leaf_paths(parameters)
        return [path for path, slot in zip(leaves, self.slots) for _ in range(slot.count)]

    def leaf_paths(self, parameters: Sequence[str] = ()) -> list[str]:
        """Return the path of each leaf in ``(args, kwargs)``."""
        return [path for node, path in self._places(parameters) if isinstance(node, Leaf)]

    def container_paths(self, parameters: Sequence[str] = ()) -> list[str]:
        """Return the path of each mutable container in ``(args, kwargs)``."""
        paths = []
        for node, path in self._places(parameters):
            if isinstance(node, Node) and node.number is not None:
                paths.append(path)
        return paths

    def _places(self, parameters: Sequence[str]) -> Iterator[tuple[Tree, str]]:
        args, kwargs = _children(self.tree)
        for number, node in enumerate(_children(args)):
            yield from _places(
                node, parameters[number] if number < len(parameters) else f"argument {number}"
            )
        names = kwargs.names[0] if isinstance(kwargs, Node) else ()
        for name, node in zip(names, _children(kwargs)):
            yield from _places(node, name)


@dataclass(frozen=True, eq=False)
class FlatCall:
    """A flattened nest: its tensors, its TreeDef, and its leaves and containers themselves."""

    tensors: list[tf.Tensor]
    treedef: TreeDef
    leaves: list[Any]
    containers: list[Any]


class Flattener:
    """Flattens nests; containers and leaves that are ``given`` stay references, by identity.

    With ``refuses_arrays``, arrays that no tensor can hold raise; else they are leaves like other
    objects.
    """

    def __init__(
        self, given: dict[int, ArgumentRef] | None = None, *, refuses_arrays: bool = True
    ) -> None:
        self._refuses_arrays = refuses_arrays
        self.tensors: list[tf.Tensor] = []
        self.slots: list[Slot] = []
        self.leaves: list[Any] = []
        self.containers: list[Any] = []
        self.given = given or {}
        self._numbers: dict[int, int] = {}
        self._in_object = False

    def tree(self, value: Any) -> Tree:
        """Return the tree of ``value``."""
        if id(value) in self.given:
            return self.given[id(value)]
        if isinstance(value, (tf.Tensor, np.ndarray, np.generic)) or is_composite(value):
            return self._leaf(value)
        kind = kind_of(value)
        if kind is None:
            return self._leaf(value)
        if not kind.is_mutable:
            return self.node(kind, value, None)
        if id(value) in self._numbers:
            return SharedContainer(self._numbers[id(value)])
        number = self._numbers[id(value)] = len(self.containers)
        self.containers.append(value)
        return self.node(kind, value, number)

    def node(self, kind: Kind, value: Any, number: int | None) -> Node:
        """Return the tree of the contents of a container."""
        names, children = kind.parts(value)
        outer, self._in_object = self._in_object, self._in_object or kind is OBJECT
        trees = tuple(map(self.tree, children))
        self._in_object = outer
        return Node(kind, type(value), names, trees, number)

    def _leaf(self, leaf: Any) -> Leaf:
        is_array = isinstance(leaf, (np.ndarray, np.generic))
        is_stale = self._in_object and isinstance(leaf, tf.Tensor) and not is_known_here(leaf)
        # An object may hold an unused tensor.
        if is_stale:
            self.slots.append(Static(IdentityKey(leaf), leaf, in_object=True))
        elif isinstance(leaf, np.bool_) or (is_array and self._in_object):
            # Python asks for the truth of the first, as of True, and computes with the second.
            self.slots.append(Static(_array_key(leaf), leaf, self._in_object))
        elif is_array and not self._refuses_arrays and not _is_held_by_tensors(leaf):
            self.slots.append(Static(IdentityKey(leaf), leaf))
        elif isinstance(leaf, (tf.Tensor, np.ndarray, np.generic)):
            mask = mask_of(leaf)
            self.tensors += [_as_tensor(leaf)] if mask is None else [leaf, mask]
            self.slots.append(_Dense(mask is not None))
        elif is_composite(leaf) and not isinstance(leaf, tf.Variable):
            components = tf.nest.flatten(leaf, expand_composites=True)
            self.tensors += components
            self.slots.append(_Composite(tf.type_spec_from_value(leaf), len(components)))
        else:
            self.slots.append(Static(static_key(leaf), leaf, self._in_object))
        self.leaves.append(leaf)
        return Leaf(len(self.leaves) - 1)


class Unflattener:
    """Builds nests from ``slots`` with ``tensors`` in them, and from what was ``given``."""

    def __init__(
        self, slots: Sequence[Slot], tensors: Sequence[tf.Tensor], given: FlatCall | None = None
    ) -> None:
        self.leaves = []
        self.containers: dict[int, Any] = {}
        self._given = given
        start = 0
        for slot in slots:
            self.leaves.append(slot.fill(tensors[start : start + slot.count]))
            start += slot.count

    def build(self, tree: Tree) -> Any:
        """Return the value of ``tree``."""
        if isinstance(tree, Leaf):
            return self.leaves[tree.slot]
        if isinstance(tree, SharedContainer):
            return self.containers[tree.number]
        if isinstance(tree, ArgumentRef):
            assert self._given is not None
            return (self._given.leaves if tree.is_leaf else self._given.containers)[tree.number]
        if tree.number is None:
            return tree.kind.make(tree.type, tree.names, [*map(self.build, tree.children)])
        made = self.containers[tree.number] = tree.kind.make(tree.type, tree.names, ())
        tree.kind.fill(made, tree.names, [*map(self.build, tree.children)])
        return made


def flatten_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> FlatCall:
    """Flatten the arguments of a call, as ``(args, kwargs)``; see ``argument_checks``."""
    walk = Flattener(refuses_arrays=False)
    tree = walk.tree((tuple(args), types.MappingProxyType(dict(kwargs))))
    return FlatCall(walk.tensors, TreeDef(tuple(walk.slots), tree), walk.leaves, walk.containers)


def _places(tree: Tree, path: str) -> Iterator[tuple[Tree, str]]:
    yield tree, path
    if isinstance(tree, Node):
        for number, child in enumerate(tree.children):
            yield from _places(child, path + tree.kind.step(tree.names, number))


def _children(tree: Tree) -> tuple[Tree, ...]:
    return tree.children if isinstance(tree, Node) else ()


def _as_tensor(leaf: Any) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"a checkpointed function returned a NumPy array of {leaf.dtype}, {leaf!r:.60}, which "
            f"no tensor can hold: return its elements as a list or a tuple"
        ) from error


def _is_held_by_tensors(array: Any) -> bool:
    if not (array.dtype.hasobject or array.dtype.kind == "V"):
        return True
    try:
        tf.convert_to_tensor(array)
    except (TypeError, ValueError):
        return False
    return True


def is_known_here(tensor: tf.Tensor) -> bool:
    """Whether ``tensor`` has a value, or belongs to a graph under construction."""
    if is_eager(tensor):
        return True
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None and graph is not tensor.graph:
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def _array_key(array: Any) -> Any:
    """Return a key that is equal for equal small arrays; a large array equals itself only."""
    if array.nbytes > _SMALL_BYTES or array.dtype.hasobject:
        return IdentityKey(array)
    return type(array), array.dtype.str, array.shape, array.tobytes()


def static_key(leaf: Any) -> Any:
    """Return a key that compares ``leaf``, which is no tensor, by value if it can.

    Else the key compares it by identity.
    """
    if leaf is None or isinstance(leaf, (bool, int, str, bytes)):
        return type(leaf), leaf
    if isinstance(leaf, (float, complex, slice, tf.TensorShape)):
        return type(leaf), repr(
            leaf
        )  # unlike the values themselves, nan is nan and -0.0 is not 0.0
    if isinstance(leaf, _VALUES):
        return type(leaf), leaf
    return IdentityKey(leaf)
