"""What cannot work raises the project's own errors, with the function, argument and what to do."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.engine.calls.closures import Callee
from keras_recompute.engine.calls.program_cache import LIMIT
from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.policies import either
from keras_recompute.errors import InvalidArgumentError, RecomputeError, RecomputeWarning

X = np.ones((2, 3), np.float32)


def test_the_function_and_the_policy_must_be_callable():
    with pytest.raises(InvalidArgumentError, match=r"checkpoint\(3\)"):
        checkpoint(3)
    with pytest.raises(InvalidArgumentError, match="policy='save_nothing' is not a policy"):
        checkpoint(tf.sin, policy="save_nothing")
    with pytest.raises(InvalidArgumentError, match="policy=either is not a policy, but a function"):
        checkpoint(tf.sin, policy=either)


@pytest.mark.parametrize("result", [None, 3, {"a": None}, [], "text"], ids=repr)
def test_a_result_without_a_tensor(result):
    def empty_handed(_):
        return result

    with pytest.raises(
        InvalidArgumentError, match=r"'empty_handed' returned .* which has no tensor"
    ):
        checkpoint(empty_handed)(X)


def test_a_tensor_of_another_graph():
    leaked = []

    @tf.function
    def leak(x):
        leaked.append(tf.sin(x))
        return leaked[0]

    leak(X)

    def function(pair, scale=1.0):
        return pair[1] * scale

    def closed(x):
        return x * leaked[0]

    for run in (lambda f: f(), lambda f: tf.function(f, autograph=False)()):
        with pytest.raises(
            InvalidArgumentError,
            match=r"'function' was called with 'Sin:0' as pair\[1\], a tensor of another",
        ):
            run(lambda: checkpoint(function)([X, leaked[0]]))
        with pytest.raises(
            InvalidArgumentError, match="'function' was called with 'Sin:0' as scale"
        ):
            run(lambda: checkpoint(function)([X, X], scale=leaked[0]))
        with pytest.raises(
            InvalidArgumentError, match="'closed' uses 'Sin:0', a tensor of another graph"
        ):
            run(lambda: checkpoint(closed)(X))


def test_a_symbolic_keras_tensor():
    with pytest.raises(InvalidArgumentError, match=r"as argument 0, .*RecomputationCheckpoint"):
        checkpoint(lambda *xs: xs[0])(keras.Input((3,)))


def test_an_error_of_the_function_itself_passes_unchanged():
    def faulty(_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        checkpoint(faulty)(X)


@pytest.mark.long
def test_calls_in_too_many_ways_are_noticed_and_bounded():
    section = checkpoint(lambda x, n: tf.exp(tf.sin(x)) * n)
    for n in range(LIMIT):
        section(X, n)
    with pytest.warns(
        RecomputeWarning, match=rf"more than {LIMIT} ways.*Pass numbers that change as tensors"
    ):
        section(X, LIMIT)
    assert len(Callee.of(section.__wrapped__).cache(section)) == LIMIT


def test_a_tensor_left_behind():
    found, last = [], None

    def appends(x):
        found.append(tf.sin(x))
        return tf.exp(found[-1])

    def sets(x):
        nonlocal last
        last = {"y": [tf.sin(x)]}
        return tf.exp(last["y"][0])

    for run in (lambda f: f(X), lambda f: tf.function(f, autograph=False)(X)):
        with pytest.raises(
            InvalidArgumentError,
            match=r"'appends' stores the tensor 'Sin.*' in 'found'.* Return it",
        ):
            run(checkpoint(appends))
        with pytest.raises(
            InvalidArgumentError, match=r"'sets' stores the tensor 'Sin.*' in 'last'"
        ):
            run(checkpoint(sets))


CALLS = 0


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_side_effects_of_python_are_noticed(graph):
    seen, count, table, same = [], 0, {}, [1, 2]

    def appends(x):
        seen.append(x.shape)
        return tf.exp(tf.sin(x))

    def counts(x):
        nonlocal count
        count += 1
        return tf.exp(tf.sin(x))

    def counts_globally(x):
        global CALLS  # noqa: PLW0603 - what is tested
        CALLS += 1
        return tf.exp(tf.sin(x))

    def stores(x):
        table["n"] = len(same)
        return tf.exp(tf.sin(x))

    def innocent(x):
        return tf.exp(tf.sin(x)) * len(same) * len(table) * CALLS

    for function, message in (
        (
            appends,
            "'appends' changes the list 'seen': .* Python runs .* once per signature.* tf.Variable",
        ),
        (counts, "'counts' sets 'count'"),
        (counts_globally, "'counts_globally' sets 'CALLS'"),
        (stores, "'stores' changes the dict 'table'"),
    ):
        section = checkpoint(function)
        with pytest.warns(RecomputeWarning, match=message):
            (tf.function(section, autograph=False) if graph else section)(X)
        if not graph:
            section(X)  # not run again, so nothing to say
    checkpoint(innocent)(X)


def test_structures_may_change_from_call_to_call():
    section = checkpoint(lambda nest: tf.nest.map_structure(lambda t: tf.exp(tf.sin(t)), nest))
    for nest in (X, [X], {"b": X, "a": [X, X]}, (X,), X):
        tf.nest.assert_same_structure(section(nest), nest)


def test_every_error_is_of_the_project():
    assert issubclass(InvalidArgumentError, RecomputeError)
    assert issubclass(InvalidArgumentError, ValueError)
