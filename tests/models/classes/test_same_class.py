"""Models of a class of their own, and models with models inside: the result is of that class, and
trains as the plain one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.models.keras_graph.submodel_inlining import InputAdapter
from tests.oracle import assert_same_training

from ..networks import FEATURES, UNITS, numbers

X, Y = {"features": numbers(8, FEATURES)}, numbers(8, 2, seed=1)


@keras.saving.register_keras_serializable(package="tests.same_class")
class Backbone(keras.Model):
    """A chain of dense layers, as KerasHub writes its backbones: arguments, attributes, and a
    graph.
    """

    def __init__(self, depth: int = 6, **kwargs):
        self.blocks = [
            keras.layers.Dense(UNITS, activation="tanh", name=f"block_{n}") for n in range(depth)
        ]
        inputs = x = keras.Input((FEATURES,), name="features")
        for block in self.blocks:
            x = block(x)
        norm = keras.layers.BatchNormalization(name="norm")(x)
        super().__init__(inputs={"features": inputs}, outputs={"last": norm, "before": x}, **kwargs)
        self.depth = depth

    def get_config(self):
        return {"depth": self.depth, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable(package="tests.same_class")
class Task(keras.Model):
    """A backbone and a head, as KerasHub writes its tasks: the backbone is a model inside."""

    def __init__(self, backbone: Backbone, preprocessor=None, **kwargs):
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.head = keras.layers.Dense(2, name="head")
        inputs = backbone.input
        super().__init__(inputs=inputs, outputs=self.head(backbone(inputs)["last"]), **kwargs)
        self.steps_seen = 0

    def generate(self, x):
        return np.argmax(self.predict(x, verbose=0), axis=-1)

    def train_step(self, data):
        self.steps_seen += 1
        return super().train_step(data)

    def get_config(self):
        return {
            "backbone": keras.layers.serialize(self.backbone),
            "preprocessor": self.preprocessor,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "backbone": keras.layers.deserialize(config["backbone"])})


class Stepping(keras.Model):
    """No constructor of its own: Keras makes and clones it from inputs and outputs."""

    def train_step(self, data):
        return super().train_step(data)


def stepping() -> keras.Model:
    backbone = Backbone(4)
    inputs = keras.Input((FEATURES,), name="features")
    return Stepping(
        {"features": inputs}, keras.layers.Dense(2)(backbone({"features": inputs})["last"])
    )


def functional() -> keras.Model:
    """Two models inside each other, called with a list, in front of a head."""
    inner = Backbone(3)
    inputs = keras.Input((FEATURES,))
    middle = keras.Model(
        [inputs], keras.layers.Dense(UNITS)(inner({"features": inputs})["last"]), name="middle"
    )
    inputs = keras.Input((FEATURES,), name="features")
    return keras.Model({"features": inputs}, keras.layers.Dense(2)(middle([inputs])), name="whole")


BUILDERS = {
    "task": lambda: Task(Backbone(name="backbone"), preprocessor="words", name="task"),
    "stepping": stepping,
    "functional": functional,
}


def pair(name: str) -> tuple[keras.Model, keras.Model]:
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        models.append(BUILDERS[name]())
    return models[0], models[1]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(pytest.param(name, "jit", marks=pytest.mark.long) for name in ("task", "functional")),
        ("task", "eager"),
        *(
            pytest.param(name, "graph", marks=pytest.mark.long)
            for name in ("stepping", "functional")
        ),
    ],
)
def test_it_trains_as_the_plain_model(name, mode):
    plain, base = pair(name)
    ours = kr.checkpointed(base, every=2)
    assert isinstance(ours, type(base))
    assert isinstance(ours, kr.Model)
    assert not ours.compiled
    assert len([step for step in ours.plan.steps if step.recomputed]) >= 2
    assert_same_training(ours, plain, X, Y, mode=mode, batch_size=4, epochs=2)


def test_the_layers_inside_a_model_are_counted_and_cut():
    *_, base = pair("task")
    ours = kr.checkpointed(base, every=3)
    found = [
        [call.operation.name for call in step.calls if not isinstance(call.operation, InputAdapter)]
        for step in ours.plan.steps
    ]
    assert found[0][:2] == ["block_0", "block_1"], (
        "the first of the three is the entrance of the backbone"
    )
    assert found[0][-1] == "block_1"
    assert found[-1][-1] == "head"


@pytest.mark.long
def test_class_attributes_and_methods_are_those_of_the_plain_model():
    _, base = pair("task")
    layers = [id(layer) for layer in base.layers]
    ours = kr.checkpointed(base, every=3)
    assert isinstance(ours, Task)
    assert type(ours).__name__ == "Task"
    assert ours.backbone is base.backbone
    assert ours.preprocessor == "words"
    assert [id(w) for w in ours.weights] == [id(w) for w in base.weights]
    assert [id(layer) for layer in ours.layers] == layers
    np.testing.assert_array_equal(ours.generate(X), base.generate(X))
    ours.compile("sgd", "mse")
    ours.fit(X, Y, verbose=0)
    assert base.steps_seen == 0 < ours.steps_seen
    assert not base.compiled
    assert [id(layer) for layer in base.layers] == layers


@pytest.mark.long
def test_it_goes_on_after_saving_in_this_process_and_in_another(tmp_path):
    *_, base = pair("task")
    ours = kr.checkpointed(base, every=3)
    ours.recomputation_levels = 2
    ours.compile("sgd", "mse")
    ours.fit(X, Y, verbose=0)
    ours.save(tmp_path / "ours.keras")
    back = keras.saving.load_model(tmp_path / "ours.keras")
    assert isinstance(back, Task)
    assert back.compiled
    assert back.recomputation_levels == 2
    assert [len(s.calls) for s in back.plan.steps] == [len(s.calls) for s in ours.plan.steps]
    expected = ours.predict(X, verbose=0)
    np.testing.assert_array_equal(back.predict(X, verbose=0), expected)
    back.save(tmp_path / "again.keras")
    code = (
        "import sys; sys.path.insert(0, '.'); import tests.models.classes.test_same_class, keras; "
        "import numpy as np; model = "
        f"keras.saving.load_model({str(tmp_path / 'again.keras')!r});"
        "model.fit(tests.models.classes.test_same_class.X, "
        "np.zeros((8, 2)), verbose=0);print(type(model).__name__, model.plan.recomputes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.split() == ["Task", "True"]


def test_a_functional_model_with_models_inside_is_saved_and_cloned(tmp_path):
    _, base = pair("functional")
    ours = kr.checkpointed(base, every=2)
    ours.save(tmp_path / "ours.keras")
    for back in (keras.saving.load_model(tmp_path / "ours.keras"), keras.models.clone_model(ours)):
        assert [len(s.calls) for s in back.plan.steps] == [len(s.calls) for s in ours.plan.steps]
        assert [layer.name for layer in back.layers] == [layer.name for layer in base.layers]


@pytest.mark.long
def test_weight_files_load_both_ways_and_it_exports(tmp_path):
    plain, base = pair("task")
    ours = kr.checkpointed(base, every=2)
    ours.set_weights([w + 1 for w in ours.get_weights()])
    ours.save_weights(tmp_path / "ours.weights.h5")
    plain.load_weights(tmp_path / "ours.weights.h5")
    np.testing.assert_array_equal(plain.predict(X, verbose=0), ours.predict(X, verbose=0))
    plain.set_weights([w * 0.5 for w in plain.get_weights()])
    plain.save_weights(tmp_path / "plain.weights.h5")
    ours.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_array_equal(plain.predict(X, verbose=0), ours.predict(X, verbose=0))
    ours.export(str(tmp_path / "exported"), verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(X), ours.predict(X, verbose=0), rtol=1e-5)


def test_clones_keep_the_checkpoints_where_keras_keeps_the_class():
    _, base = pair("stepping")
    clone = keras.models.clone_model(kr.checkpointed(base, every=2))
    assert isinstance(clone, Stepping)
    assert clone.plan.recomputes
    assert clone.layers[-1] is not base.layers[-1]


def test_a_model_with_checkpoints_is_the_backbone_of_a_task():
    _, base = pair("task")
    backbone = kr.checkpointed(base.backbone, every=2)
    losses = []
    for each in (base.backbone, backbone):
        keras.utils.set_random_seed(2)
        model = Task(each, name="task")
        model.compile("sgd", "mse")
        losses.append(float(model.evaluate(X, Y, verbose=0)))
    assert losses[0] == pytest.approx(losses[1])
    again = Task.from_config(model.get_config())
    assert again.backbone.plan.recomputes
    made = type(backbone)(depth=2)  # by the arguments of the class, without checkpoints
    assert made(X, training=True)["last"].shape == (8, UNITS)


def test_further_checkpoints_join_those_there():
    _, base = pair("task")
    once = kr.checkpointed(base, at=["backbone"])
    assert [len(s.calls) for s in once.plan.steps] == [1, 1], (
        "at= names a model inside as one layer"
    )
    first = kr.checkpointed(base, every=5)
    both = kr.checkpointed(first, every=2)
    assert len(both.plan.steps) > len(first.plan.steps)
    assert type(both) is type(first)


def test_a_name_inside_a_model_says_where_it_is():
    _, base = pair("task")
    with pytest.raises(
        InvalidArgumentError,
        match=r"'block_1' is a layer inside 'backbone', a Backbone in 'task.*layers=.block_1'",
    ):
        kr.checkpointed(base, at=["block_1"])
