"""Reader of programs that XLA compiled; with ``xla_schedule`` all that knows XLA's format.

An optimised program, as ``profile`` gets it, has a schedule, a buffer assignment and the
trace of the allocator:

* *program steps*: the schedule with the bodies of loops and branches in place, in the order of
  XLA's own allocator (``HloLiveRange::FlattenSchedule``), less the instructions that neither
  compute nor allocate;
* *temporaries*: the allocator's trace, replayed;
* *parameters, constants, results*: allocations of their own, outside the trace;
* *thread-local allocations*: scalars of small called computations, on the caller's stack. They are
  in no sum but their own, which ``reconcile`` shows.

Seen with TensorFlow 2.21 on CPU: there is one trace, over the whole module, and results that are no
parameter are never in it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from operator import add
from typing import Any, Callable, Collection, Iterator, Mapping, Sequence

from ..errors import ReportError
from ..op_names import BACKWARD, RECOMPUTE
from ..user_code import called_line
from .branches import count_branches_taken
from .categories import OPTIMISER, OTHER, WEIGHT, buffer_category
from .heap_trace import (
    ALLOCATE,
    FREE,
    SHARE,
    Event,
    held_at_steps,
    replay_allocations,
    with_monotone_steps,
)
from .jax_op_names import translate_op_names
from .origins import Names, Origin
from .parameters import Parameter, match_parameters
from .program import (
    ALWAYS_LIVE,
    INPUT_FEED,
    RESULT,
    TEMPORARY,
    Buffer,
    Program,
    Step,
    held_per_step,
)
from .unrolled_loop import Mark, apply_run_order, run_order
from .xla_schedule import Schedule

_KINDS = {0: ALLOCATE, 1: FREE, 2: SHARE}
_NO_FILE = "dummy_file_name"  # XLA's file name of instructions without a source line
# Stages of experimental_get_compiler_ir: the compiled program, and the input of other compilers.
STAGE = "optimized_hlo_proto_serialized"
UNOPTIMIZED = "hlo_serialized"


def read_hlo_proto(
    data: bytes,
    *,
    parameters: Sequence[Parameter] = (),
    layers: Sequence[str] = (),
    sources: Mapping[str, str] | None = None,
    capacity_bytes: int | None = None,
    compile_seconds: float | None = None,
    compiled_by: str = "xla",
    stated: Mapping[str, int] | None = None,
    turns: Sequence[Collection[Mark]] = (),
) -> Program:
    """Return the record of a serialized ``xla.HloProto`` with buffer assignment.

    Args:
        data: ``CompiledProgram.serialized``, or a file that XLA wrote.
        parameters: The function's inputs in order. Without them a parameter that a result
            overwrites counts as a weight, and any other as unknown.
        layers: Names of all layers of the model, if known.
        sources: Lines of code by operation, named as in the function that it is in.
        capacity_bytes: Memory of the device; the record keeps it.
        compile_seconds: How long compilation took; the record keeps it.
        compiled_by: The compiler; the record keeps it.
        stated: The compiler's own statistics, in bytes by kind (``temp``, ...); the record keeps
            them.
        turns: For each trip of the loop that is to be unrolled, the (phase, section) of the
            branches that it takes (see ``unrolled_loop``). By default the body of every loop counts
            once.

    Raises:
        ReportError: The bytes are no such program.

    Examples:
        >>> compiled = kr.liveness.compile_program(lambda x: tf.sin(x) @ x, tf.TensorSpec((64, 64)))
        >>> kr.liveness.read_hlo_proto(compiled.serialized).compiled_by
        'xla'
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    from .xla_messages import HloProto

    proto = HloProto()
    try:
        proto.ParseFromString(data)
        reader = _Reader(proto, tuple(parameters), layers, sources or {})
        program = reader.program(capacity_bytes, compile_seconds)
        if turns:
            program = apply_run_order(program, run_order(reader.schedule, reader.steps, turns))
    except (DecodeError, LookupError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, ReportError):
            raise
        raise ReportError(
            f"these bytes are not a compiled XLA program: {type(error).__name__}: {error}"
        ) from error
    totals = {f"stated_{kind}_bytes": size for kind, size in (stated or {}).items()}
    return replace(
        program, compiled_by=compiled_by, compiler_totals={**program.compiler_totals, **totals}
    )


