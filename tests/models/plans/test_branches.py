"""Plans for models with long branches side by side, such as two towers."""

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.models.keras_graph.cut_points import (
    checkpoint_places,
    order_with_most_cuts,
    single_cuts,
    with_ends_of_branches,
)
from keras_recompute.models.plans.checkpointed import graph_of

K = keras.layers
BLOCKS, WIDE, LENGTH, BATCH = 6, 8, 32, 64


def tower(x, name, blocks=BLOCKS):
    """Blocks of three calls, whose last adds what the first reads."""
    for number in range(blocks):
        hidden = K.Dense(4 * WIDE, "gelu", name=f"{name}_{number}_wide")(x)
        narrow = K.Dense(WIDE, name=f"{name}_{number}_narrow")(hidden)
        x = K.Add(name=f"{name}_{number}")([x, narrow])
    return K.GlobalAveragePooling1D(name=f"{name}_end")(x)


def towers(count=2, blocks=BLOCKS):
    inputs = [keras.Input((LENGTH, WIDE)) for _ in range(count)]
    ends = [tower(x, f"tower{n}", blocks) for n, x in enumerate(inputs)]
    return keras.Model(inputs, K.Dense(1, name="head")(K.Concatenate(name="join")(ends)))


def calls_in_order(model):
    calls = graph_of(model).calls
    return [calls[n] for n in order_with_most_cuts(calls)]


def names_at(positions, calls):
    return [calls[n].operation.name for n in positions]


@pytest.mark.parametrize("count", [2, 3])
def test_every_tower_has_places_for_checkpoints(count):
    calls = calls_in_order(towers(count))
    in_a_tower = 3 * BLOCKS + 1
    assert len(calls) == count * in_a_tower + 2
    # Single cuts are the calls of the first tower, the join and the head; every call is a place.
    assert len(single_cuts(calls)) == in_a_tower + 2
    assert checkpoint_places(calls) == list(range(len(calls)))


def test_a_checkpoint_in_the_second_tower_keeps_the_end_of_the_first():
    calls = calls_in_order(towers())
    in_a_tower = 3 * BLOCKS + 1
    first = names_at([in_a_tower - 1], calls)
    assert names_at(with_ends_of_branches([in_a_tower + 2], calls), calls) == [
        *first,
        *names_at([in_a_tower + 2], calls),
    ]
    assert with_ends_of_branches([2, 5], calls) == [2, 5]
    behind_the_join = 2 * in_a_tower
    assert with_ends_of_branches([behind_the_join], calls) == [behind_the_join]


def test_short_branches_have_no_places():
    x = inputs = keras.Input((WIDE,))
    for _ in range(4):
        x = K.Concatenate()([K.Dense(2)(x), K.Dense(2)(x), K.Dense(2)(x)])
    calls = calls_in_order(keras.Model(inputs, x))
    # Of each block the first branch, as the values in front of it cross anyway, and the end.
    assert checkpoint_places(calls) == single_cuts(calls) == [0, 3, 4, 7, 8, 11, 12, 15]


@pytest.mark.long
def test_two_towers_are_planned_for_less_than_one_alone():
    model = towers(blocks=4)
    model.compile("sgd", "mse", jit_compile=True)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(BATCH, LENGTH, WIDE)).astype("float32") for _ in range(2)]
    y = rng.normal(size=(BATCH, 1)).astype("float32")
    planned, found = kr.plan(model, memory_budget="smallest", sample=(x, y))
    # 0.20 with checkpoints in one tower alone
    assert found.compiled_peak_bytes < 0.17 * found.plain_peak_bytes
    assert {name.split("_")[0] for name in found.checkpoints} == {"tower0", "tower1"}

    losses = []
    weights = model.get_weights()
    for each in (model, planned):
        each.set_weights(weights)
        each.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=True)
        losses.append([float(each.train_on_batch(x, y)) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    assert losses[0][2] < losses[0][0]
