"""What a profile of kernels counts."""

import pytest
from kernels import Event, kind, own_times


def test_a_kernel_takes_its_time_without_the_kernels_inside():
    events = [
        Event(3, 1, "pack"),
        Event(2, 3, "MatMul"),
        Event(0, 10, "while"),
        Event(5, 1, "Mul"),
        Event(10, 2, "Mul"),
    ]
    # The loop holds 3 of MatMul and 1 of Mul, and MatMul 1 of pack; the last Mul comes behind.
    assert own_times(events) == [
        ("while", 10 - 3 - 1),
        ("MatMul", 3 - 1),
        ("pack", 1),
        ("Mul", 1),
        ("Mul", 2),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gradient_tape/model/add_1:AddV2", "AddV2"),
        ("AssignSubVariableOp_176:AssignSubVariableOp", "AssignSubVariableOp"),
        ("multiply_reduce_fusion.12", "multiply_reduce_fusion"),
        ("while#cond.3", "while"),
        ("ThunkExecutor::Execute", "ThunkExecutor::Execute"),
        ("aten::convolution_backward", "aten::convolution_backward"),
    ],
)
def test_kernels_of_one_kind_are_one(name, expected):
    assert kind(name) == expected
