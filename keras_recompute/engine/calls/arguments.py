"""Arguments that a function changes: lists, dicts, sets and objects come back changed.

The function is traced once, on copies of the containers that it is given. What it puts into them is
a result of the program, like what it returns. Every call then puts these results into the caller's
own containers.

Source: "functionalization" in PyTorch, which does this for tensors that are written in place.
"""

from __future__ import annotations

import array
import contextlib
import dis
import random
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ...errors import InvalidArgumentError
from .call_signature import (
    ArgumentRef,
    FlatCall,
    Flattener,
    Leaf,
    Node,
    Slot,
    Static,
    Tree,
    Unflattener,
)
from .containers import OBJECT, Kind

Contents = tuple[Any, list[Any]]  # what ``Kind.parts`` returns
_NOTHING = object()


class Arguments:
    """The arguments on which a function is traced.

    ``value`` has ``tensors`` in place of the given ones. Lists, dicts and objects in it are copies,
    so that the caller's stay unchanged while the function is traced. An object without tensors and
    containers is the caller's own, because its identity may matter; ``results`` restores it.
    """

    def __init__(
        self,
        given: FlatCall,
        tensors: Sequence[tf.Tensor],
        *,
        function: str,
        parameters: Sequence[str],
    ) -> None:
        self._given = given
        self._function, self._parameters = function, parameters
        self._nodes = dict(_numbered(given.treedef.tree))
        unflattener = Unflattener(given.treedef.slots, tensors)
        for number, node in self._nodes.items():
            if node.kind is OBJECT and self._is_plain(node):
                unflattener.containers[number] = given.containers[number]
        self.value = unflattener.build(given.treedef.tree)
        self._containers, self._leaves = unflattener.containers, unflattener.leaves
        self._before = self._contents()
        self._states = list(map(_state, given.leaves))
        self._in_bodies: list[tuple[int, dict[str, Any], dict[str, Any]]] = []

    def _is_plain(self, node: Node) -> bool:
        slots = self._given.treedef.slots
        return all(
            isinstance(child, Leaf) and isinstance(slots[child.slot], Static)
            for child in node.children
        )

    def _contents(self) -> dict[int, Contents]:
        return {
            number: node.kind.parts(self._containers[number])
            for number, node in self._nodes.items()
        }

    @contextlib.contextmanager
    def body(self) -> Iterator[None]:
        """Note inside what a branch or a loop changes while it is traced."""
        before = self._contents()
        yield
        for number, now in self._contents().items():
            if not _is_same(before[number], now):
                kind = self._nodes[number].kind
                self._in_bodies.append(
                    (number, _by_step(kind, before[number]), _by_step(kind, now))
                )

    def results(self, returned: Any) -> tuple[list[tf.Tensor], Results]:
        """Return the tensors that a program returns, and how results are built of them.

        The results are what the function returned, and what it changed. Changes of the caller's own
        objects are undone. Raises InvalidArgumentError for a change that no program can repeat at
        each call.
        """
        now = self._contents()
        self._refuse_bodies(now)
        self._refuse_states()
        walk = Flattener(
            {id(value): ArgumentRef(number) for number, value in self._containers.items()}
        )
        tree = walk.tree(returned)
        # A tensor that was given and is put into a container is there the caller's own.
        for number, leaf in enumerate(self._leaves):
            if isinstance(leaf, tf.Tensor):
                walk.given[id(leaf)] = ArgumentRef(number, is_leaf=True)
        changes = []
        for number, node in self._nodes.items():
            if _is_same(self._before[number], now[number]):
                continue
            changes.append((number, walk.node(node.kind, self._containers[number], None)))
            if self._containers[number] is self._given.containers[number]:
                node.kind.fill(self._containers[number], *self._before[number])
        return walk.tensors, Results(tuple(walk.slots), tree, tuple(changes))

    def explained(self, error: TypeError | ValueError) -> Exception:
        """Return the exception to raise for ``error``.

        It is another one if the function wrote into an array that it was given, or reads what a
        branch or a loop left in an argument.
        """
        if "is out of scope" in str(error):
            try:
                self._refuse_bodies(self._contents())
            except InvalidArgumentError as refusal:
                return refusal
        arrays = self._arrays()
        if not arrays or "does not support item assignment" not in str(error):
            return error
        return self._writes_into(arrays)

    def refuse_augmented(self, function: Any) -> None:
        """Raise InvalidArgumentError if ``function`` writes into an array by ``+=`` or the like.

        The array is a tensor in the program. There ``+=`` only gives the name to another tensor.
        """
        code = getattr(function, "__code__", None)
        assigned = [] if code is None else [a for a in self._arrays() if a in _augmented(code)]
        if assigned:
            raise self._writes_into(assigned)

    def _arrays(self) -> list[str]:
        paths = self._given.treedef.leaf_paths(self._parameters)
        return [
            path for path, leaf in zip(paths, self._given.leaves) if isinstance(leaf, np.ndarray)
        ]

    def _writes_into(self, arrays: Sequence[str]) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._function!r} writes into a NumPy array that it is given ({', '.join(arrays)}), "
            "which is a tensor in a checkpointed function and cannot be written. Return the new "
            "values, such as those of tf.tensor_scatter_nd_update or tf.where, and write the "
            "array outside."
        )

    def _refuse_bodies(self, now: dict[int, Contents]) -> None:
        """Raise for a change of a container that was made inside a branch or a loop.

        The branch may not be taken, and the loop may run often. What AutoGraph makes a result of
        the branch is no such change.
        """
        for number, before, left in self._in_bodies:
            found = _by_step(self._nodes[number].kind, now[number])
            stays = [
                step
                for step in left
                if left[step] is not before.get(step, _NOTHING) and found.get(step) is left[step]
            ]
            gone = [step for step in before if step not in left and step not in found]
            for step in (*stays, *gone):
                path = self._given.treedef.container_paths(self._parameters)[number]
                raise InvalidArgumentError(
                    f"{self._function!r} changes its argument {path + step} inside a branch or a "
                    "loop on a tensor, or a tf.function: Python runs that once, whether it is "
                    "taken or not. Return the new value from there, as with tf.cond or tf.where. "
                    "Then change the argument, or return the value."
                )

    def _refuse_states(self) -> None:
        for number, (leaf, state) in enumerate(zip(self._given.leaves, self._states)):
            if _state(leaf) != state:
                path = self._given.treedef.leaf_paths(self._parameters)[number]
                raise InvalidArgumentError(
                    f"{self._function!r} changes its argument {path}, a {type(leaf).__name__}, and "
                    "later calls would not, because Python runs a checkpointed function once per "
                    "signature. Change it outside and pass the result as a tensor, or return it."
                )


