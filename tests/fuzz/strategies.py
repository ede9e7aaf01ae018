"""How Hypothesis draws programs and cases.

What comes first in a list is what a failure is shrunk to.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from . import hand_written_gradients
from .cases import Case
from .language import (
    Apply,
    Assign,
    Branch,
    Call,
    Checkpoint,
    Combine,
    Custom,
    Derive,
    Draw,
    Fail,
    Loop,
    Move,
    Name,
    Outside,
    Product,
    Program,
    Read,
    Reduce,
    Scope,
    Step,
    Steps,
    Switch,
    walk,
)
from .op_table import APPLY, COMBINE, MOVE, REDUCE
from .wrappers import POLICIES

COUNT, TURNS, SELDOM, FLAG = st.integers(1, 3), st.integers(0, 3), st.integers(0, 39), st.booleans()
BACK = st.sampled_from(
    [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5]
)  # mostly near, so that what is made is also read
WHOLE, PARTS = (
    ["scalar", "row", "matrix", "read_value", "untrained", "counter"],
    ["gather_nd", "slice", "lookup"],
)
READS = [*WHOLE, "gather", "gather by n", "embedding", *PARTS]
ASSIGNS = ["scalar", "row", "matrix", "table", "set scalar", "count"]
ARGUMENTS = ["positional", "keywords", "nest", "variables", "arrays", "tf.function", "control flow"]
CALLS = ["fresh", "fresh", "fresh", "shared", "shared", "compiled"]
LOOPS = ["bounded while", "while", "n turns", "map_fn", "foldl", "scan", "vectorized_map"]


@functools.lru_cache(maxsize=None)
def one_of(values: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Return the strategy that draws one of ``values``.

    To make a strategy takes longer than to draw from it.
    """
    return st.sampled_from(values)


def choice(values: Iterable[str]) -> st.SearchStrategy[str]:
    return one_of(tuple(values))


SIMPLE: list[tuple[int, st.SearchStrategy[Step]]] = [  # with how often they come
    (6, st.builds(Apply, choice(APPLY), BACK)),
    (4, st.builds(Combine, choice(COMBINE), BACK, BACK)),
    (3, st.builds(Product, choice(["constant", "variable", "value", "einsum"]), BACK, BACK)),
    (2, st.builds(Reduce, choice(REDUCE), choice(["rows", "columns", "all"]), BACK)),
    (3, st.builds(Move, choice(MOVE), BACK)),
    (4, st.builds(Read, choice(READS))),
    (2, st.builds(Name, st.just("a"), BACK)),
    (2, st.builds(Outside)),
    (2, st.builds(Custom, choice(hand_written_gradients.CUSTOM), BACK, BACK)),
    (2, st.builds(Draw, choice(["fixed seed", "seed n", "generator"]), BACK)),
    (2, st.builds(Assign, choice(ASSIGNS), BACK)),
]


def weighted(choices: list[tuple[int, st.SearchStrategy[Step]]]) -> st.SearchStrategy[Step]:
    return st.sampled_from([s for times, s in choices for _ in range(times)]).flatmap(lambda s: s)


def steps(depth: int, longest: int) -> st.SearchStrategy[Steps]:
    """Return lists of instructions, with ``depth`` levels of bodies."""
    choices = SIMPLE
    if depth:
        body = steps(depth - 1, 2)
        compound: list[tuple[int, st.SearchStrategy[Step]]] = [
            (6, st.builds(Checkpoint, choice(POLICIES), body, COUNT, FLAG, BACK)),
            (6, st.builds(Loop, choice(LOOPS), body, BACK)),
            (4, st.builds(Call, choice(CALLS), body, st.integers(1, 2), BACK)),
            (3, st.builds(Branch, choice(["n is odd", "large", "small"]), body, body, BACK)),
            (2, st.builds(Switch, st.tuples(body, body, body), BACK)),
            (2, st.builds(Derive, body, BACK)),
            (2, st.builds(Scope, choice(["recompute", "keep"]), body, BACK)),
        ]
        choices = [*SIMPLE, *compound]
    return st.lists(weighted(choices), min_size=1, max_size=longest).map(tuple)


BODIES = st.one_of(steps(1, 3), steps(1, 3), steps(2, 2))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    body = draw(BODIES)
    if draw(SELDOM) == 39:
        body = (*body, Fail(draw(choice(hand_written_gradients.FAIL)), draw(BACK)))
    policy = draw(one_of((*POLICIES, None, None)))
    if policy is None and not any(isinstance(step, Checkpoint) for step in walk(body)):
        policy = "save_nothing"
    return Program(body, policy, draw(COUNT), draw(FLAG), draw(choice(ARGUMENTS)))


# TensorFlow's own recompute_grad reads variables again in the backward pass, whatever was assigned
# to them in between.
PROGRAMS = programs().filter(
    lambda program: not (_has(program, Assign) and _has(program, Custom, "recompute_grad"))
)


@st.composite
def cases(draw: st.DrawFn, modes: tuple[str, ...]) -> Case:
    mode, program = draw(choice(modes)), draw(PROGRAMS)
    order = draw(one_of((1, 1, 1, 1, 2)))
    return Case(
        program,
        mode=mode,
        dtype=draw(choice(["float64", "float64", "float32"])),
        order=order,
        unknown=draw(choice(_unknown(program, mode))),
        assigns=draw(one_of((False, False, True))) and not _has(program, Custom, "recompute_grad"),
        calls=draw(one_of((1, 1, 1, 2))),
        derivative=draw(choice(_derivatives(program, mode, order))),
        # Which tensor a program closes over is Python's doing, and Python runs once.
        warm=draw(one_of((False, False, False, False, True))) and not _has(program, Outside),
        n=draw(TURNS),
    )


def _unknown(program: Program, mode: str) -> list[str]:
    """Return what may be unknown.

    XLA, given a branch and a shape that is not known, fails, or ends the process.
    """
    if mode == "eager" or (mode == "jit" and _has(program, (Branch, Switch))):
        return ["none"]
    return ["none", "none", "none", "rows", "rows", "all", *(["rank"] if mode == "graph" else [])]


def _derivatives(program: Program, mode: str, order: int) -> list[str]:
    """Return how derivatives may be asked for.

    TensorFlow vectorises few loops, and under XLA few branches.
    """
    ways = [*["tape"] * 10, "persistent", *(["tf.gradients"] if mode != "eager" else [])]
    return [*ways, "jacobian"] if order == 1 and mode != "jit" and not _has(program, Loop) else ways


def _has(program: Program, kind: Any, name: str | None = None) -> bool:
    return any(
        isinstance(step, kind) and name in (None, getattr(step, "kind", None))
        for step in walk(program.body)
    )
