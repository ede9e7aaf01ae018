"""A model that exists, with checkpoints put into it: where they stand, what is shared, what is
refused.
"""

from __future__ import annotations

import re
import warnings

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, RecomputeWarning
from keras_recompute.models.keras_graph.section_loops import SectionLoop
from keras_recompute.models.plans.checkpointed import with_checkpoints

from ..networks import FEATURES, NETWORKS, UNITS, dense_chain, numbers, shared_dense
from ..same_training import assert_agree, training_pass


def chain(depth: int = 9) -> keras.Model:
    inputs = x = keras.Input((FEATURES,))
    for n in range(depth):
        x = keras.layers.Dense(FEATURES, activation="tanh", name=f"d{n}")(x)
    return keras.Model(inputs, x, name="chain")


def sections(model: kr.Model) -> list[list[str]]:
    """Return the names of the layers of each section, without checkpoints; last what is not
    recomputed.
    """
    marks = kr.RecomputationCheckpoint
    return [
        [c.operation.name for c in s.calls if not isinstance(c.operation, marks)]
        for s in model.plan.steps
    ]


def test_every_n_layers_of_a_chain():
    names = [f"d{n}" for n in range(9)]
    assert sections(kr.checkpointed(chain(), every=3)) == [names[:3], names[3:6], names[6:]]
    assert sections(kr.checkpointed(chain(), every=4)) == [names[:4], names[4:]], (
        "behind d7 one layer would be left"
    )
    assert sections(kr.checkpointed(chain(), every=1)) == [[name] for name in names]


def test_at_named_layers():
    model = kr.checkpointed(chain(5), at=["d1", "d3"])
    assert sections(model) == [["d0", "d1"], ["d2", "d3"], ["d4"]]
    assert model.plan.checkpoints == ("d1", "d3")
    again = kr.checkpointed(kr.checkpointed(chain(5), at="d1"), at="d1")
    assert sections(again) == [["d0", "d1"], ["d2", "d3", "d4"]], "one checkpoint, not two"


def test_a_residual_block_is_not_cut_where_two_values_would_be_kept():
    """Three blocks of three layers behind a first layer: any cut inside a block keeps the way
    around it too.
    """
    inputs = keras.Input((UNITS,))
    x = keras.layers.Dense(UNITS, name="first")(inputs)
    for n in range(3):
        y = keras.layers.Dense(UNITS, "tanh", name=f"in{n}")(x)
        x = keras.layers.Add(name=f"add{n}")([x, keras.layers.Dense(UNITS, name=f"out{n}")(y)])
    model = kr.checkpointed(keras.Model(inputs, x), every=3)
    blocks = [[f"in{n}", f"out{n}", f"add{n}"] for n in range(3)]
    assert sections(model) == [["first", *blocks[0]], *blocks[1:]], (
        "the first three layers end inside a block"
    )


def test_two_towers_are_cut_one_by_one():
    towers = [keras.Input((UNITS,), name=side) for side in ("left", "right")]
    inputs, ends = list(towers), []
    for side, tower in zip(("left", "right"), towers):
        x = tower
        for n in range(4):
            x = keras.layers.Dense(UNITS, "tanh", name=f"{side}{n}")(x)
        ends.append(x)
    model = kr.checkpointed(
        keras.Model(inputs, keras.layers.Concatenate(name="join")(ends)), every=2
    )
    *found, last = sections(model)
    assert sorted(found) == [
        [f"{side}{n}", f"{side}{n + 1}"] for side in ("left", "right") for n in (0, 2)
    ]
    assert last == ["join"]


def test_a_layer_used_again_is_marked_at_each_use_and_the_sections_are_one_loop():
    inputs = keras.Input((FEATURES,))
    x = keras.layers.Dense(UNITS)(inputs)
    layer = keras.layers.Dense(UNITS, activation="tanh", name="again")
    for _ in range(5):
        x = layer(x)
    model = kr.checkpointed(keras.Model(inputs, keras.layers.Dense(1)(x)), at=["again"])
    (run,) = (step for step in model.plan.steps if isinstance(step, SectionLoop))
    assert len(run.sections) == 4  # the first also holds the layer in front
    assert model.count_params() == shared_dense(keras.Model, 5).count_params()


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.long) for name in ("masked", "keras lstm")),
        "nested",
        "batch norm",
        "skips",
    ],
)
def test_the_numbers_are_those_of_the_plain_model(name):
    network = NETWORKS[name]
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        models.append(network.build(keras.Model))
    plain, base = models
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecomputeWarning)
        ours = kr.checkpointed(base, every=1)
    assert ours.plan.recomputes
    assert_agree(
        training_pass(ours, network.arrays, mode="graph"),
        training_pass(plain, network.arrays, mode="graph"),
    )


def test_inputs_and_outputs_keep_their_names_and_order():
    plain = NETWORKS["several"].build(keras.Model)
    model = kr.checkpointed(plain, at=[plain.layers[4].name])
    x = {"left": numbers(2, FEATURES), "right": numbers(2, FEATURES, seed=1)}
    ours, expected = model([x["left"], x["right"]]), plain([x["left"], x["right"]])
    assert ours.keys() == expected.keys() == {"middle", "marked", "end"}
    for name, value in expected.items():
        np.testing.assert_array_equal(ours[name], value)


