"""Equal sections as one loop against the same sections one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.partition.partition import Policy
from keras_recompute.engine.policies import save_everything, save_nothing
from keras_recompute.engine.scan.section_scan import (
    Carry,
    Constant,
    FinalOutput,
    Scanned,
    StackedOutput,
    can_scan,
    scan_sections,
)
from keras_recompute.engine.scan.slice_store import dimensions
from tests.oracle import assert_all_close, gradient_step, numbers, sum_of_sines

from ..engine_vs_plain import Result, assert_same, differentiate, parted

BATCH, SIZE, STEPS, SECTIONS = 3, 4, 2, 5
W = tf.Variable(numbers(SIZE, SIZE, seed=1) * 0.5, name="w")
BIAS = tf.Variable(numbers(SIZE, seed=2), name="bias")
MATRIX = tf.constant(numbers(SIZE, SIZE, seed=3))


@dataclass(frozen=True)
class Case:
    """A section, its arguments for the whole run, and what is asked of the run."""

    section: Any
    arguments: Sequence[np.ndarray]
    roles: Sequence[Any]
    requests: Sequence[Any]


def recurrence(h, x):
    """Two outputs: the state, which is handed on, and one output per step."""
    ys = []
    for t in range(STEPS):
        h = tf.tanh(tf.matmul(h, W) + x[:, t] + BIAS)
        ys.append(h)
    return h, tf.stack(ys, axis=1)


def with_shared_argument(h, x, scale):
    h = tf.sin(h * scale + tf.reduce_sum(x, axis=1))
    return h, h * h


def two_states(h, c):
    return tf.tanh(h + tf.matmul(c, W)), c * tf.sigmoid(h), tf.reduce_mean(h * c)


def swapping_states(h, c):
    """What leaves as the first output arrives as the second argument."""
    return tf.sin(c), tf.cos(h) * 0.5


def only_carried(h):
    return tf.tanh(tf.matmul(h, W) + BIAS)


def with_drawn_mask(h):
    """The masks come from a counter that is a variable: impure, the same for both ways of running
    the sections.
    """
    return h * tf.random.stateless_uniform(
        (BATCH, SIZE), tf.stack([DRAWS.assign_add(1), 7])
    ), h + 1.0


DRAWS = tf.Variable(0)
STATE = numbers(BATCH, SIZE, seed=4)
# One step more on both sides than the sections take, whose gradient must be zero.
SEQUENCE = numbers(BATCH, 1 + SECTIONS * STEPS + 1, SIZE, seed=5)
SLICED = Scanned(axis=1, start=1, length=STEPS)
CASES = {
    "joined": Case(
        recurrence, [STATE, SEQUENCE], [Carry(0), SLICED], [StackedOutput(1, 1), FinalOutput(0)]
    ),
    "joined alone": Case(recurrence, [STATE, SEQUENCE], [Carry(0), SLICED], [StackedOutput(1, 1)]),
    "stacked": Case(
        recurrence,
        [STATE, SEQUENCE],
        [Carry(0), SLICED],
        [StackedOutput(0, None), StackedOutput(1, None)],
    ),
    "last of all": Case(
        recurrence, [STATE, SEQUENCE], [Carry(0), SLICED], [FinalOutput(0), FinalOutput(1)]
    ),
    "last of what is not handed on": Case(
        recurrence, [STATE, SEQUENCE], [Carry(0), SLICED], [FinalOutput(1)]
    ),
    "joined and last of one output": Case(
        recurrence, [STATE, SEQUENCE], [Carry(0), SLICED], [StackedOutput(0, None), FinalOutput(0)]
    ),
    "shared argument": Case(
        with_shared_argument,
        [STATE, SEQUENCE, numbers(SIZE, seed=6)],
        [Carry(0), SLICED, Constant()],
        [FinalOutput(0), StackedOutput(1, 1)],
    ),
    "two states": Case(
        two_states,
        [STATE, STATE * 0.5],
        [Carry(0), Carry(1)],
        [FinalOutput(0), FinalOutput(1), StackedOutput(2, None)],
    ),
    "swapping states": Case(
        swapping_states,
        [STATE, STATE * 0.5],
        [Carry(1), Carry(0)],
        [FinalOutput(0), FinalOutput(1)],
    ),
    "no slice": Case(only_carried, [STATE], [Carry(0)], [FinalOutput(0)]),
    "nothing carried": Case(
        lambda x: tf.matmul(tf.tanh(tf.reshape(x, [-1, SIZE])), W),
        [SEQUENCE],
        [SLICED],
        [StackedOutput(0, None)],
    ),
    "sliced along the last axis": Case(
        lambda h, x: tf.tanh(h + x),
        [STATE, numbers(BATCH, SECTIONS * SIZE)],
        [Carry(0), Scanned(1, 0, SIZE)],
        [StackedOutput(0, 1)],
    ),
}


def unrolled(case: Case, count: int):
    """The sections called one after the other, in plain TensorFlow: the oracle."""

    def run(*arguments):
        made = []
        for s in range(count):
            inputs = []
            for role, argument in zip(case.roles, arguments, strict=True):
                if isinstance(role, Carry):
                    inputs.append(made[-1][role.output] if made else argument)
                elif isinstance(role, Scanned):
                    begin = role.start + s * role.length
                    inputs.append(
                        tf.gather(argument, range(begin, begin + role.length), axis=role.axis)
                    )
                else:
                    inputs.append(argument)
            outputs = case.section(*inputs)
            made.append(outputs if isinstance(outputs, tuple) else (outputs,))
        results = []
        for request in case.requests:
            values = [outputs[request.output] for outputs in made]
            if isinstance(request, FinalOutput):
                results.append(values[-1])
            else:
                results.append(
                    tf.stack(values) if request.axis is None else tf.concat(values, request.axis)
                )
        return results

    return run


def scanned(case: Case, count: int, policy: Policy = save_nothing, kept_by_caller=()):
    # Otherwise AutoGraph converts all of the engine, in a function that is traced with it.
    @tf.autograph.experimental.do_not_convert
    def run(*arguments):
        signature = []
        for role, argument in zip(case.roles, arguments, strict=True):
            shape = argument.shape.as_list()
            if isinstance(role, Scanned):
                shape[role.axis] = role.length
            signature.append(tf.TensorSpec(shape, argument.dtype))
        part = parted(case.section, signature, policy, kept_by_caller=kept_by_caller)
        assert can_scan(part)
        return scan_sections(
            part,
            arguments,
            count=count,
            roles=case.roles,
            requests=case.requests,
            batch=dimensions(arguments[0])[0],
            name="sections",
        )

    return run


@pytest.fixture(scope="module")
def plain_result():
    known: dict[str, Result] = {}

    def result(name: str) -> Result:
        if name not in known:
            case = CASES[name]
            known[name] = differentiate(unrolled(case, SECTIONS), case.arguments, [W, BIAS])
        return known[name]

    return result


@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no-jit", "jit"]
)
@pytest.mark.parametrize("name", CASES)
def test_the_loop_equals_the_sections_unrolled(name, jit, plain_result):
    case = CASES[name]
    ours = differentiate(scanned(case, SECTIONS), case.arguments, [W, BIAS], jit=jit)
    assert_same(ours, plain_result(name), relative=5e-6)


@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
def test_saved_values_are_stored_per_section(jit, plain_result):
    case = CASES["joined"]
    ours = differentiate(
        scanned(case, SECTIONS, save_everything), case.arguments, [W, BIAS], jit=jit
    )
    assert_same(ours, plain_result("joined"), relative=5e-6)


@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no-jit", "jit"]
)
@pytest.mark.parametrize("name", ["joined", "stacked", "joined and last of one output"])
def test_outputs_that_are_stored_anyway_are_at_hand(name, jit, plain_result):
    case = CASES[name]
    stored = sorted({0} | {r.output for r in case.requests if isinstance(r, StackedOutput)})
    ours = differentiate(
        scanned(case, SECTIONS, kept_by_caller=stored), case.arguments, [W, BIAS], jit=jit
    )
    assert_same(ours, plain_result(name), relative=5e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_few_sections(count):
    case = CASES["last of all"]
    ours = differentiate(scanned(case, count), case.arguments, [W, BIAS])
    assert_same(
        ours, differentiate(unrolled(case, count), case.arguments, [W, BIAS]), relative=5e-6
    )


@pytest.mark.parametrize("jit", [False, True], ids=["no-jit", "jit"])
def test_each_section_draws_its_own_mask_and_replays_it(jit):
    case = Case(with_drawn_mask, [STATE], [Carry(0)], [FinalOutput(0), StackedOutput(1, None)])
    DRAWS.assign(0)
    ours = differentiate(scanned(case, SECTIONS), case.arguments, jit=jit)
    assert DRAWS.numpy() == SECTIONS, "a mask was drawn again, or too rarely"
    DRAWS.assign(0)
    assert_same(
        ours, differentiate(unrolled(case, SECTIONS), case.arguments, jit=jit), relative=1e-6
    )


@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no-jit", "jit"]
)
@pytest.mark.parametrize("name", ["joined", "stacked", "last of what is not handed on"])
def test_an_unknown_batch_size(name, jit):
    case = CASES[name]
    signature = [tf.TensorSpec((None, *a.shape[1:])) for a in case.arguments]

    def gradients(function):
        def loss(results):
            return tf.add_n([sum_of_sines(y) for y in results])

        return gradient_step(function, weights=[W, BIAS], of_inputs=True, loss=loss)

    ours = tf.function(
        gradients(scanned(case, SECTIONS)),
        input_signature=signature,
        jit_compile=jit,
        autograph=False,
    )
    for batch in (1, 3):
        arguments = [tf.constant(a[:batch]) for a in case.arguments]
        assert_all_close(
            ours(*arguments), gradients(unrolled(case, SECTIONS))(*arguments), rtol=1e-5, atol=1e-6
        )


def test_the_gradient_of_steps_that_no_section_takes_is_zero():
    case = CASES["joined"]
    d_sequence = differentiate(scanned(case, SECTIONS), case.arguments).gradients[1]
    assert (d_sequence[:, [0, -1]] == 0).all()
    assert (d_sequence[:, 1:-1] != 0).all()


def test_the_program_does_not_grow_with_the_number_of_sections():
    case = CASES["joined"]

    def size(count: int) -> int:
        sequence = tf.TensorSpec((BATCH, 2 + count * STEPS, SIZE))

        def loss(results):
            return tf.add_n([tf.reduce_sum(y) for y in results])

        run = gradient_step(scanned(case, count), weights=[W, BIAS], loss=loss)
        function = tf.function(run, autograph=False).get_concrete_function(
            tf.TensorSpec(STATE.shape), sequence
        )
        definition = function.graph.as_graph_def()
        return len(definition.node) + sum(len(f.node_def) for f in definition.library.function)

    assert size(3) == size(9)


@pytest.mark.parametrize(
    ("section", "possible"),
    [
        (lambda x: x * 2.0, True),
        (lambda x: tf.boolean_mask(x, x[:, 0] > 0), True),  # unknown in the first dimension alone
        (lambda x: tf.transpose(tf.boolean_mask(x, x[:, 0] > 0)), False),
        (lambda x: tf.reshape(x, tf.cast(tf.random.uniform([2]) * 0 + [2, -1], tf.int32)), False),
    ],
    ids=["fixed", "open first", "open second", "open everywhere"],
)
def test_what_a_loop_can_store(section, possible):
    assert can_scan(parted(section, [tf.TensorSpec((4, 4))])) is possible
