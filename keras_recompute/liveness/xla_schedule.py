"""The order in which XLA runs a program's instructions, and the origin of each.

With ``xla_reader`` the only module that knows XLA's format. Reads the module's messages without
importing their classes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any, Callable, Collection, Mapping, Sequence

from ..op_names import BACKWARD, FORWARD, RECOMPUTE, UPDATE
from .origins import Names, Origin, default_phase, default_section
from .parameters import Parameter

# Instructions without code of their own: they rename, group or select values.
_NO_CODE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
)
# Instructions that only pass on or clear storage, and so do not say what it is for.
_PASSES_ON = _NO_CODE | {"while", "conditional", "call", "copy", "broadcast"}
_NO_OP_NAMES = frozenset({"", "XLA_Args", "XLA_Retvals"})
_NEAREST = 64  # instructions looked at for a layer: a sum or a store has its values close by


class Schedule:
    """The instructions of a module in the order of XLA's allocator, each with its origin.

    ``origins`` has the origin of every scheduled instruction, by instruction id.
    """

    def __init__(self, module: Any, names: Names, parameters: Mapping[int, Parameter]):
        self.module, self.names, self.parameters = module, names, parameters
        self.computations: dict[int, Any] = {}
        self.instructions: dict[int, Any] = {}
        self.home: dict[int, int] = {}  # the computation that an instruction is in
        for computation in module.computations:
            self.computations[computation.id] = computation
            for instruction in computation.instructions:
                self.instructions[instruction.id] = instruction
                self.home[instruction.id] = computation.id
        self.origins: dict[int, Origin] = {}
        self.order: list[Any] = []
        self.callers: dict[int, Any] = {}  # the loop that runs a computation
        self.users: dict[int, list[int]] = {}
        for instruction in self.instructions.values():
            for operand in instruction.operand_ids:
                self.users.setdefault(operand, []).append(instruction.id)
        self._before: str | None = None
        self._marked: dict[int, frozenset[tuple[str | None, str | None]]] = {}
        self._walk(self.computations[module.entry_computation_id], None, None, None, set())

    def steps(self, allocating: Collection[int]) -> tuple[list[Any], dict[int, int]]:
        """Return the steps, and for each scheduled instruction the step at or after it.

        Steps are the instructions that compute or are in ``allocating``.
        """
        steps: list[Any] = []
        step_of: dict[int, int] = {}
        for instruction in self.order:
            step_of[instruction.id] = len(steps)
            if instruction.opcode not in _NO_CODE or instruction.id in allocating:
                steps.append(instruction)
        last = max(len(steps) - 1, 0)
        return steps, {number: min(step, last) for number, step in step_of.items()}

    def writers(self, makers: Sequence[Any], step_of: Mapping[int, int]) -> list[tuple[int, Any]]:
        """Return which instruction fills storage from which step on.

        ``makers`` are the instructions that make the values in the storage, in order; it passes
        from one to the next in place. Each computed value starts a range. A loop that computes into
        the storage starts one at its beginning, named after the last instruction that computes
        inside: the zeros or copies that its result starts from belong to the loop.
        """
        found: list[tuple[int, Any]] = []
        # Values of the same computation as the first maker are outside of loops, others inside.
        for outside, run in groupby(
            makers, key=lambda i: self.home[i.id] == self.home[makers[0].id]
        ):
            inside = list(run)
            computing = [i for i in inside if self._root_opcode(i) not in _PASSES_ON]
            if outside:
                for maker in computing:
                    found.append((step_of.get(maker.id, 0), maker))
            elif computing:
                found.append((step_of.get(inside[0].id, 0), computing[-1]))
        return found or [(0, makers[0])]

    def _root_opcode(self, instruction: Any) -> str:
        """Return the opcode of an instruction; for a fusion, of its root."""
        if instruction.opcode != "fusion" or not instruction.called_computation_ids:
            return instruction.opcode
        return self.instructions[
            self.computations[instruction.called_computation_ids[0]].root_id
        ].opcode

    def nearest_layer(self, instruction: Any) -> str | None:
        """Return the layer of the values that ``instruction``, itself in no layer, sums or stores.

        If they are in none, as those of a counter, it is the layer that reads the result.
        """
        return self._nearest(instruction, self._sources) or self._nearest(
            instruction, lambda i: self.users.get(i.id, ())
        )

    def _nearest(self, instruction: Any, next_to: Callable[[Any], Sequence[int]]) -> str | None:
        pending, seen = [instruction], {instruction.id}
        # Breadth first, so that the nearest layer is found.
        while pending and len(seen) < _NEAREST:
            current = pending.pop(0)
            layer = self._layer(current)
            if layer:
                return layer
            for number in next_to(current):
                if number not in seen:
                    seen.add(number)
                    pending.append(self.instructions[number])
        return None

    def _layer(self, instruction: Any) -> str | None:
        if self._is_entry_parameter(instruction):
            parameter = self.parameters.get(instruction.parameter_number)
            return self.names.variable_layer(parameter.layer) if parameter else None
        return self.origins.get(instruction.id, Origin()).layer

    def _is_entry_parameter(self, instruction: Any) -> bool:
        return (
            instruction.opcode == "parameter"
            and self.home[instruction.id] == self.module.entry_computation_id
        )

    def _sources(self, instruction: Any) -> Sequence[int]:
        """Return the ids of what ``instruction`` reads.

        A value that a loop passes to its body comes from the previous trip, or from the loop's
        operand. A value out of a branch comes from the branch.
        """
        if instruction.opcode == "get-tuple-element":
            giver = self.instructions[instruction.operand_ids[0]]
            if giver.opcode in ("conditional", "call"):
                found = []
                for called in giver.called_computation_ids:
                    root = self.instructions[self.computations[called].root_id]
                    found.append(_element(root, instruction.tuple_index))
                return found
            loop = self.callers.get(self.home[instruction.id])
            if (
                loop is not None
                and self.instructions[instruction.operand_ids[0]].opcode == "parameter"
            ):
                body = self.computations[loop.called_computation_ids[0]]
                of_trip, of_loop = body.root_id, loop.operand_ids[0]
                return [
                    _element(self.instructions[of_trip], instruction.tuple_index),
                    _element(self.instructions[of_loop], instruction.tuple_index),
                ]
        return instruction.operand_ids

    def _walk(
        self,
        computation: Any,
        caller: Origin | None,
        inside: str | None,
        section: str | None,
        seen: set[int],
    ) -> None:
        """Append the instructions of ``computation`` to the schedule in the allocator's order.

        ``inside`` and ``section`` are the phase and section of its unmarked instructions.
        """
        # A computation is scheduled at its first caller.
        if computation.id in seen:
            return
        seen.add(computation.id)
        numbers = self.module.schedule.sequences[computation.id].instruction_ids
        scheduled = map(self.instructions.__getitem__, numbers)
        # Parameters exist from the start, though some compilers schedule a loop's parameters later.
        for instruction in sorted(scheduled, key=lambda each: each.opcode != "parameter"):
            number = instruction.id
            called: list[Any] = []
            if instruction.opcode in ("while", "conditional", "call", "async-start"):
                called = list(
                    map(self.computations.__getitem__, instruction.called_computation_ids)
                )
            if instruction.opcode == "while":
                # The message lists body, condition; the allocator visits the condition first.
                called.reverse()
            marks = frozenset[tuple[str | None, str | None]]().union(*map(self.marks, called))
            marked = default_phase(phase for phase, _ in marks)
            body_section = default_section(marks) or section
            origin = self._origin(instruction, caller, marked or inside, body_section)
            # As for a loop that is itself replayed.
            own = origin.phase if self.names.is_marked(origin.op_name) else None
            body_phase = marked or own or inside
            self.origins[number] = origin
            for child in called:
                if instruction.opcode == "while":
                    self.callers[child.id] = instruction
                phase = body_phase or (origin.phase if origin.phase != FORWARD else None)
                self._walk(child, origin, phase, body_section, seen)
            self.order.append(instruction)

    def _origin(
        self, instruction: Any, caller: Origin | None, inside: str | None, section: str | None
    ) -> Origin:
        named = instruction.metadata.op_name not in _NO_OP_NAMES
        origin = self.names.origin(
            self._op_name(instruction), caller, inside=inside, before=self._before
        )
        if (
            origin.section is None
            and origin.phase != UPDATE
            and not self.names.is_marked(origin.op_name)
        ):
            origin = replace(origin, section=section)
        if not named and not self.names.is_marked(origin.op_name):
            # A copy is scheduled where it is needed, so it belongs to what follows.
            return replace(origin, phase=inside or self._before or origin.phase)
        if named and instruction.opcode not in _NO_CODE and origin.phase != UPDATE:
            # Unmarked operations are neither replays nor updates, since both are marked throughout.
            self._before = BACKWARD if origin.phase == RECOMPUTE else origin.phase
        return origin

    def marks(self, computation: Any) -> frozenset[tuple[str | None, str | None]]:
        """Return the (phase, section) pairs in the names of operations of ``computation``."""
        if computation.id not in self._marked:
            self._marked[computation.id] = frozenset()  # a damaged program may call in a circle
            marks = set()
            for instruction in computation.instructions:
                own = self.names.origin(instruction.metadata.op_name)
                if self.names.is_marked(own.op_name):
                    marks.add((own.phase, own.section))
                for called in instruction.called_computation_ids:
                    # TensorFlow renames the operations of a branch: their section is in the name of
                    # the branch.
                    for phase, section in self.marks(self.computations[called]):
                        marks.add((phase, section or own.section))
            self._marked[computation.id] = frozenset(marks)
        return self._marked[computation.id]

    def _op_name(self, instruction: Any) -> str | None:
        """Return the name of the operation of ``instruction``, or of what it reads."""
        seen: set[int] = set()
        while instruction.metadata.op_name in _NO_OP_NAMES and instruction.id not in seen:
            seen.add(instruction.id)
            if not instruction.operand_ids:
                known = (
                    self.parameters.get(instruction.parameter_number)
                    if self._is_entry_parameter(instruction)
                    else None
                )
                return known.name if known else None
            instruction = self.instructions[instruction.operand_ids[0]]
        return (
            None if instruction.metadata.op_name in _NO_OP_NAMES else instruction.metadata.op_name
        )


def _element(value: Any, index: int) -> int:
    """Return the id of a tuple's element, or of the value itself if its elements are unknown."""
    return value.operand_ids[index] if value.opcode == "tuple" else value.id
