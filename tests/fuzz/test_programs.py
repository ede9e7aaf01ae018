"""Any program has, with its checkpoints, the values, gradients, state and errors that it has
without them.

A longer search: ``KERAS_RECOMPUTE_FUZZ=5000 python3 -m pytest tests/fuzz``; one that goes on after
a failure: ``python3 -m tests.fuzz.long_run``.
"""

from __future__ import annotations

import logging

import pytest
import tensorflow as tf

from keras_recompute.errors import UnsupportedError

from .cases import Case, run
from .compare import check
from .language import (
    Apply,
    Assign,
    Branch,
    Checkpoint,
    Loop,
    Name,
    Outside,
    Program,
    Read,
    Reduce,
    Switch,
)
from .profile import settings_for
from .search import Hunt
from .wrappers import checkpointed

# To compile takes seconds, and what runs eagerly is traced as in a graph.
SHARES = {"eager": 0.36, "graph": 0.3, "jit": 0.05}


@pytest.fixture(autouse=True)
def _unoptimised():
    """Each graph runs once: optimising it takes longer than all else.

    TensorFlow need not say that it traces anew.
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})


@pytest.mark.long
@pytest.mark.parametrize("mode", SHARES)
def test_a_random_program_agrees_with_its_plain_twin(mode):
    how = settings_for(share=SHARES[mode])
    Hunt().run((mode,), how, start=list(SHARES).index(mode) if how.derandomize else None)


def test_what_is_found_out_about_a_text_is_kept():
    """Found by a long search: XLA compiles no operation on texts, and TensorFlow folds none that
    stands in a replay.
    """
    inner = Checkpoint("save_nothing", (Apply("string", 0),), 1, integer=False, of=0)
    check(
        Case(Program((inner,), "save_nothing", 1, nested=False, arguments="positional"), mode="jit")
    )


def test_a_variable_that_a_vectorized_branch_returns_is_refused_by_name():
    """Found by a long search: XLA does not compile the plain program either."""
    cases = ((Assign("scalar", 0),), (Apply("tanh", 0),), (Apply("tanh", 0),))
    mean = Reduce("mean", along="rows", of=4)
    then = (Outside(), Read("gather by n"))
    branch = Branch("n is odd", then=then, otherwise=(mean,), of=0)
    loop = Loop("vectorized_map", (Switch(cases, 0), branch), 0)
    program = Program((loop,), "save_nothing", 1, nested=False, arguments="positional")
    case = Case(program, mode="jit", dtype="float64")
    check(case)
    assert isinstance(run(case, checkpointed).error, UnsupportedError)


def test_a_loop_that_assigns_is_traced_under_a_persistent_tape():
    """Found by a long search: TensorFlow puts it into a function whose own functions the graph does
    not know.
    """
    inner = Checkpoint(
        "save_nothing", (Loop("bounded while", (Assign("scalar", 0),), 0),), 1, integer=False, of=0
    )
    program = Program((inner,), "save_nothing", 1, nested=False, arguments="positional")
    check(Case(program, mode="eager", derivative="persistent"))


def test_second_derivatives_of_branches_in_branches():
    """Found by a long search: under nested tapes TensorFlow put branches into functions and added
    up booleans.
    """
    inner = Branch("n is odd", then=(Name("a", 0),), otherwise=(Apply("tanh", 0),), of=0)
    outer = Branch("n is odd", then=(inner,), otherwise=(Apply("tanh", 1),), of=1)
    check(
        Case(
            Program((Read("scalar"), outer), "save_nothing"), mode="graph", order=2, warm=True, n=3
        )
    )


def test_a_loop_in_a_function_that_was_called_outside_xla_before():
    """Found by a long search: TensorFlow put the loop into a function, where XLA did not know how
    long its lists were.
    """
    inner = Checkpoint(
        "save_nothing", (Loop("scan", (Apply("tanh", 0),), 0),), 1, integer=False, of=0
    )
    check(
        Case(Program((inner,), "save_nothing", arguments="tf.function"), mode="jit", warm=True, n=0)
    )