@dataclass(frozen=True, eq=False)
class Results:
    """The layout of a function's results and of the changes of its arguments."""

    slots: tuple[Slot, ...]
    tree: Tree
    changes: tuple[tuple[int, Node], ...]

    @property
    def static_keys(self) -> list[Any]:
        """Keys of the results that are no tensors."""
        return [slot.key for slot in self.slots if isinstance(slot, Static)]

    def unflatten(self, tensors: Sequence[tf.Tensor], given: FlatCall) -> Any:
        """Return what was returned, with ``tensors`` in it, and change what was ``given``."""
        unflattener = Unflattener(self.slots, tensors, given)
        returned = unflattener.build(self.tree)
        found = [[*map(unflattener.build, node.children)] for _, node in self.changes]
        for (number, node), children in zip(self.changes, found):
            node.kind.fill(given.containers[number], node.names, children)
        return returned


def _augmented(code: types.CodeType) -> set[str]:
    """Return the local names in ``code`` that an augmented assignment such as ``+=`` assigns."""
    found = set()
    operation = None
    for instruction in dis.get_instructions(code):
        if operation is not None and instruction.opname == "STORE_FAST":
            found.add(instruction.argval)
        # Python 3.10 has an instruction for each operator, later ones name it.
        is_binary = instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("=")
        operation = instruction if is_binary or instruction.opname.startswith("INPLACE_") else None
    return found


def _numbered(tree: Tree) -> Iterator[tuple[int, Node]]:
    if isinstance(tree, Node):
        if tree.number is not None:
            yield tree.number, tree
        for child in tree.children:
            yield from _numbered(child)


def _is_same(before: Contents, now: Contents) -> bool:
    return before[0] == now[0] and [*map(id, before[1])] == [*map(id, now[1])]


def _by_step(kind: Kind, contents: Contents) -> dict[str, Any]:
    names, children = contents
    return {kind.step(names, number): child for number, child in enumerate(children)}


def _state(leaf: Any) -> Any:
    """Return what differs once ``leaf``, which is no container, was changed in place.

    None for types whose changes cannot be seen.
    """
    if isinstance(leaf, random.Random):
        return leaf.getstate()
    if isinstance(leaf, np.random.RandomState):
        return repr(leaf.get_state(legacy=False))
    if isinstance(leaf, np.random.Generator):
        return repr(leaf.bit_generator.state)
    if isinstance(leaf, (bytearray, array.array)):
        return bytes(leaf)
    return leaf.tobytes() if isinstance(leaf, np.ndarray) else None