def test_layers_and_weights_are_shared_with_a_sequential_model(tmp_path):
    plain = keras.Sequential([keras.layers.Dense(3, name=f"d{n}") for n in range(5)])
    with pytest.raises(
        InvalidArgumentError, match=r"the shape of the input of .* is not known yet"
    ):
        kr.checkpointed(plain, every=2)
    plain.build((None, FEATURES))
    model = kr.checkpointed(plain, every=2)
    assert sections(model) == [["d0", "d1"], ["d2", "d3"], ["d4"]]
    before = plain.get_weights()
    model.compile("sgd", "mse", jit_compile=False)
    x, y = numbers(4, FEATURES), numbers(4, 3)
    model.fit(x, y, verbose=0)
    assert all(np.any(a != b) for a, b in zip(before, plain.get_weights(), strict=True)), (
        "training one trains the other"
    )
    np.testing.assert_array_equal(model(x), plain(x))

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is kr.Model
    assert sections(loaded) == sections(model)
    np.testing.assert_array_equal(loaded(x), plain(x))


def test_a_plain_model_with_checkpoint_layers_needs_no_more():
    plain = dense_chain(keras.Model, 3)
    model = kr.checkpointed(plain)
    assert [len(section) for section in sections(model)] == [1, 1, 1, 1]
    assert model.trainable_variables[0] is plain.trainable_variables[0]


def test_a_model_keeps_its_levels_and_takes_further_checkpoints():
    model = kr.checkpointed(chain(6), every=3)
    model.recomputation_levels = 2
    further = with_checkpoints(model, [0])
    assert further.recomputation_levels == 2
    assert [len(section) for section in sections(further)] == [1, 2, 3]


class WithCall(keras.Model):
    def call(self, inputs, **kwargs):
        return super().call(inputs, **kwargs) * 2


def with_call() -> WithCall:
    plain = chain()
    return WithCall(plain.inputs, plain.outputs, name="mine")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: kr.checkpointed(chain()),
            "'chain' has no RecomputationCheckpoint layers, and neither",
        ),
        (
            lambda: kr.checkpointed(chain(), every=2, at=["d0"]),
            r"every=2 and at=\['d0'\] were both given",
        ),
        (
            lambda: kr.checkpointed(chain(2), at=["d0", "d7"]),
            "'chain' has no layer 'd7' .* Its layers are 'd0', 'd1'$",
        ),
        (lambda: kr.checkpointed(chain(), at=[]), "at=.*give the names of layers"),
        (lambda: kr.checkpointed(chain(), at=[3]), r"at=\[3\]"),
        (lambda: kr.checkpointed(chain(), at=3), "at=3: give the names of layers"),
        (
            lambda: kr.checkpointed(chain(), at=chain().layers[2]),
            "'chain' has no layer <Dense name=d1, .*> to put a checkpoint after",
        ),
        (lambda: kr.checkpointed(chain(), every=0), "every=0 is not a number of layers"),
        (lambda: kr.checkpointed(chain(), every=True), "every=True"),
        (lambda: kr.checkpointed(chain(), every=2.0), "every=2.0"),
        (
            lambda: kr.checkpointed(chain(), every=9),
            "every=9 leaves no place .* has 9 layers. .* such as 3$",
        ),
        (
            lambda: kr.checkpointed(with_call(), every=2),
            "'mine' is a WithCall with a call method of its own. .* by layers=",
        ),
        (lambda: kr.checkpointed(chain(12), at="d11x"), r"no layer 'd11x' .* Did you mean 'd11'"),
        (lambda: kr.checkpointed(tuple, every=2), "is not a Keras model"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    ("batch", "saves"), [(1, False), pytest.param(1024, True, marks=pytest.mark.long)]
)
def test_a_sample_shows_whether_memory_is_saved(batch, saves):
    """Eight layers of 128 x 128 weights, 64 KiB each: a batch of one row has activations of half a
    KiB."""
    inputs = x = keras.Input((128,))
    for _ in range(8):
        x = keras.layers.Dense(128, "tanh")(x)
    model = keras.Model(inputs, x, name="weighty")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecomputeWarning)
        kr.checkpointed(model, every=2)
        ours = kr.checkpointed(
            model, every=2, sample=(np.zeros((batch, 128)), np.zeros((batch, 128)))
        )
    assert ours.plan.recomputes
    said = [str(each.message) for each in caught if each.category is RecomputeWarning]
    assert len(said) == (not saves)
    for message in said:
        assert re.search(
            r"of 'weighty' save no memory: .* [\d.]+ KiB with them and [\d.]+ KiB without, "
            r"on float32\(1, 128\)",
            message,
        )


def test_a_sample_that_does_not_fit_is_refused():
    with pytest.raises(InvalidArgumentError, match="sample= has shape"):
        kr.checkpointed(chain(), every=3, sample=np.zeros((2, FEATURES + 1)))


@pytest.mark.parametrize("every", [1, 3])
def test_the_loss_is_scaled_as_the_plain_models_is(every):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layers = [keras.layers.Dense(4, "tanh") for _ in range(6)]
        plain = keras.Sequential([keras.Input((4,)), *layers])
    finally:
        keras.config.set_dtype_policy("float32")
    # Made where another policy holds.
    model = kr.checkpointed(plain, every=every)
    assert model.dtype_policy.name == "mixed_float16"
    model.compile("sgd", "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
