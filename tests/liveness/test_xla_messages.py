"""The fields of XLA's messages are those of TensorFlow's own classes, in name, number and kind."""

import re

import pytest
from tensorflow.compiler.xla.service.hlo_pb2 import HloProto as TensorFlowsHloProto
from tensorflow.compiler.xla.xla_data_pb2 import PrimitiveType

from keras_recompute.liveness.xla_messages import HloProto, element_bytes


def fields():
    """Yield the name of each field of ours, the field, and its twin of TensorFlow's."""
    # Each message once, since shapes are nested in shapes.
    seen, waiting = set(), [(HloProto.DESCRIPTOR, TensorFlowsHloProto.DESCRIPTOR)]
    while waiting:
        ours, theirs = waiting.pop()
        if ours.full_name in seen:
            continue
        seen.add(ours.full_name)
        for field in ours.fields:
            twin = theirs.fields_by_name.get(field.name)
            yield f"{theirs.name}.{field.name}", field, twin
            if field.message_type is not None and twin is not None:
                waiting.append((field.message_type, twin.message_type))


def test_fields_have_the_numbers_and_kinds_of_xla():
    checked = 0
    for name, field, twin in fields():
        assert twin is not None, f"XLA has no field {name}"
        assert field.number == twin.number, name
        # An enumeration is read as its number.
        kind = field.TYPE_INT32 if twin.type == twin.TYPE_ENUM else twin.type
        assert field.type == kind, name
        checked += 1
    assert checked > 50


@pytest.mark.parametrize(("name", "number"), PrimitiveType.items())
def test_elements_have_the_bytes_that_their_names_say(name, number):
    bits = re.search("[0-9]+", name)  # F32, BF16, F8E5M2; PRED has none
    assert element_bytes(number) == max(int(bits.group()) if bits else 8, 8) // 8
