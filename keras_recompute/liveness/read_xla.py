"""Read a program that XLA compiled: the only file that knows XLA's format.

``tf.function.experimental_get_compiler_ir(...)(stage="optimized_hlo_proto_serialized")`` returns the optimised program
with its schedule, its buffer assignment and the trace of the allocator, in process and without running anything. From it:

* *program steps*: the schedule with the bodies of loops and branches in place, as XLA's own allocator walks it
  (``HloLiveRange::FlattenSchedule``), less the instructions that neither compute nor allocate;
* *temporaries*: the allocator's trace, replayed;
* *parameters, constants, results*: allocations of their own, outside the trace;
* *thread-local allocations*: scalars of small called computations, on the stack of whatever runs them. They are in no
  sum but their own, which ``reconcile`` shows.

Seen with TensorFlow 2.21 on CPU: one trace, over the whole module; results that are no parameter are never in it.
"""

from __future__ import annotations

import inspect
import math
import re
import time
from typing import Any, Callable, Iterator, Sequence

from ..errors import ReportError
from .categories import OPTIMISER, OTHER, WEIGHT, buffer_category
from .heap import ALLOCATE, FREE, SHARE, Event, held_at_steps, in_order, replay
from .naming import Names, Origin, default_phase
from .parameters import Parameter, match, of_concrete_function
from .program import ALWAYS_LIVE, INPUT_FEED, RESULT, TEMPORARY, Buffer, Program, Step
from .timeline import held_per_step

# Instructions without code of their own: they rename, group or pick values.
_NO_CODE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"})
# What only passes storage on; a loop's own instructions say nothing about what the storage is for.
_PASSES_ON = _NO_CODE | {"while", "conditional", "call", "copy", "broadcast"}
_KINDS = {0: ALLOCATE, 1: FREE, 2: SHARE}
_STAGE = "optimized_hlo_proto_serialized"
_NO_OP_NAMES = frozenset({"", "XLA_Args", "XLA_Retvals"})


def profile(
    fn: Callable[..., Any],
    *args: Any,
    input_feed: Sequence[int | str] = (),
    capacity_bytes: int | None = None,
    **kwargs: Any,
) -> Program:
    """Compile ``fn(*args, **kwargs)`` with XLA and return its record; nothing is run.

    ``fn`` is a ``tf.function``, or a Python function to make one of. Arguments are what ``fn`` takes; ``tf.TensorSpec``
    may stand for a tensor. Compilation takes as long as that of the first call.

    ``input_feed`` names the arguments that hold the data of one execution, by name (``"x"``, all its tensors) or by the
    number of one tensor among the inputs: they are counted in ``input_feed_bytes`` and are no part of the peak.

    Raises InvalidArgumentError where ``input_feed`` names no data argument, ReportError where the compiled program cannot
    be read. What TensorFlow raises for a function that XLA cannot compile passes through.
    """
    import tensorflow as tf

    function: Any = (
        fn if getattr(fn, "_jit_compile", None) else tf.function(getattr(fn, "python_function", fn), jit_compile=True)
    )
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()  # the compiler's door, unlike a call, does not fill them in
    args, kwargs = bound.args, bound.kwargs
    if not all(isinstance(value, tf.TensorSpec) for value in (*args, *kwargs.values())):
        # it takes specs alone, or values alone
        args, kwargs = tf.nest.map_structure(
            lambda leaf: tf.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, tf.TensorSpec) else leaf, (args, kwargs)
        )
    described = of_concrete_function(function.get_concrete_function(*args, **kwargs), input_feed)
    compile_program = function.experimental_get_compiler_ir(*args, **kwargs)
    start = time.perf_counter()
    data = compile_program(stage=_STAGE)
    seconds = time.perf_counter() - start
    return read_hlo_proto(data, parameters=described, capacity_bytes=capacity_bytes, compile_seconds=seconds)


