"""The order in which XLA runs a program, and where each of its instructions comes from.

Beside ``read_xla`` the only file that knows XLA's format; it reads the module's messages and imports nothing for it.
"""

from __future__ import annotations

from typing import Any, Collection, Mapping, Sequence

from .naming import Names, Origin, default_phase

# Instructions without code of their own: they rename, group or pick values.
_NO_CODE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"})
# What only passes storage on or clears it; a loop's own instructions say nothing about what the storage is for.
_PASSES_ON = _NO_CODE | {"while", "conditional", "call", "copy", "broadcast"}
_NO_OP_NAMES = frozenset({"", "XLA_Args", "XLA_Retvals"})
_NEAREST = 64  # instructions looked at for a layer: a sum or a store has its values close by


class Schedule:
    """The instructions of a module in the order of XLA's allocator, each with its origin.

    ``origins`` has an origin for every scheduled instruction, by instruction id.
    """

    def __init__(self, module: Any, names: Names, parameter_names: Mapping[int, str]):
        self.module, self.names, self.parameter_names = module, names, parameter_names
        self.computations = {c.id: c for c in module.computations}
        self.instructions = {i.id: i for c in module.computations for i in c.instructions}
        self.home = {i.id: c.id for c in module.computations for i in c.instructions}
        self.origins: dict[int, Origin] = {}
        self.order: list[Any] = []
        self._walk(self.computations[module.entry_computation_id], None, None, set())

    def steps(self, allocating: Collection[int]) -> tuple[list[Any], dict[int, int]]:
        """Return the instructions that compute or are in ``allocating``, and for each scheduled one the step at or after it."""
        steps: list[Any] = []
        step_of: dict[int, int] = {}
        for instruction in self.order:
            step_of[instruction.id] = len(steps)
            if instruction.opcode not in _NO_CODE or instruction.id in allocating:
                steps.append(instruction)
        return steps, {number: min(step, max(len(steps) - 1, 0)) for number, step in step_of.items()}

    def writer(self, makers: Sequence[Any], *, at_the_end: bool) -> Any:
        """Return the instruction that tells what storage is for, of those that make the values in it one after the other.

        The first that computes, or with ``at_the_end`` the last: before a result is made, its storage serves for others.
        For storage that goes through a loop, the last that computes inside it: what was there before is the zeros that
        the loop's result started from.
        """
        writers = [i for i in makers if self._root_opcode(i) not in _PASSES_ON] or list(makers[:1])
        inner = [i for i in writers if self.home[i.id] != self.home[makers[0].id]]
        return inner[-1] if inner else writers[-1 if at_the_end else 0]

    def _root_opcode(self, instruction: Any) -> str:
        """Return what an instruction does in the end: for a fusion, what makes the result."""
        if instruction.opcode != "fusion" or not instruction.called_computation_ids:
            return instruction.opcode
        return self.instructions[self.computations[instruction.called_computation_ids[0]].root_id].opcode

    def nearest_layer(self, instruction: Any) -> str | None:
        """Return the layer that the values come from which ``instruction``, in no layer itself, adds up or stores."""
        pending, seen = [instruction], {instruction.id}
        while pending and len(seen) < _NEAREST:
            current = pending.pop(0)
            layer = self.origins.get(current.id, Origin()).layer
            if layer:
                return layer
            operands = [n for n in current.operand_ids if n not in seen]
            seen.update(operands)
            pending += [self.instructions[n] for n in operands]
        return None

    def _walk(self, computation: Any, caller: Origin | None, inside: str | None, seen: set[int]) -> None:
        """Append the instructions of ``computation`` to the schedule in the order of XLA's allocator, with their origins."""
        if computation.id in seen:
            return
        seen.add(computation.id)
        for number in self.module.schedule.sequences[computation.id].instruction_ids:
            instruction = self.instructions[number]
            called: list[Any] = []
            if instruction.opcode in ("while", "conditional", "call", "async-start"):
                called = [self.computations[c] for c in instruction.called_computation_ids]
            if instruction.opcode == "while":
                called.reverse()  # the message has body, condition; the allocator walks the condition first
            body_phase = default_phase(self._marked_phases(called)) or inside
            before = self.origins[self.order[-1].id].phase if self.order else None
            name = self._op_name(instruction)
            origin = self.names.origin(name, caller, inside=body_phase if called else inside, before=before)
            self.origins[number] = origin
            for child in called:
                self._walk(child, origin, body_phase, seen)
            self.order.append(instruction)

    def _marked_phases(self, computations: Sequence[Any]) -> frozenset[str | None]:
        """Return the phases that operations of ``computations``, and of what they call, state by their names."""
        names: set[str] = set()
        pending, seen = list(computations), set()
        while pending:
            computation = pending.pop()
            if computation.id not in seen:
                seen.add(computation.id)
                names.update(i.metadata.op_name for i in computation.instructions)
                pending += [self.computations[c] for i in computation.instructions for c in i.called_computation_ids]
        return frozenset(self.names.origin(name).phase for name in names if self.names.is_marked(name))

    def _op_name(self, instruction: Any) -> str | None:
        """Return the operation that ``instruction`` came from; for a nameless one, such as a copy, that of what it reads."""
        seen: set[int] = set()
        while instruction.metadata.op_name in _NO_OP_NAMES and instruction.id not in seen:
            seen.add(instruction.id)
            if not instruction.operand_ids:
                is_entry = instruction.opcode == "parameter" and self.home[instruction.id] == self.module.entry_computation_id
                return self.parameter_names.get(instruction.parameter_number) if is_entry else None
            instruction = self.instructions[instruction.operand_ids[0]]
        return None if instruction.metadata.op_name in _NO_OP_NAMES else instruction.metadata.op_name
