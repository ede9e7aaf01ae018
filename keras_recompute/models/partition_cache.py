"""Sections that differ in nothing but their variables share one trace, one gradient and one partition.

To trace and to differentiate takes most of the time in which a step is prepared. Blocks of a deep model are alike: the same
kinds of layers, with the same configurations, on the same shapes. What was made for the first of them is written for the others
with their variables in place of its own, and with the names of their layers. Unlike ``isomorphic_layers``, which become one
loop, they may draw random numbers and keep statistics. Loops over such blocks share what one turn does, where several have
one each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import keras

from ..engine.partition import Partition
from ..engine.renames import Renames
from ..seams.keras.layers import layers_in, variable_of
from .aside import Aside
from .fingerprint import attribute_fingerprint
from .graph import Call, Key, Ref
from .section_loops import SectionLoop
from .sections import Section

_PACKAGES = ("keras", "keras_recompute", "keras_hub")  # whose layers do what they hold, whatever they are called
_CONSTANTS = (type(None), bool, int, float, str, slice)


class PartitionCache:
    """The partitions that were made of one model, for sections and loops that are like those they were made of."""

    def __init__(self) -> None:
        self._known: defaultdict[Any, list[tuple[Any, Section | SectionLoop, Partition, Aside]]] = defaultdict(list)

    def get(
        self, step: Section | SectionLoop, key: Any, make: Callable[[], tuple[Partition, Aside]]
    ) -> tuple[Partition, Aside]:
        """Return ``make()``, or what it was for a step like this one; ``key`` are what else it depends on.

        A loop is like one over twins of its sections.
        """
        form = None if step.inside else _form_of_loop(step) if isinstance(step, SectionLoop) else _form(step)
        if form is None:
            return make()
        known = self._known[key]
        for form_of_first, first, part, aside in known:
            found = _for_another(part, first, step) if form_of_first == form else None
            if found is not None:
                return found, aside
        part, aside = make()
        if not aside.leaves_losses:
            known.append((form, step, part, aside))
        return part, aside


def _form_of_loop(run: SectionLoop) -> Any:
    """Return what its sections are equal in, which layers are given the weights of others, and which values leave a section."""
    operations = [call.operation for call in run.calls]
    made = [key for call in run.calls for key in call.outputs]
    twins = [operations.index(layers[0]) for layers in run.twins]
    return run.form, twins, [made.index(key) for key in run.returns]


def _form(section: Section) -> Any:
    """Return what sections that are alike are equal in; None for one that is like no other, as far as is known."""
    operations = [call.operation for call in section.calls]
    number: dict[Key, int] = {key: n for n, key in enumerate(section.inputs)}
    calls = []
    for call in section.calls:
        kind = _kind(call.operation)
        arguments = [_value(leaf, number) for leaf in keras.tree.flatten((call.args, call.kwargs))]
        if kind is None or None in arguments:
            return None
        names = repr(keras.tree.map_structure(lambda _: 0, (call.args, call.kwargs)))
        calls.append((operations.index(call.operation), kind, names, tuple(arguments)))
        for key in call.outputs:
            number[key] = len(number)
    return tuple(calls), tuple(number[key] for key in section.outputs)


def _value(leaf: Any, number: dict[Key, int]) -> Any:
    if isinstance(leaf, Ref):
        return "value", number[leaf.key]
    return ("constant", repr(leaf)) if isinstance(leaf, _CONSTANTS) else None


def _kind(operation: Any) -> Any:
    """Return what ``operation`` is and holds; None for one of which that does not say all."""
    inside = layers_in(operation) if isinstance(operation, keras.layers.Layer) else [operation]
    if any(type(each).__module__.split(".")[0] not in _PACKAGES or isinstance(each, keras.Model) for each in inside):
        return None
    variables = getattr(operation, "variables", ())
    return _held(operation), tuple((tuple(v.shape), v.dtype, v.trainable) for v in variables)


def _held(operation: keras.Operation) -> Any:
    return type(operation), attribute_fingerprint(operation, _held)


def _for_another(part: Partition, first: Section | SectionLoop, step: Section | SectionLoop) -> Partition | None:
    """Return ``part``, which was made of ``first``, for ``step``; None where it holds a variable of nobody's."""
    pairs = list(dict.fromkeys(zip(_layers(first.calls), _layers(step.calls))))
    both = [(variable_of(a), variable_of(b)) for one, other in pairs for a, b in zip(one.variables, other.variables)]
    variables = {id(a): b for a, b in both}
    trace = part.joint.trace
    handles = {id(a.handle): b.handle for a, b in both}
    known = all(id(v) in variables for v in trace.variables) and all(id(external) in handles for _, external in trace.handles)
    if trace.captures or not known:
        return None
    names = {a.name: b.name for one, other in pairs for a, b in zip(layers_in(one), layers_in(other))}
    names.update((a.operation.name, b.operation.name) for a, b in zip(first.calls, step.calls))
    return part.standing_for([variables[id(v)] for v in trace.variables], handles, Renames(names))


def _layers(calls: Sequence[Call]) -> list[keras.layers.Layer]:
    return [call.operation for call in calls if isinstance(call.operation, keras.layers.Layer)]
