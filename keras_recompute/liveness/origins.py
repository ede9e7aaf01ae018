"""Phase, section and layer of an operation in a compiled program, from its name.

A name is a path of scopes that ends in the operation. The scopes of ``op_names`` give phase and
section. Between them and the operation are the layers, mixed with scopes that TensorFlow opens
itself (loops, gradients), which are left out. A layer stays a path, ``"net/lstm"``, so that layers
of the same name in different models stay apart.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import AbstractSet, Iterable

from ..op_names import BACKWARD, FORWARD, RECOMPUTE, UPDATE, parse_op_name

# Scopes of the pass that an operation belongs to, which name no layer.
_ORIGIN = re.compile(
    r"(?:^|(?<=/))(?:recomputation\.[a-z]+(?:\.[^/]*)?|(?:gradients|gradient_tape)(?:_\d+)?)/"
)
# Scopes that TensorFlow, Keras and the engine open for loops, branches and random numbers.
_PLUMBING = re.compile(
    r"(?:while|cond|branch(?:_\d+_fun)?|body|closed_call|checkpoint|stash|microbatch|again|alone"
    r"|passed_on|output_gradients|stateless_dropout|stateless_random_[a-z]+)(?:_\d+)?\Z"
)
_UNIQUE = re.compile(r"_\d+\Z")


@dataclass(frozen=True)
class Origin:
    """Phase, section and layer that a step or buffer comes from; None if unknown."""

    op_name: str | None = None
    phase: str | None = None
    section: str | None = None
    layer: str | None = None


@dataclass(frozen=True)
class Names:
    """Names of layers and optimisers that are known before a program is read.

    ``layers`` has the scopes of layers, ``roots`` the first scopes of layers' paths. If they
    are ``complete``, no other scope is a layer. Otherwise any scope may be one that is not known to
    be something else. ``weights`` has the paths of weights, which copies of them are called by.
    Scopes are ``numbered`` where TensorFlow adds numbers to scopes that are opened again.
    """

    layers: AbstractSet[str] = frozenset()
    roots: AbstractSet[str] = frozenset()
    optimisers: AbstractSet[str] = frozenset()
    complete: bool = False
    weights: AbstractSet[str] = frozenset()
    numbered: bool = True

    @staticmethod
    def of_variables(
        weights: Iterable[str],
        optimiser_state: Iterable[str],
        layers: Iterable[str] = (),
        *,
        numbered: bool = True,
    ) -> Names:
        """Return the names that follow from the paths of variables, such as ``"net/lstm/kernel"``.

        ``layers`` are the names of all layers of a model, if known.
        """
        paths = frozenset(weights)
        known = frozenset(layers)
        found: set[str] = set()
        roots: set[str] = set()
        for path in paths:
            scopes = path.split("/")[:-1]
            found.update(scopes)
            roots.update(scopes[:1])
        optimisers = frozenset(path.split("/")[0] for path in optimiser_state)
        return Names(
            layers=known or frozenset(found),
            roots=frozenset(roots),
            optimisers=optimisers,
            complete=bool(known),
            weights=paths,
            numbered=numbered,
        )

    def origin(
        self,
        op_name: str | None,
        caller: Origin | None = None,
        *,
        inside: str | None = None,
        before: str | None = None,
    ) -> Origin:
        """Return the origin of an operation called ``op_name``.

        ``caller`` is the origin of the enclosing loop or branch. Its scopes count where the
        operation has none of its own, because TensorFlow renames the operations of a loop's body.
        An unmarked operation has the phase ``inside`` of that body. Without one, and in no layer,
        it has the phase ``before`` it in the schedule, since it prepares or stores something for
        its neighbours.
        """
        outer = caller.op_name if caller else None
        path = "/".join(filter(None, (outer, op_name)))
        phase, section = parse_op_name(path)
        layer = (self.layer(op_name) if op_name else None) or (caller.layer if caller else None)
        if phase == FORWARD and section is None:
            phase = (
                UPDATE
                if self.is_update(op_name)
                else inside or (before if before and not layer else FORWARD)
            )
        return Origin(op_name or None, phase, section, layer)

    def is_marked(self, op_name: str | None) -> bool:
        """Return whether the name alone says that the operation is not a plain forward one."""
        return bool(op_name) and parse_op_name(op_name or "") != (FORWARD, None)

    def is_update(self, op_name: str | None) -> bool:
        """Return whether the operation is in the scope of a known optimiser."""
        return (
            bool(op_name) and self._known(str(op_name).split("/")[0], self.optimisers) is not None
        )

    def variable_layer(self, path: str | None) -> str | None:
        """Return the layer path of a variable, or None for one of no layer, such as a metric's."""
        return (
            None
            if path is None or (self.complete and not set(path.split("/")) <= self.layers)
            else path
        )

    def layer(self, op_name: str) -> str | None:
        """Return the layer path of an operation name, or None.

        ``"gradient_tape/net_1/lstm/while/mul"`` gives ``"net/lstm"``.
        """
        # An optimiser's scope names its own variables, and no layer.
        if self.is_update(op_name):
            return None
        # Not a scope that Keras has opened: a number in it belongs to the layer.
        if op_name in self.weights:
            return self.variable_layer(op_name.rpartition("/")[0] or None)
        scopes = op_name.rsplit("/", 1)[0] if "/" in op_name else ""
        # The innermost part that names a layer, since a gradient within a loop repeats the loop's
        # path.
        for part in reversed(_ORIGIN.split(f"{scopes}/")):
            kept: list[str] = []
            for scope in part.split("/"):
                known = self._known(scope, self.layers)
                if self.complete and not known:
                    continue
                # A capitalised scope is an operation that consists of several, such as
                # "MatMul/ReadVariableOp".
                if known or not (
                    _PLUMBING.match(scope)
                    or scope.endswith("_grad")
                    or scope[:1].isupper()
                    or not scope
                ):
                    # Scopes before a root are the model's own, which is not in the paths of its
                    # variables.
                    is_start = known in self.roots or kept[:1] == [known or scope]
                    kept = [known or scope] if is_start else [*kept, known or scope]
            if kept:
                path = "/".join(kept)
                return self._whole_paths.get(path, path)
        return None

    @functools.cached_property
    def _whole_paths(self) -> Mapping[str, str]:
        """The full paths of layers with weights, by shorter ends that only one path has.

        The weights of a Sequential have its name in front, as in "net/dense/kernel". The operations
        of its layers do not in sections and on JAX: "dense/MatMul".
        """
        layers: set[str] = set()
        for weight in self.weights:
            scopes = weight.split("/")[:-1]
            for end in range(1, len(scopes) + 1):
                layers.add("/".join(scopes[:end]))
        whole: dict[str, str | None] = {}
        for layer in layers:
            scopes = layer.split("/")
            for begin in range(1, len(scopes)):
                end_of_path = "/".join(scopes[begin:])
                is_first = end_of_path not in whole and end_of_path not in layers
                whole[end_of_path] = layer if is_first else None
        return {end: layer for end, layer in whole.items() if layer}

    def _known(self, scope: str, among: AbstractSet[str]) -> str | None:
        """Return ``scope`` without the number that makes a reopened scope unique, if it is known.

        Keras opens a layer's scope to build it and again to call it. So the operations of ``dense``
        are in ``dense_1``, and those of ``dense_1`` in ``dense_1_2``: a name without its number is
        tried first.
        """
        bare = _UNIQUE.sub("", scope) if self.numbered else scope
        return bare if bare in among else scope if scope in among else None


def default_phase(phases: Iterable[str | None]) -> str | None:
    """Return the phase of unmarked operations in a body whose marked ones have ``phases``.

    A body that replays or back-propagates is a backward one: its unmarked operations slice,
    accumulate and store for it. A body that only goes forward is a forward one. A body that does
    both, such as the loop over microbatches, has no phase of its own.
    """
    found = set(phases)
    backward, forward = bool(found & {RECOMPUTE, BACKWARD}), FORWARD in found
    return None if backward == forward else BACKWARD if backward else FORWARD


def default_section(marks: Iterable[tuple[str | None, str | None]]) -> str | None:
    """Return the section of unmarked operations in a loop or branch, given (phase, section) marks.

    It is the one section of all marked operations. A loop that goes forward and backward has none.
    """
    stated = set(marks)
    sections = {section for _, section in stated}
    return (
        sections.pop()
        if len(sections) == 1 and default_phase(phase for phase, _ in stated)
        else None
    )
