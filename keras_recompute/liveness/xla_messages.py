"""XLA's messages of compiled programs: ``HloProto``, with the fields that the record needs.

TensorFlow has classes for them, JAX and PyTorch have none. Fields that are not listed here are
skipped.

Source of names and numbers: ``xla/service/hlo.proto`` and ``xla/xla_data.proto`` of OpenXLA, whose
numbers do not change.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

_FILE, _PACKAGE = "keras_recompute/xla.proto", "keras_recompute.xla"
_SCALARS = ("int64", "int32", "bool", "string", "bytes")

# Message -> fields as "name number type", with a star behind a type that repeats.
_MESSAGES = {
    "HloProto": "hlo_module 1 Module, buffer_assignment 3 BufferAssignment",
    "Module": (
        "name 1 string, entry_computation_id 6 int64, computations 3 Computation*,"
        "schedule 7 Schedule, input_output_alias 8 Aliases, stack_frame_index 17 StackFrameIndex"
    ),
    "Computation": "name 1 string, instructions 2 Instruction*, id 5 int64, root_id 6 int64",
    "Instruction": (
        "name 1 string, opcode 2 string, shape 3 Shape, metadata 7 Metadata,"
        "parameter_number 9 int64, tuple_index 13 int64, id 35 int64, operand_ids 36 int64*,"
        "called_computation_ids 38 int64*, backend_config 43 bytes"
    ),
    "Shape": "element_type 2 int32, dimensions 3 int64*, tuple_shapes 4 Shape*",
    "Metadata": (
        "op_name 2 string, source_file 3 string, source_line 4 int32, stack_frame_id 15 int32"
    ),
    "Schedule": "sequences 1 Sequence*",
    "Sequence": "key 1 int64, value 2 InstructionIds",
    "InstructionIds": "instruction_ids 1 int64*",
    "Aliases": "entries 1 Alias*",
    "Alias": "parameter_number 2 int64",
    "StackFrameIndex": (
        "file_names 1 string*, file_locations 3 FileLocation*, stack_frames 4 Frame*"
    ),
    "FileLocation": "file_name_id 1 int32, line 3 int32",
    "Frame": "file_location_id 1 int32, parent_frame_id 2 int32",
    "BufferAssignment": (
        "logical_buffers 1 LogicalBuffer*, buffer_allocations 3 BufferAllocation*,"
        "heap_simulator_traces 4 HeapTrace*"
    ),
    "LogicalBuffer": "id 1 int64, size 2 int64, defined_at 3 Location, color 4 int64",
    "Location": "instruction_id 4 int64",
    "BufferAllocation": (
        "index 1 int64, size 2 int64, is_thread_local 3 bool,"
        "is_entry_computation_parameter 5 bool, parameter_number 6 int64, maybe_live_out 7 bool,"
        "color 8 int64, assigned 9 Assigned*, is_constant 12 bool"
    ),
    "Assigned": "logical_buffer_id 1 int64, offset 2 int64, size 3 int64",
    "HeapTrace": "events 1 Event*",
    "Event": "kind 1 int32, buffer_id 2 int64, share_with_canonical_id 5 int64",
}

# Bits of an element by xla.PrimitiveType, where they are not 8: predicates, bytes and short floats.
_BITS = {
    **dict.fromkeys((3, 7, 10, 16), 16),
    **dict.fromkeys((4, 8, 11), 32),
    **dict.fromkeys((5, 9, 12, 15), 64),
    18: 128,
}


def _hlo_proto_class() -> Any:
    """Return the class of ``HloProto``, from a pool of its own, beside TensorFlow's classes."""
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(","):
            field_name, number, kind = text.split()
            field = message.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in _SCALARS:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    _as_map(file)
    # In the default pool messages of the same numbers are TensorFlow's.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.HloProto")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # protobuf before 4.22


def _as_map(file: Any) -> None:
    """Make the schedule a map from computations to the order of their instructions."""
    messages = {message.name: message for message in file.message_type}
    entry = messages["Schedule"].nested_type.add()
    entry.CopyFrom(messages["Sequence"])
    entry.name, entry.options.map_entry = "SequencesEntry", True
    messages["Schedule"].field[0].type_name = f".{_PACKAGE}.Schedule.SequencesEntry"


HloProto = _hlo_proto_class()


def element_bytes(primitive_type: int) -> int:
    """Return the size of an element of an array by the number of its ``xla.PrimitiveType``."""
    return _BITS.get(primitive_type, 8) // 8
