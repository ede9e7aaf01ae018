"""Phases and steps of schedules written by hand, one rule at a time."""

from __future__ import annotations

import pytest

hlo_pb2 = pytest.importorskip("tensorflow.compiler.xla.service.hlo_pb2")

from keras_recompute.liveness.origins import Names  # noqa: E402
from keras_recompute.liveness.xla_schedule import Schedule  # noqa: E402
from keras_recompute.op_names import backward_scope, update_scope  # noqa: E402

FORWARD = ("dot", "net/dense/MatMul")
REPLAY = ("dot", f"{backward_scope('section-0')}/net/dense/MatMul")
GRADIENT = ("dot", f"{backward_scope('section-0')}/gradients/net/dense/MatMul")
UPDATE = ("add", f"{update_scope()}/sgd/add")
UNMARKED = ("add", "AddN")


def schedule(*computations) -> Schedule:
    """Return the schedule of computations of (opcode, op name, operand numbers..., called
    computation as "->n").
    """
    module = hlo_pb2.HloModuleProto(entry_computation_id=0)
    for number, instructions in enumerate(computations):
        computation = module.computations.add(
            id=number, root_id=100 * number + len(instructions) - 1
        )
        for position, (opcode, op_name, *reads) in enumerate(instructions):
            identity = 100 * number + position
            instruction = computation.instructions.add(
                id=identity, name=f"{opcode}.{identity}", opcode=opcode
            )
            instruction.metadata.op_name = op_name
            instruction.operand_ids.extend(
                100 * number + read for read in reads if isinstance(read, int)
            )
            instruction.called_computation_ids.extend(
                int(read[2:]) for read in reads if isinstance(read, str)
            )
            module.schedule.sequences[number].instruction_ids.append(identity)
    return Schedule(module, Names(), {})


def phases(*computations) -> list[str | None]:
    """Return the phases in the order of the schedule."""
    made = schedule(*computations)
    return [made.origins[instruction.id].phase for instruction in made.order]


@pytest.mark.parametrize(
    ("before", "phase"),
    [(FORWARD, "forward"), (GRADIENT, "backward"), (REPLAY, "backward")],
)
def test_an_unmarked_operation_follows_the_one_before_but_is_no_replay(before, phase):
    assert phases([before, UNMARKED])[1] == phase


def test_an_unmarked_operation_is_no_update():
    assert phases([GRADIENT, UPDATE, UNMARKED]) == ["backward", "update", "backward"]


def test_what_has_no_code_changes_no_phase():
    assert (
        phases([FORWARD, GRADIENT, ("get-tuple-element", "net/dense/MatMul", 0), UNMARKED])[3]
        == "backward"
    )


def test_a_nameless_copy_is_made_when_it_is_needed():
    made = schedule([FORWARD, GRADIENT, ("copy", "", 0), UNMARKED])
    assert [made.origins[i.id].phase for i in made.order] == [
        "forward",
        "backward",
        "backward",
        "backward",
    ]
    assert made.origins[2].layer == "net/dense"  # of what it copies


def test_an_unmarked_loop_is_of_its_bodys_phase_and_the_body_of_the_loops():
    loop = ("while", "while", "->1", "->2")
    body, condition = [("dot", "while/net/dense/MatMul")], [("compare", "while/Less")]
    assert phases([GRADIENT, loop], body, condition) == [
        "backward",
        "backward",
        "backward",
        "backward",
    ]
    assert phases([FORWARD, loop], [UNMARKED, REPLAY], condition) == [
        "forward",
        "backward",
        "backward",
        "recompute",
        "backward",
    ]


def test_what_nothing_marks_in_a_branch_is_of_its_section():
    nested = ("conditional", f"{backward_scope('section-0')}/gradients/AddN/passed_on/cond", "->2")
    made = schedule(
        [FORWARD, ("conditional", "cond", "->1"), UNMARKED],
        [REPLAY, ("iota", ""), nested, GRADIENT],
        # Named anew, without the section
        [("broadcast", "gradients/AddN/passed_on/cond/zeros_like"), ("iota", "")],
    )
    assert {i.name: made.origins[i.id].section for i in made.order} == {
        "dot.0": None,
        "dot.100": "section-0",
        "iota.101": "section-0",
        "broadcast.200": "section-0",
        "iota.201": "section-0",
        "conditional.102": "section-0",
        "dot.103": "section-0",
        "conditional.1": "section-0",
        "add.2": None,
    }
    assert {made.origins[i.id].phase for i in made.order if made.origins[i.id].section} == {
        "recompute",
        "backward",
    }


def test_a_value_out_of_a_branch_is_of_the_layer_that_made_it_there():
    made = schedule(
        [
            ("dot", "net/other/MatMul"),
            ("conditional", "cond", 0, "->1"),
            ("get-tuple-element", "", 1),
            ("add", "AddN", 2),
        ],
        [GRADIENT, ("tuple", "", 0)],
    )
    assert made.nearest_layer(made.instructions[3]) == "net/dense"


def test_the_condition_of_a_loop_comes_first_and_a_body_once():
    made = schedule(
        [FORWARD, ("while", "while", "->1", "->2"), ("call", "call", "->1")],
        [("dot", "while/MatMul")],
        [("compare", "while/Less")],
    )
    assert [i.name for i in made.order] == ["dot.0", "compare.200", "dot.100", "while.1", "call.2"]


def test_steps_compute_or_allocate():
    made = schedule([("parameter", ""), FORWARD, ("tuple", "", 1), ("bitcast", "", 1), UNMARKED])
    steps, step_of = made.steps(allocating=[2])
    assert [s.name for s in steps] == ["dot.1", "tuple.2", "add.4"]
    # what is no step stands at the next one
    assert step_of == {0: 0, 1: 0, 2: 1, 3: 2, 4: 2}