class _Reader:
    """Conversion of one program from XLA's messages to the record."""

    def __init__(
        self,
        proto: Any,
        parameters: tuple[Parameter, ...],
        layers: Sequence[str],
        sources: Mapping[str, str],
    ):
        self.sources = sources
        self.module, self.assignment = proto.hlo_module, proto.buffer_assignment
        entry = [c for c in self.module.computations if c.id == self.module.entry_computation_id]
        if not entry or not self.assignment.buffer_allocations:
            raise ReportError(
                "the program has no entry computation or no buffer assignment: give a compiled "
                f"program, of stage {STAGE!r}"
            )
        is_from_jax = translate_op_names(self.module)
        self.entry_parameters: dict[int, Any] = {}
        for instruction in entry[0].instructions:
            if instruction.opcode == "parameter":
                self.entry_parameters[instruction.parameter_number] = instruction
        self.parameters = self._described(parameters)
        weights, state = [], []
        for parameter in self.parameters.values():
            if parameter.category == WEIGHT:
                weights.append(parameter.name)
            elif parameter.category == OPTIMISER:
                state.append(parameter.name)
        names = Names.of_variables(weights, state, layers, numbered=not is_from_jax)
        self.schedule = Schedule(self.module, names, self.parameters)
        # The device's main memory has colour 0. A TPU's compiler also places values on the chip or
        # in the host's memory.
        self.allocations = [a for a in self.assignment.buffer_allocations if not a.color]
        self.elsewhere: set[int] = set()
        self.size_of: dict[int, int] = {}
        self.maker_of: dict[int, Any] = {}
        for value in self.assignment.logical_buffers:
            self.size_of[value.id] = value.size
            self.maker_of[value.id] = self.schedule.instructions[value.defined_at.instruction_id]
            if value.color:
                self.elsewhere.add(value.id)
        self.traced: set[int] = set()
        allocating = self._read_events()
        self.steps, self.step_of = self.schedule.steps(allocating)

    def _read_events(self) -> set[int]:
        """Note the values that are ``traced``, and return the instructions that allocate one."""
        allocating = set()
        for trace in self.assignment.heap_simulator_traces:
            for event in trace.events:
                if event.buffer_id in self.elsewhere:
                    continue
                self.traced.add(event.buffer_id)
                if _KINDS.get(event.kind) == ALLOCATE:
                    allocating.add(self.maker_of[event.buffer_id].id)
        return allocating

    def program(self, capacity_bytes: int | None, compile_seconds: float | None) -> Program:
        """Return the finished record."""
        count = len(self.steps)
        held, trace_peak, misplaced = [0] * count, 0, 0
        buffers: list[Buffer] = []
        for trace in self.assignment.heap_simulator_traces:
            events, moved = with_monotone_steps(self._events(trace))
            storages, totals = replay_allocations(events, last_step=count - 1)
            for storage in storages:
                stretch = storage.size_bytes, storage.first_step, storage.last_step
                buffers += self._stretches(storage.buffers, *stretch, TEMPORARY)
            # Traces cover disjoint storage, so their bytes add up.
            held = list(map(add, held, held_at_steps(events, totals, count)))
            trace_peak, misplaced = trace_peak + max(totals, default=0), misplaced + moved
        outside = list(self._outside_the_trace())
        held = list(map(add, held, held_per_step(outside, (TEMPORARY, RESULT), count)))
        return Program(
            name=self.module.name,
            compiled_by="xla",
            steps=tuple(map(self._step, self.steps, held)),
            buffers=tuple(buffers + outside),
            program_instructions=len(self.schedule.instructions),
            allocated_temporary_bytes=self._bytes(_is_temporary),
            capacity_bytes=capacity_bytes,
            compile_seconds=compile_seconds,
            compiler_totals={
                **self._totals(),
                "heap_trace_peak_bytes": trace_peak,
                "heap_trace_events_misplaced": misplaced,
            },
        )

    def _totals(self) -> dict[str, int]:
        """Return the figures of XLA's own that ``reconcile`` compares with the record."""
        shapes = sum(_shape_bytes(i.shape) for i in self.entry_parameters.values())
        parameters = self._bytes(lambda a: a.is_entry_computation_parameter)
        elsewhere = sum(a.size for a in self.assignment.buffer_allocations if a.color)
        return {
            "constants_bytes": self._bytes(lambda a: a.is_constant),
            "allocations_bytes": self._bytes(lambda _: True),
            "parameter_shapes_bytes": shapes,
            "parameter_padding_bytes": parameters - shapes,
            "other_memory_bytes": elsewhere,
            "branches_taken": count_branches_taken(self.module),
            "thread_local_bytes": self._bytes(lambda a: a.is_thread_local),
            "untraced_temporary_bytes": self._bytes(
                lambda a: not a.maybe_live_out and self._is_untraced(a)
            ),
        }

    def _bytes(self, counts: Callable[[Any], bool]) -> int:
        return sum(allocation.size for allocation in self.allocations if counts(allocation))

    def _described(self, given: tuple[Parameter, ...]) -> dict[int, Parameter]:
        """Return a description of every entry parameter, by the caller or else by the program."""
        numbers = sorted(self.entry_parameters)
        if given:
            sizes = [_shape_bytes(self.entry_parameters[n].shape) for n in numbers]
            return dict(zip(numbers, match_parameters(given, sizes)))
        # A parameter that a result overwrites is updated by the program, as weights are.
        overwritten = {entry.parameter_number for entry in self.module.input_output_alias.entries}
        return {
            n: Parameter(self.entry_parameters[n].name, WEIGHT if n in overwritten else OTHER)
            for n in numbers
        }

    def _events(self, trace: Any) -> Iterator[Event]:
        for event in trace.events:
            if event.buffer_id in self.elsewhere:
                continue
            if event.kind not in _KINDS:
                raise ReportError(f"the heap trace has an event of the unknown kind {event.kind}")
            step = self._step_at(self.maker_of[event.buffer_id])
            size = self.size_of[event.buffer_id]
            yield Event(
                _KINDS[event.kind], event.buffer_id, size, step, event.share_with_canonical_id
            )

    def _stretches(
        self, values: Sequence[int], size: int, first: int, last: int, lifetime: str
    ) -> Iterator[Buffer]:
        """Yield storage from ``first`` to ``last`` as a buffer per value or loop that fills it."""
        makers = sorted(map(self.maker_of.__getitem__, values), key=self._step_at)
        writers = self.schedule.writers(makers, self.step_of)
        starts = [0, *(step for step, _ in writers[1:]), last + 1]
        for start, end, (_, writer) in zip(starts, starts[1:], writers):
            if max(start, first) <= min(end - 1, last):
                yield self._buffer(
                    writer, makers[0], size, max(start, first), min(end - 1, last), lifetime
                )

    def _step_at(self, instruction: Any) -> int:
        return self.step_of.get(instruction.id, 0)

    def _buffer(
        self, writer: Any, begun_by: Any, size: int, first: int, last: int, lifetime: str
    ) -> Buffer:
        origin = self.schedule.origins.get(writer.id, Origin())
        begun = self.schedule.origins.get(begun_by.id, Origin())
        phase = origin.phase
        if phase == RECOMPUTE and begun.section != origin.section:
            phase = BACKWARD  # a value that outlives the replayed section is a gradient
        is_copied_weight = origin.op_name in self.schedule.names.weights
        return Buffer(
            name=writer.name,
            size_bytes=size,
            first_step=first,
            last_step=last,
            lifetime=lifetime,
            category=OTHER if is_copied_weight else buffer_category(origin.op_name, phase),
            op_name=origin.op_name,
            layer=origin.layer or self.schedule.nearest_layer(writer),
            phase=phase,
            section=origin.section,
            source=self._source(writer.metadata, origin.op_name),
        )

    def _source(self, metadata: Any, op_name: str | None) -> str | None:
        """Return the compiler's source line, unless it is a library's; else the operation's."""
        called = called_line(self._frames(metadata))
        if called:
            return called
        # Names of the enclosing calls precede the operation's own name.
        while op_name and op_name not in self.sources:
            op_name = op_name.partition("/")[2]
        return self.sources.get(op_name) if op_name else None

    def _frames(self, metadata: Any) -> Iterator[tuple[str, int]]:
        """Yield the file and line of an operation and, where JAX noted them, of its callers."""
        if metadata.source_file not in ("", _NO_FILE):
            yield metadata.source_file, metadata.source_line
        index, number = self.module.stack_frame_index, metadata.stack_frame_id
        # Numbers count from 1. The outermost frame is its own parent.
        while 0 < number <= len(index.stack_frames):
            frame = index.stack_frames[number - 1]
            location = index.file_locations[frame.file_location_id - 1]
            yield index.file_names[location.file_name_id - 1], location.line
            if frame.parent_frame_id >= number:
                return
            number = frame.parent_frame_id

    def _outside_the_trace(self) -> Iterator[Buffer]:
        """Yield parameters, constants, results, and allocations that no trace explains."""
        last = len(self.steps) - 1
        for allocation in self.allocations:
            values = _values_in(allocation)
            if allocation.is_entry_computation_parameter:
                given = self.parameters[allocation.parameter_number]
                lifetime = INPUT_FEED if given.fed else ALWAYS_LIVE
                layer = self.schedule.names.variable_layer(given.layer)
                yield Buffer(
                    given.name, allocation.size, 0, last, lifetime, given.category, layer=layer
                )
            elif allocation.is_constant:
                maker = self.maker_of[values[0]]
                origin = self.schedule.origins.get(maker.id, Origin())
                layer = origin.layer or self.schedule.nearest_layer(maker)
                yield Buffer(
                    maker.name, allocation.size, 0, last, ALWAYS_LIVE, OTHER, origin.op_name, layer
                )
            elif self._is_untraced(allocation):
                first = 0
                # A result is held from its first write on, anything else without a trace
                # throughout.
                if allocation.maybe_live_out:
                    makers = map(self.maker_of.__getitem__, values)
                    first = min(map(self._step_at, makers), default=0)
                lifetime = RESULT if allocation.maybe_live_out else TEMPORARY
                yield from self._stretches(values, allocation.size, first, last, lifetime)

    def _is_untraced(self, allocation: Any) -> bool:
        return _is_temporary(allocation) and self.traced.isdisjoint(_values_in(allocation))

    def _step(self, instruction: Any, bytes_: int) -> Step:
        origin = self.schedule.origins[instruction.id]
        return Step(
            instruction.name, bytes_, origin.op_name, origin.layer, origin.phase, origin.section
        )


def _values_in(allocation: Any) -> list[int]:
    """Return the ids of the values that are stored in ``allocation``."""
    return [assigned.logical_buffer_id for assigned in allocation.assigned]


def _is_temporary(allocation: Any) -> bool:
    """Return whether ``allocation`` is reserved for temporaries and results."""
    return not (
        allocation.is_entry_computation_parameter
        or allocation.is_constant
        or allocation.is_thread_local
    )


def _shape_bytes(shape: Any) -> int:
    """Return the bytes of a dense array of ``shape``, of all of them for a tuple."""
    from .xla_messages import element_bytes

    if shape.tuple_shapes:
        return sum(map(_shape_bytes, shape.tuple_shapes))
    return math.prod(shape.dimensions) * element_bytes(shape.element_type)