def read_hlo_proto(
    data: bytes,
    *,
    parameters: Sequence[Parameter] = (),
    capacity_bytes: int | None = None,
    compile_seconds: float | None = None,
) -> Program:
    """Return the record of a serialized ``xla.HloProto`` with buffer assignment.

    ``parameters`` describes the function's inputs in order; without it a parameter that a result overwrites counts as a
    weight, any other as unknown. Raises ReportError for bytes that are no such program.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorflow.compiler.xla.service import hlo_pb2

    proto = hlo_pb2.HloProto()
    try:
        proto.ParseFromString(data)
        return _Reader(proto, tuple(parameters)).program(capacity_bytes, compile_seconds)
    except (DecodeError, LookupError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, ReportError):
            raise
        raise ReportError(f"these bytes are no compiled XLA program: {type(error).__name__}: {error}") from error


class _Reader:
    """One program on its way from XLA's messages to the record."""

    def __init__(self, proto: Any, parameters: tuple[Parameter, ...]):
        self.module, self.assignment = proto.hlo_module, proto.buffer_assignment
        self.computations = {c.id: c for c in self.module.computations}
        self.instructions = {i.id: i for c in self.module.computations for i in c.instructions}
        self.home = {i.id: c.id for c in self.module.computations for i in c.instructions}
        if self.module.entry_computation_id not in self.computations or not self.assignment.buffer_allocations:
            raise ReportError(
                "the program has no entry computation or no buffer assignment: only a compiled program, stage "
                "'optimized_hlo_proto_serialized', has them"
            )
        self.size_of = {v.id: v.size for v in self.assignment.logical_buffers}
        self.maker_of = {v.id: self.instructions[v.defined_at.instruction_id] for v in self.assignment.logical_buffers}
        entry = self.computations[self.module.entry_computation_id]
        self.entry_parameters = {i.parameter_number: i for i in entry.instructions if i.opcode == "parameter"}
        self.parameters = self._described(parameters)
        self.names = Names.of_variables(
            (p.name for p in self.parameters.values() if p.category == WEIGHT),
            (p.name for p in self.parameters.values() if p.category == OPTIMISER),
        )
        self.origins: dict[int, Origin] = {}
        self.schedule: list[Any] = []
        self._walk(entry, None, None, set())
        self.steps, self.step_of = self._find_steps()

    def program(self, capacity_bytes: int | None, compile_seconds: float | None) -> Program:
        """Return the finished record."""
        count = len(self.steps)
        held, trace_peak, misplaced = [0] * count, 0, 0
        buffers: list[Buffer] = []
        for trace in self.assignment.heap_simulator_traces:
            events, moved = in_order(self._events(trace))
            storages, totals = replay(events, last_step=count - 1)
            buffers += [self._buffer(s.buffers, s.size_bytes, s.first_step, s.last_step, TEMPORARY) for s in storages]
            held = [a + b for a, b in zip(held, held_at_steps(events, totals, count))]
            trace_peak, misplaced = trace_peak + max(totals, default=0), misplaced + moved
        outside = list(self._outside_the_trace())
        held = [a + b for a, b in zip(held, held_per_step(outside, (TEMPORARY, RESULT), count))]
        allocations = self.assignment.buffer_allocations
        return Program(
            name=self.module.name,
            compiled_by="xla",
            steps=tuple(self._step(i, bytes_) for i, bytes_ in zip(self.steps, held)),
            buffers=tuple(buffers + outside),
            program_instructions=len(self.instructions),
            allocated_temporary_bytes=sum(a.size for a in allocations if _is_temporary(a)),
            capacity_bytes=capacity_bytes,
            compile_seconds=compile_seconds,
            compiler_totals={
                "constants_bytes": sum(a.size for a in allocations if a.is_constant),
                "allocations_bytes": sum(a.size for a in allocations),
                "heap_trace_peak_bytes": trace_peak,
                "heap_trace_events_misplaced": misplaced,
                "parameter_shapes_bytes": sum(_shape_bytes(i.shape) for i in self.entry_parameters.values()),
                "thread_local_bytes": sum(a.size for a in allocations if a.is_thread_local),
                "untraced_temporary_bytes": sum(b.size_bytes for b in outside if b.lifetime == TEMPORARY),
            },
        )

    def _described(self, given: tuple[Parameter, ...]) -> dict[int, Parameter]:
        """Return a description of every entry parameter; where the caller gave none, what the program itself tells."""
        numbers = sorted(self.entry_parameters)
        if given:
            return dict(zip(numbers, match(given, [_shape_bytes(self.entry_parameters[n].shape) for n in numbers])))
        overwritten = {entry.parameter_number for entry in self.module.input_output_alias.entries}
        return {n: Parameter(self.entry_parameters[n].name, WEIGHT if n in overwritten else OTHER) for n in numbers}

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
            before = self.origins[self.schedule[-1].id].phase if self.schedule else None
            name = self._op_name(instruction)
            origin = self.names.origin(name, caller, inside=body_phase if called else inside, before=before)
            self.origins[number] = origin
            for child in called:
                self._walk(child, origin, body_phase, seen)
            self.schedule.append(instruction)

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
                is_entry = self.entry_parameters.get(instruction.parameter_number) is instruction
                return self.parameters[instruction.parameter_number].name if is_entry else None
            instruction = self.instructions[instruction.operand_ids[0]]
        return None if instruction.metadata.op_name in _NO_OP_NAMES else instruction.metadata.op_name

    def _find_steps(self) -> tuple[list[Any], dict[int, int]]:
        """Return the instructions that compute or allocate, and for every scheduled one the step at or after it."""
        traces = self.assignment.heap_simulator_traces
        allocating = {self.maker_of[e.buffer_id].id for t in traces for e in t.events if _KINDS.get(e.kind) == ALLOCATE}
        steps: list[Any] = []
        step_of: dict[int, int] = {}
        for instruction in self.schedule:
            step_of[instruction.id] = len(steps)
            if instruction.opcode not in _NO_CODE or instruction.id in allocating:
                steps.append(instruction)
        return steps, {number: min(step, max(len(steps) - 1, 0)) for number, step in step_of.items()}

    def _events(self, trace: Any) -> Iterator[Event]:
        for event in trace.events:
            if event.kind not in _KINDS:
                raise ReportError(f"the heap trace has an event of kind {event.kind}, which XLA does not know")
            step, size = self.step_of.get(self.maker_of[event.buffer_id].id, 0), self.size_of[event.buffer_id]
            yield Event(_KINDS[event.kind], event.buffer_id, size, step, event.share_with_canonical_id)

    def _writer(self, values: Sequence[int]) -> Any:
        """Return the instruction that tells what storage is for, of those that define ``values`` in it.

        The first that computes; for storage that goes through a loop, the last that computes inside it: what was there
        before is the zeros that the loop's result started from.
        """
        makers = [self.maker_of[v] for v in values]
        writers = [i for i in makers if i.opcode not in _PASSES_ON]
        inner = [i for i in writers if self.home[i.id] != self.home[makers[0].id]]
        return inner[-1] if inner else writers[0] if writers else makers[0]

    def _buffer(self, values: Sequence[int], size: int, first: int, last: int, lifetime: str) -> Buffer:
        writer = self._writer(values)
        origin = self.origins.get(writer.id, Origin())
        source = writer.metadata.source_file
        return Buffer(
            name=writer.name,
            size_bytes=size,
            first_step=first,
            last_step=last,
            lifetime=lifetime,
            category=buffer_category(origin.op_name, origin.phase),
            op_name=origin.op_name,
            layer=origin.layer,
            phase=origin.phase,
            section=origin.section,
            source=f"{source}:{writer.metadata.source_line}" if source else None,
        )

    def _outside_the_trace(self) -> Iterator[Buffer]:
        """Yield parameters, constants, results, and allocations that no trace explains, held throughout."""
        traced = {e.buffer_id for trace in self.assignment.heap_simulator_traces for e in trace.events}
        last = len(self.steps) - 1
        for allocation in self.assignment.buffer_allocations:
            values = [a.logical_buffer_id for a in allocation.assigned]
            if allocation.is_entry_computation_parameter:
                given = self.parameters[allocation.parameter_number]
                layer = self.names.layer(given.name) if given.category == WEIGHT else None
                lifetime = INPUT_FEED if given.fed else ALWAYS_LIVE
                yield Buffer(given.name, allocation.size, 0, last, lifetime, given.category, layer=layer)
            elif allocation.is_constant:
                yield Buffer(self._writer(values).name, allocation.size, 0, last, ALWAYS_LIVE, OTHER)
            elif _is_temporary(allocation) and not traced.intersection(values):
                first = 0
                if allocation.maybe_live_out:
                    first = min((self.step_of.get(self.maker_of[v].id, 0) for v in values), default=0)
                lifetime = RESULT if allocation.maybe_live_out else TEMPORARY
                yield self._buffer(values, allocation.size, first, last, lifetime)

    def _step(self, instruction: Any, bytes_: int) -> Step:
        origin = self.origins[instruction.id]
        return Step(instruction.name, bytes_, origin.op_name, origin.layer, origin.phase, origin.section)


def _is_temporary(allocation: Any) -> bool:
    """Return whether ``allocation`` is reserved for temporaries and results."""
    return not (allocation.is_entry_computation_parameter or allocation.is_constant or allocation.is_thread_local)


def _shape_bytes(shape: Any) -> int:
    """Return the bytes of a dense array of ``shape``, of all of them for a tuple."""
    from tensorflow.compiler.xla import xla_data_pb2

    if shape.tuple_shapes:
        return sum(_shape_bytes(s) for s in shape.tuple_shapes)
    bits = re.search(r"[0-9]+", xla_data_pb2.PrimitiveType.Name(shape.element_type))  # F32, BF16, F8E5M2; PRED has none
    return math.prod(shape.dimensions) * max(int(bits.group()) if bits else 8, 8) // 8
