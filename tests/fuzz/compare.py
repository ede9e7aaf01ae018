"""What a checkpointed program may do that its plain twin does not, and what it must not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_recompute.errors import InvalidProgramError, RecomputeError, UnsupportedError

from .cases import Case, Outcome, run
from .environment import world_of
from .language import Derive, Draw, Loop, walk
from .wrappers import checkpointed, plainly, traced

_NUMBER = re.compile(r"\d+")
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}

# What the documentation says that a checkpoint refuses, though the plain function works: class and
# a part of the message.
REFUSALS: tuple[tuple[type[RecomputeError], str], ...] = (
    # engine/emit/higher_order.py: a second derivative would have to draw or assign a second time
    (UnsupportedError, "may not run twice and was not saved"),
)

# Errors of TensorFlow's that only plain programs meet.
FAULTS = (
    (
        "No registered 'ResourceGather"
    ),  # XLA does not compile every read of a variable; ours is a read of its value
    (
        "'NoneType' object has no attribute 'graph'"
    ),  # an assertion, vectorised: its turns are made into an operation of None
    "Required handle data not set",  # what a branch hands to its gradient, vectorised
    # A bounded loop in a vectorized_map has no second derivative.
    "Error extracting cond and body functions",
)

# Errors of TensorFlow's that only checkpointed programs meet, see docs/limits.md: a part of the
# message, and of which cases.
LIMITS: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    # A tf.recompute_grad of a variable in a bounded loop has no derivative in a traced function,
    # which a checkpoint asks for when it is traced, and a tf.function only where the result
    # matters.
    ("is in list of internal_captures but", lambda case: "recompute_grad" in repr(case)),
    # XLA does not compile the branches of a tf.function that was differentiated outside it, which a
    # checkpoint does at once.
    ("No registered 'OptionalFromValue'", lambda case: case.warm and case.mode == "jit"),
    # XLA has no strings: whether TensorFlow folds an operation on them away before depends on what
    # stands around it.
    ("No registered 'AsString'", lambda case: case.mode == "jit"),
    # The optimiser makes a NoOp of a compiled call that nobody reads, and XLA takes that for a
    # call.
    ("Function NoOp is not defined", lambda case: "compiled" in repr(case)),
    # A tf.function that reads a variable in a branch has no Jacobian in another that was traced
    # below a persistent tape.
    (
        "while vectorizing the jacobian",
        lambda case: case.program.arguments == "tf.function" and "Branch" in repr(case),
    ),
)


class Disagreement(AssertionError):
    """A checkpointed program does not do what its plain twin does.

    ``kind`` is the same for all failures of one sort.
    """

    def __init__(self, kind: str, detail: str, case: Case) -> None:
        super().__init__(f"{kind}: {detail}\n{case}\n{case!r}")
        self.kind = kind
        self.detail = detail
        self.case = case


def check(case: Case) -> None:
    """Raise Disagreement unless ``case`` does the same with and without its checkpoints."""
    try:
        judge(case, run(case, plainly), run(case, checkpointed))
    finally:
        world_of(case.dtype).shared.clear()


def judge(case: Case, plain: Outcome, ours: Outcome) -> None:
    """Raise Disagreement unless ``ours`` may stand beside ``plain``.

    What differs may still be what TensorFlow does with a ``tf.function`` in place of each
    checkpoint, and is then asked of that: a checkpointed function is traced, also where it is
    called eagerly, so what cannot be traced cannot be checkpointed; and it is one function for
    tapes (see ``_check_missing``).
    """
    if ours.error is not None and (is_refusal(ours.error) or is_limit(ours.error, case)):
        return
    names = sorted(plain.values.keys() | ours.values.keys())
    if ours.error is None and plain.error is None:
        try:
            _compare_all(names, plain, ours, case)
        except Disagreement:
            # A tensor that a traced function closes over and returns is another one outside, with
            # no gradient to the first. And in a graph TensorFlow loses gradients of a
            # vectorized_map that it finds when what is mapped is traced.
            if not _agrees(names, run(case, traced), ours, case) and not _is_lost_by_the_optimiser(
                names, (plain, ours), case
            ):
                raise
        missing = [
            name
            for name in names
            if (plain.values.get(name) is None) != (ours.values.get(name) is None)
        ]
        if missing:
            _check_missing(missing, ours, run(case, traced), case)
    elif ours.error is None:
        alike = _where_less_is_refused(case)
        if alike.error is not None and any(
            is_fault(error, case) for error in (plain.error, alike.error)
        ):
            return  # there is nothing to compare with
        if alike.error is not None:
            raise Disagreement(
                f"works where plain raises {sort_of(plain.error)}", _said(plain.error), case
            )
        if case.mode == "jit" and any(isinstance(step, Draw) for step in walk(case.program.body)):
            return  # XLA draws other numbers than TensorFlow does: there is nothing to compare
        judge(case, alike, ours)
    elif plain.error is None or not may_be_raised(ours.error, plain.error):
        alike = run(case, traced)
        # TensorFlow's limits show in one error or another, depending on where its code comes to the
        # end of its ways.
        if (alike.error is None and not _fails_in_a_graph(case)) or isinstance(
            ours.error, InvalidProgramError
        ):
            instead = "" if plain.error is None else f" instead of {_said(plain.error)}"
            raise Disagreement(
                f"raises {sort_of(ours.error)}", f"{_said(ours.error)}{instead}", case
            )


def _is_lost_by_the_optimiser(
    names: Sequence[str], outcomes: Sequence[Outcome], case: Case
) -> bool:
    """Whether a value was never computed, and all agree without TensorFlow's graph optimiser.

    Of ``tf.gradients(tf.switch_case(n, [lambda: tf.tanh(x), lambda: x + x]), x)``, with ``x`` of
    unknown shape and ``n`` 1, it leaves an empty tensor, in a plain ``tf.function`` too.
    """
    values = [outcome.values.get(name) for outcome in outcomes for name in names]
    if case.mode == "jit" or not any(value is not None and value.shape == (0,) for value in values):
        return False
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        return _agrees(names, run(case, plainly), run(case, checkpointed), case)
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def _where_less_is_refused(case: Case) -> Outcome:
    """Return what the plain program does in a graph, or else eagerly.

    XLA compiles not every read of a variable, and a graph differentiates not every custom gradient
    in a branch a second time; a checkpointed program, whose gradients are its own and which reads
    variables by value, may do without either.
    """
    modes = {"jit": ["graph", "eager"], "graph": ["eager"], "eager": []}[case.mode]
    wider = [
        dataclasses.replace(
            case, mode=mode, unknown="none", derivative=_in_any_mode(case.derivative)
        )
        for mode in modes
    ]
    found = run(case, traced)
    while found.error is not None and wider:
        found = run(wider.pop(0), plainly)
    return found


def _fails_in_a_graph(case: Case) -> bool:
    """Whether TensorFlow cannot do in a graph what ``case`` asks of it eagerly: a checkpoint is
    always one.
    """
    return (
        case.mode == "eager"
        and run(dataclasses.replace(case, mode="graph"), plainly).error is not None
    )


def _in_any_mode(derivative: str) -> str:
    return "tape" if derivative == "tf.gradients" else derivative


def _check_missing(names: Sequence[str], ours: Outcome, alike: Outcome, case: Case) -> None:
    """Check gradients that are zeros on one side and None on the other against ``alike``, the
    program's traced twin.

    To a source that only reaches results that nobody differentiates, a traced function returns
    zeros. Under tapes that are nested or persistent, a checkpoint that is called eagerly returns
    zeros to all its arguments. A second derivative is None where the backward program reads no
    argument, which that of a traced function, given all of them, does not know. The derivative of a
    loop whose turns do not depend on its argument is a constant, of which a loop in a graph gives
    zeros.
    """
    is_strict = case.order == 1 and case.derivative in ("tape", "tf.gradients")
    for name in names if alike.error is None else ():
        is_none, is_none_alike = ours.values.get(name) is None, alike.values.get(name) is None
        if is_none and _derives_a_loop(case):
            continue
        if is_none != is_none_alike and (is_strict or (is_none and not name.startswith("dd "))):
            found = "None" if is_none else "zeros"
            raise Disagreement(
                f"{_sort(name)}: {found}",
                f"{name} is {found}, otherwise than with a tf.function",
                case,
            )


def _derives_a_loop(case: Case) -> bool:
    derived = (step for step in walk(case.program.body) if isinstance(step, Derive))
    return any(isinstance(step, Loop) for derive in derived for step in walk(derive.body))


def _compare_all(names: Sequence[str], plain: Outcome, ours: Outcome, case: Case) -> None:
    for name in names:
        _compare(name, plain.values.get(name), ours.values.get(name), case)


def _agrees(names: Sequence[str], plain: Outcome, ours: Outcome, case: Case) -> bool:
    try:
        _compare_all(names, plain, ours, case)
    except Disagreement:
        return False
    return True


def _compare(name: str, plain: np.ndarray | None, ours: np.ndarray | None, case: Case) -> None:
    sort = _sort(name)
    if plain is None or ours is None:
        there = ours if plain is None else plain
        if there is not None and np.any(there):
            raise Disagreement(f"{sort}: None", f"{name}: {ours} instead of {plain}", case)
        return
    if (plain.dtype, plain.shape) != (ours.dtype, ours.shape):
        raise Disagreement(
            f"{sort}: shape",
            f"{name}: {ours.dtype}{ours.shape}, not {plain.dtype}{plain.shape}",
            case,
        )
    if not np.issubdtype(plain.dtype, np.floating):
        if np.any(plain != ours):
            raise Disagreement(f"{sort}: numbers", f"{name}: {ours} instead of {plain}", case)
        return
    if not np.all(np.isfinite(plain)):
        return  # not of order one, so that nothing can be said about digits
    scale = max(1.0, np.abs(plain).max(initial=0.0))
    off = np.abs(plain - ours).max(initial=0.0)
    if not off <= TOLERANCE[case.dtype] * scale:
        raise Disagreement(
            f"{sort}: numbers",
            f"{name} is off by {off / scale:.2g}: {ours} instead of {plain}",
            case,
        )


def _sort(name: str) -> str:
    return "state" if name.endswith("afterwards") else name.split(maxsplit=1)[0]


def is_refusal(error: Exception) -> bool:
    """Whether the documentation says that ``error`` is to be expected of a program that works
    plainly.
    """
    return any(isinstance(error, kind) and part in str(error) for kind, part in REFUSALS)


def is_fault(error: Exception, case: Case) -> bool:
    """Whether ``error`` is one of TensorFlow's that is known to come of plain programs such as
    ``case``.
    """
    # Nothing here asserts by ``assert``, while TensorFlow does of a vectorised map, and of a branch
    # in a branch of a function.
    is_assertion = type(error) is AssertionError and any(
        word in repr(case) for word in ("vectorized_map", "Branch", "Switch")
    )
    return is_assertion or any(part in str(error) for part in FAULTS)


def is_limit(error: Exception, case: Case) -> bool:
    """Whether ``error`` is one of TensorFlow's that is known to come of checkpoints in a case such
    as this.
    """
    return any(part in str(error) and concerns(case) for part, concerns in LIMITS)


def may_be_raised(ours: Exception, plain: Exception) -> bool:
    """Whether ``ours`` is what should be raised where ``plain`` is: the same class, or one of this
    project's.

    A checkpointed function is traced also where it is called eagerly. So TensorFlow may find while
    it builds a graph (ValueError) what it otherwise finds when it runs (InvalidArgumentError).
    """
    if type(ours) is type(plain):
        return True
    if isinstance(ours, RecomputeError):
        return not isinstance(ours, InvalidProgramError)
    return type(ours) is ValueError and type(plain).__name__ == "InvalidArgumentError"


def sort_of(error: Exception) -> str:
    """Return the message of ``error`` without what differs from program to program."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = next(
        (x for x in reversed(lines) if re.match(r"\w*(Error|Exception)", x)),
        lines[0] if lines else "",
    )
    line = re.sub(r"{{[^}]*}}|'[^']*'|\"[^\"]*\"|<[^>]*>|\[[^\]]*\]|\([^)]*\)", "…", line)
    return f"{type(error).__name__}: {_NUMBER.sub('#', line)[:100]}"


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}({' | '.join([*lines[:1], *lines[-2:]])[:400]})"
