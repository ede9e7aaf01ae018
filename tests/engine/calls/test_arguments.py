"""Arguments that a function changes come back changed, with the plain function's values and
gradients, or the call raises.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:the checkpoint of"
    ),  # these functions are too small to save anything
    pytest.mark.filterwarnings("ignore:.*changes the list 'runs'"),
]

NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


class Cache:
    key = None


class State:
    def __init__(self):
        self.keys, self.seen, self.count, self.scale = [], set(), 0, tf.constant(2.0)


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: Any
    inner: dict


def fills_a_dict(x, shared):
    if "bias" not in shared:
        shared["bias"] = tf.tanh(x)
    return tf.sin(x + shared["bias"])


def appends(x, values):
    values.append(tf.sin(x))
    return tf.add_n(values) * x


def changes_inside(x, outer):
    outer["in"]["list"].append(x * 2.0)
    outer["in"].pop("gone", None)
    return tf.sin(outer["in"]["list"][-1])


def changes_in_a_function_inside(x, values):
    def append():
        values.append(x * 3.0)

    append()
    append()
    return x * len(values)


def fills_a_cache(x, cache):
    if cache.key is None:
        cache.key = tf.tanh(x)
        return x * 1.0
    return cache.key * x


def changes_an_object(x, state):
    state.keys.append(x + 1.0)
    state.count += 1
    state.scale = state.scale * 2.0
    state.seen.add(state.count)
    return x * state.scale * state.count


def changes_a_data_class(x, pair):
    pair.second = pair.first * x
    return pair


def changes_what_a_frozen_one_holds(x, frozen):
    frozen.inner["x"] = tf.sin(x) * frozen.scale
    return frozen.inner["x"] * x


def changes_a_set(x, seen):
    seen.add(len(seen))
    return x * len(seen)


def changes_a_deque(x, last):
    last.append(x * 2.0)
    return x * len(last)


def counts(x, found):
    found["calls"] += 1
    return x * found["calls"]


def swaps(x, two):
    two[0], two[1] = two[1], two[0]
    return x * two[0]


def returns_what_it_changes(x, shared):
    shared["y"] = x * 2.0
    return shared


def sets_what_is_there_in_a_branch(x, shared):
    if tf.reduce_sum(x) > 0.0:
        shared["y"] = x * 2.0
    return x * shared["y"]


CHANGES = [
    (fills_a_dict, dict),
    (appends, list),
    (changes_inside, lambda: {"in": {"list": [tf.constant(1.0)], "gone": 1}}),
    (changes_in_a_function_inside, list),
    (fills_a_cache, Cache),
    (changes_an_object, State),
    (changes_a_data_class, lambda: Pair(tf.constant(3.0))),
    (changes_what_a_frozen_one_holds, lambda: Frozen(tf.constant(3.0), {})),
    (changes_a_set, set),
    (changes_a_deque, lambda: collections.deque(maxlen=2)),
    (counts, lambda: collections.defaultdict(int)),
    (swaps, lambda: [tf.constant(1.0), tf.constant(5.0)]),
    (returns_what_it_changes, dict),
    (sets_what_is_there_in_a_branch, lambda: {"y": tf.constant([1.0, 1.0])}),
]


def shown(value):
    """The value as plain data, which can be compared."""
    if isinstance(value, tf.Tensor):
        return value.numpy().tolist()
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, collections.deque)):
        return [type(value).__name__, *map(shown, value)]
    return shown(vars(value)) if hasattr(value, "__dict__") else value


def tensor_in(result):
    if isinstance(result, tf.Tensor):
        return result
    return result.second if isinstance(result, Pair) else result["y"]


def steps(function, argument, mode):
    """Three calls that share an argument, and the gradient through all of them; twice where calls
    are eager.
    """
    x = tf.constant([0.5, 1.0])

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.add_n([tf.reduce_sum(tensor_in(function(x, argument))) for _ in range(3)])
        return y, tape.gradient(y, x)

    if mode == "eager":
        return shown([step(x), step(x), argument])
    return shown(tf.function(step, jit_compile=mode == "jit")(x))


@pytest.mark.parametrize(
    "mode", ["eager", "graph", pytest.param("jit", marks=pytest.mark.long(every_case=True))]
)
@pytest.mark.parametrize(
    ("function", "make"), CHANGES, ids=[function.__name__ for function, _ in CHANGES]
)
def test_what_is_changed_comes_back(function, make, mode):
    found, expected = (steps(each, make(), mode) for each in (kr.checkpoint(function), function))
    assert len(numbers(found)) == len(numbers(expected))
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-5)
    assert re.sub(NUMBER, "", repr(found)) == re.sub(NUMBER, "", repr(expected))


def numbers(value):
    """The numbers in ``shown``."""
    return [float(each) for each in re.findall(NUMBER, repr(value))]


def test_one_list_under_two_names_stays_one():
    def function(x, a, b):
        a.append(x)
        return x * len(b)

    values = []
    assert kr.checkpoint(function)(tf.constant(2.0), values, values) == 2.0
    assert len(values) == 1


def test_a_change_happens_at_each_call_of_one_program():
    runs = []

    def function(x, made):
        runs.append(None)
        made["y"] = tf.sin(tf.sin(x))
        return made["y"] * x

    wrapped, found = kr.checkpoint(function), []
    for number in range(4):
        made = {}
        wrapped(tf.constant(float(number)), made)
        found.append(float(made["y"]))
    assert found == pytest.approx([float(tf.sin(tf.sin(float(n)))) for n in range(4)])
    assert len(runs) == 1


def test_the_callers_own_tensors_stay_the_callers():
    kept, array = tf.constant(1.0), np.float32(2.0)
    values = [kept, array]

    def function(x, values):
        values.append(x)
        return tf.sin(values[0] + values[1] * x)

    kr.checkpoint(function)(tf.constant(3.0), values)
    assert values[0] is kept
    assert values[1] is array


def test_objects_made_anew_share_a_program_and_their_tensors_have_gradients():
    runs = []

    def function(pair):
        runs.append(None)
        return tf.sin(tf.sin(pair.first)) * pair.second

    wrapped, x = kr.checkpoint(function), tf.constant(0.5)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.add_n([wrapped(Pair(x * n, 2.0)) for n in (1.0, 2.0, 3.0)])
    expected = sum(2.0 * n * np.cos(np.sin(0.5 * n)) * np.cos(0.5 * n) for n in (1.0, 2.0, 3.0))
    assert tape.gradient(y, x).numpy() == pytest.approx(expected, rel=1e-5)
    assert len(runs) == 1


def test_data_classes_are_results():
    result = kr.checkpoint(lambda x: (tf.reduce_sum(tf.sin(x)), Pair(None, {"c": tf.cos(x)})))(
        tf.ones(3)
    )
    assert result[1].first is None
    np.testing.assert_allclose(result[1].second["c"], np.cos(np.ones(3)), rtol=1e-6)


def updates_in_a_branch(x, shared):
    if tf.reduce_sum(x) > 0.0:
        shared.update(n=1)
    return x * 1.0


def appends_in_a_loop(x, shared):
    for number in tf.range(3):
        shared.append(number)
    return x * 1.0


def removes_in_tf_cond(x, shared):
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x * shared.pop("n"), lambda: x)


def sets_in_a_branch_only(x, shared):
    if tf.reduce_sum(x) > 0.0:
        shared["n"] = x
    return x * 1.0


def draws(x, generator):
    return x * generator.random()


def takes_next(x, values):
    return x * next(values)


def writes(x, array):
    array[0] = 3.0
    return x * array


def adds_to(x, array):
    array += 3.0
    return tf.sin(x * array)


def takes_from(x, arrays):
    array = arrays[0]
    array = array - 3.0  # another array: the one that was given stays as it is
    return tf.sin(x * array)


def reads_what_a_branch_left(x, shared):
    if tf.reduce_sum(x) > 0:
        shared.append(x * 2.0)
    return tf.sin(x) + sum(shared)


def reads_what_a_side_of_tf_cond_left(x, shared):
    def side():
        shared["doubled"] = 2.0 * x
        return x

    return tf.cond(tf.reduce_sum(x) > 0, side, lambda: -x) + shared["doubled"]


def grows(x, data):
    data.extend(b"x")
    return x * len(data)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(
    ("function", "make", "says"),
    [
        (updates_in_a_branch, dict, "changes its argument shared\\['n'\\] inside a branch"),
        (appends_in_a_loop, list, "changes its argument shared\\[0\\] inside a branch or a loop"),
        (
            removes_in_tf_cond,
            lambda: {"n": 2.0},
            "changes its argument shared\\['n'\\] inside a branch",
        ),
        (reads_what_a_branch_left, list, r"changes its argument shared\[0\] inside a branch"),
        (
            reads_what_a_side_of_tf_cond_left,
            dict,
            r"its argument shared\['doubled'\] inside a branch",
        ),
        (
            sets_in_a_branch_only,
            dict,
            "'shared\\['n'\\]' must also be initialized in the else branch",
        ),  # AutoGraph's
        (draws, lambda: random.Random(1), "changes its argument generator, a Random"),
        (draws, lambda: np.random.default_rng(1), "changes its argument generator, a Generator"),
        (takes_next, lambda: iter([1.0, 2.0]), "list_iterator as values: .* next\\(values\\)"),
        (takes_next, lambda: (n for n in (1.0, 2.0)), "generator as values: .* list\\(values\\)"),
        (
            writes,
            lambda: np.zeros(2, np.float32),
            "writes into a NumPy array that it is given \\(array\\)",
        ),
        (
            adds_to,
            lambda: np.zeros(2, np.float32),
            "writes into a NumPy array that it is given \\(array\\)",
        ),
        (grows, lambda: bytearray(b"a"), "changes its argument data, a bytearray"),
    ],
)
def test_what_cannot_come_back_is_refused(function, make, says, mode):
    wrapped, argument = kr.checkpoint(function), make()

    def call(x):
        return wrapped(x, argument)

    with pytest.raises(ValueError, match=says):
        (call if mode == "eager" else tf.function(call))(tf.constant([0.5, 1.0]))


def test_an_array_that_is_only_read_may_be_given():
    found = kr.checkpoint(takes_from)(tf.constant([0.5]), [np.ones(1, np.float32)])
    np.testing.assert_allclose(found, np.sin([0.5 * -2.0]), rtol=1e-6)


def test_a_refused_call_leaves_the_argument_as_it_was():
    shared = {}
    with pytest.raises(kr.errors.InvalidArgumentError, match="inside a branch"):
        kr.checkpoint(updates_in_a_branch)(tf.ones(2), shared)
    assert not shared
