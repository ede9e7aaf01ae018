"""What is found of an engine that is broken on purpose, in one way at a time, and how a failure is
made small.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import settings

from keras_recompute.engine.capture import custom_vjp
from keras_recompute.engine.capture.trace import Trace
from keras_recompute.engine.partition.partition import Partition
from keras_recompute.engine.partition.program import GraphProgram
from keras_recompute.errors import InvalidArgumentError, InvalidProgramError, UnsupportedError

from .cases import Case, Outcome
from .compare import Disagreement, check, is_refusal, judge, may_be_raised
from .language import Apply, Assign, Combine, Derive, Loop, Program, Read, walk
from .search import Hunt


def a_gradient_a_little_too_large(monkeypatch):
    right = Partition.write_gradient
    monkeypatch.setattr(
        Partition, "write_gradient", lambda *given: [1.0001 * g for g in right(*given)]
    )


def a_gradient_that_is_missing(monkeypatch):
    right = custom_vjp.custom_vjp

    def wrong(compute, back, **options):
        return right(compute, lambda *dys, **asked: [None, *back(*dys, **asked)[1:]], **options)

    for module in ("lowering", "eager_functions"):  # written into a graph, and called eagerly
        monkeypatch.setattr(f"keras_recompute.engine.emit.{module}.custom_vjp", wrong)


def a_forward_pass_that_runs_twice(monkeypatch):
    right = GraphProgram.write
    monkeypatch.setattr(
        GraphProgram,
        "write",
        lambda program, values: (right(program, values), right(program, values))[1],
    )


def variables_read_too_late(monkeypatch):
    """The backward pass reads variables itself, as a replay by Python would."""
    right = Partition.write_gradient

    def wrong(part, values, *begun):
        trace = part.joint.trace
        first, count = len(trace.arguments), len(trace.variables)
        read = [v.value() for v in trace.variables]
        return right(part, [*values[:first], *read, *values[first + count :]], *begun)

    monkeypatch.setattr(Partition, "write_gradient", wrong)


def an_error_of_its_own(monkeypatch):
    def wrong(*_):
        raise KeyError("engine")

    monkeypatch.setattr(Trace, "values", wrong)


def small_programs() -> list[Case]:
    """Return cases that between them show every fault."""
    reads = Program((Read("scalar"), Combine("multiply", 0, 1), Apply("exp of sin")))
    counts = Program((Apply("sin"), Assign("count"), Apply("tanh")))
    return [
        Case(program, assigns=assigns) for program in (reads, counts) for assigns in (False, True)
    ]


FAULTS = {
    a_gradient_a_little_too_large: "d: numbers",
    a_gradient_that_is_missing: "d: None",
    a_forward_pass_that_runs_twice: "state: numbers",
    variables_read_too_late: "d: numbers",
    an_error_of_its_own: "raises KeyError: …",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_a_broken_engine_does_is_noticed(fault, monkeypatch):
    fault(monkeypatch)
    kinds = set()
    for case in small_programs():
        try:
            check(case)
        except Disagreement as found:
            kinds.add(found.kind)
    assert FAULTS[fault] in kinds, kinds


def test_an_engine_that_is_not_broken_passes():
    for case in small_programs():
        check(case)


@pytest.mark.long
def test_a_failure_is_made_small_and_its_sort_is_kept():
    """Programs with a sine fail in one way, programs of three instructions in another, which is
    known.
    """

    def fails(case):
        if any(
            isinstance(step, Apply) and step.function == "sin" for step in walk(case.program.body)
        ):
            raise Disagreement("sine", "", case)
        if len(case.program.body) == 3:
            raise Disagreement("three", "", case)

    hunt = Hunt(known={"three"}, check=fails)
    with pytest.raises(Disagreement) as found:
        hunt.run(("eager",), settings(max_examples=200, database=None, derandomize=True))
    assert found.value.kind == "sine"
    assert len(list(walk(found.value.case.program.body))) == 1


def test_what_is_not_there_must_be_missing_in_a_traced_function_too():
    program = Program((Apply("sin"),))
    values = {"output 0": np.ones(2), "d x": np.ones(2), "d y": None}
    zeros = Outcome({**values, "d y": np.zeros(2)})
    with pytest.raises(Disagreement, match="d: zeros"):
        judge(Case(program), Outcome(values), zeros)
    judge(Case(program, order=2), Outcome(values), zeros)
    with pytest.raises(Disagreement, match="d: None"):
        judge(Case(program), Outcome({**values, "d y": np.ones(2)}), Outcome(values))


@pytest.mark.long
def test_the_derivative_of_a_loop_may_be_known_not_to_depend_on_anything():
    """Each turn makes its value anew, of something else."""
    body = (Loop("bounded while", (Apply("tanh", of=2),)),)
    forgets = Program((Derive(body, of=2),), policy="save_nothing", arguments="variables")
    check(Case(forgets, mode="graph", dtype="float64"))
    values = {"output 0": np.ones(2), "d x": np.zeros(2)}
    judge(Case(forgets), Outcome(values), Outcome({**values, "d x": None}))
    with pytest.raises(Disagreement, match="d: None"):
        judge(
            Case(forgets), Outcome({**values, "d x": np.ones(2)}), Outcome({**values, "d x": None})
        )


def test_errors_that_may_stand_for_each_other():
    assert may_be_raised(KeyError(), KeyError())
    assert may_be_raised(InvalidArgumentError(), KeyError())
    assert may_be_raised(ValueError(), tf.errors.InvalidArgumentError(None, None, ""))
    assert not may_be_raised(InvalidProgramError(), KeyError())
    assert not may_be_raised(ValueError(), KeyError())
    assert not is_refusal(UnsupportedError("for no reason"))
