"""Equal sections share one trace, one gradient and one partition.

To trace and to differentiate takes most of the time in which a step is prepared. Blocks of a deep
model have the same structure on the same shapes. What was made for the first of them is written
for the others with their variables in place of its own, and with the names of their layers. Unlike
sections that become one loop, they may draw random numbers and keep statistics. Loops over such
blocks share what one turn does, where several sections have one each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import keras

from ...engine import Partition
from ...seams.keras.layers import backend_variable, layers_in
from ..keras_graph.call_graph import keys_made, operations_of, positions_of
from ..keras_graph.fingerprint import Fingerprint, Fingerprints, calls_key
from ..keras_graph.section_loops import SectionLoop
from ..keras_graph.sections import Section
from .side_outputs import SideOutputs

Step = Section | SectionLoop
Traced = tuple[Partition, SideOutputs]


@dataclass(frozen=True)
class _Entry:
    fingerprint: Hashable
    step: Step
    partition: Partition
    side_outputs: SideOutputs


class PartitionCache:
    """The partitions of one model, for one way to call it."""

    def __init__(self) -> None:
        self._entries: defaultdict[Hashable, list[_Entry]] = defaultdict(list)
        self._fingerprints = Fingerprints()
        # Called eagerly, a model runs the same steps at every call.
        self._of_steps: dict[Hashable, tuple[Step, Traced]] = {}
        # Whether recurrent layers keep one state per section of time.
        self.is_cut_in_time = False

    def recomputed(self) -> list[Partition]:
        """Return the partitions of the steps that are recomputed, one each."""
        return [partition for step, partition in self.traced() if step.recomputed]

    def traced(self) -> list[tuple[Step, Partition]]:
        """Return the steps with their partitions, in the order in which they ran."""
        return [(step, partition) for step, (partition, _) in self._of_steps.values()]

    def get(self, step: Step, key: Hashable, build: Callable[[], Traced]) -> Traced:
        """Return the partition of an equal step, rebound to the variables of this one.

        Calls ``build`` on a miss. ``key`` holds what a partition depends on beside the step: the
        signature of its inputs, the policy, and which inputs need no gradient.
        """
        known = id(step), key
        if known not in self._of_steps:
            # With the step itself, so that no other object gets its identity.
            self._of_steps[known] = step, self._shared(step, key, build)
        return self._of_steps[known][1]

    def _shared(self, step: Step, key: Hashable, build: Callable[[], Traced]) -> Traced:
        fingerprint = self._fingerprint(step)
        if fingerprint is None:
            return build()

        for entry in self._entries[key]:
            if entry.fingerprint != fingerprint:
                continue
            pairs = zip(operations_of(entry.step.calls), operations_of(step.calls))
            found = rebound(entry.partition, pairs)
            if found is not None:
                return found, entry.side_outputs

        partition, side_outputs = build()
        # Losses and new values belong to their layers, so such a step cannot stand for another.
        if not side_outputs.leaves_state:
            self._entries[key].append(_Entry(fingerprint, step, partition, side_outputs))
        return partition, side_outputs

    def _fingerprint(self, step: Step) -> Hashable:
        """Return what equal steps are equal in; None where each is traced by itself."""
        if step.inner_steps:
            return None
        if isinstance(step, SectionLoop):
            return _loop_key(step)
        found = list(map(self._fingerprints.of, operations_of(step.calls)))
        if not all(map(may_be_shared, found)):
            return None
        return _section_key(step, self._fingerprints)


def may_be_shared(found: Fingerprint) -> bool:
    """Whether what was traced of the operation of this fingerprint may stand for an equal one."""
    # The Python code of a user's class may do more than compute: print, count, keep a record. It
    # runs once for each layer, as it does in the plain model.
    has_model = any(isinstance(each, keras.Model) for each in found.objects)
    return found.is_known and not has_model


def _section_key(section: Section, fingerprints: Fingerprints) -> Hashable:
    number = positions_of(section.inputs)
    for call in section.calls:
        for key in call.outputs:
            number[key] = len(number)
    calls = calls_key(section.calls, number.__getitem__, fingerprints.of)
    return calls, tuple(map(number.__getitem__, section.outputs))


def _loop_key(loop: SectionLoop) -> Hashable:
    """Return a key that is equal for equal loops.

    It has what the sections are equal in, the layers that are given the weights of others, and the
    values that leave a section.
    """
    operations = operations_of(loop.calls)
    made = keys_made(loop.calls)
    substituted = tuple(operations.index(layers[0]) for layers in loop.isomorphic)
    return loop.key, substituted, tuple(map(made.index, loop.returns))


def rebound(
    partition: Partition, pairs: Iterable[tuple[keras.Operation, keras.Operation]]
) -> Partition | None:
    """Return ``partition``, which was made of the first of each of the ``pairs``, for the second.

    None where it reads a tensor, or a variable that neither has.
    """
    variables: dict[int, Any] = {}
    names: dict[str, str] = {}
    for one, other in dict.fromkeys(pairs):
        names[one.name] = other.name
        if not isinstance(one, keras.layers.Layer):
            continue
        for a, b in zip(one.variables, other.variables):
            variables[id(backend_variable(a))] = backend_variable(b)
        for a, b in zip(layers_in(one), layers_in(other)):
            names[a.name] = b.name
    trace = partition.joint.trace
    if trace.captures:
        return None
    replaced = []
    for variable in trace.variables:
        if id(variable) not in variables:
            return None
        replaced.append(variables[id(variable)])
    handles = {id(variable.handle) for variable in trace.variables}
    if not all(id(handle) in handles for _, handle in trace.handles):
        return None
    return partition.rebound_to(replaced, names)
