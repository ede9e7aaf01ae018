"""Every model made, saved or loaded in an IPUStrategy's scope is a model of the scope."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_recompute.ipu.models.ipu_model_mixin import IpuModelMixin

from .pipeline_oracle import stage
from .pipelines import numbers

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.fixture
def scope():
    from tensorflow.python import ipu

    return ipu.ipu_strategy.IPUStrategy().scope


def functional():
    inputs = keras.Input((3,), batch_size=2)
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def sequential():
    return keras.Sequential([keras.Input((3,), batch_size=2), keras.layers.Dense(1)])


class WithCall(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


class FunctionalInside(keras.Model):
    def __init__(self):
        inputs = keras.Input((3,), batch_size=2)
        super().__init__(inputs, keras.layers.Dense(1)(inputs))


def application():
    return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=2)


WAYS = {
    "functional": functional,
    "sequential": sequential,
    "a class": WithCall,
    "a class that is functional": FunctionalInside,
    "an application": application,
    "a clone": lambda: keras.models.clone_model(functional()),
    "by config": lambda: keras.Model.from_config(functional().get_config()),
}


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=pytest.mark.long if way == "an application" else ()) for way in WAYS],
)
def test_no_model_is_stock_keras(scope, way):
    """Each trains in executions of two microbatches, which stock Keras does not record."""
    with scope():
        model = WAYS[way]()
        assert isinstance(model, IpuModelMixin)
        model.compile("sgd", "mse", steps_per_execution=2)
        model.set_gradient_accumulation_options(2)
        shape = (4, 32, 32, 3) if way == "an application" else (4, 3)
        model.fit(
            numbers(*shape),
            numbers(4, 2 if way == "an application" else 1),
            batch_size=2,
            verbose=0,
        )
    assert len(model.training_record.losses) == 1


def test_what_keras_makes_to_run_a_sequential_model_is_no_model_of_the_scope(scope):
    with scope():
        model = sequential()
    assert not isinstance(model._functional, IpuModelMixin)


@pytest.mark.parametrize("ending", ["keras", "h5"])
@pytest.mark.parametrize("way", ["functional", "sequential", "in stages"])
@pytest.mark.filterwarnings("ignore:.*HDF5 file")
def test_what_is_saved_in_the_scope_is_loaded_inside_and_outside(scope, tmp_path, way, ending):
    path, x = tmp_path / f"model.{ending}", numbers(2, 3)
    with scope():
        if way == "in stages":
            inputs = value = keras.Input((3,), batch_size=2)
            for number in (0, 1):
                with stage(number):
                    value = keras.layers.Dense(2)(value)
            model = keras.Model(inputs, value)
        else:
            model = WAYS[way]()
        # A loss by name is not found again in HDF5 files by Keras 3 itself.
        model.compile("sgd", keras.losses.MeanSquaredError(), steps_per_execution=2)
        expected = np.asarray(model(x))
        model.save(path)
        inside = keras.models.load_model(path)
    outside = keras.models.load_model(path)
    assert isinstance(inside, IpuModelMixin)
    assert not isinstance(outside, IpuModelMixin)
    for loaded in (inside, outside):
        np.testing.assert_allclose(loaded(x), expected, rtol=1e-6)
        assert isinstance(loaded.loss, keras.losses.MeanSquaredError)
    assert (
        inside.steps_per_execution == 2 if ending == "keras" else 1
    )  # HDF5 files have no such entry


@pytest.mark.long
def test_plain_keras_loads_what_was_saved(scope, tmp_path):
    """In a process that has never heard of this package."""
    x = numbers(2, 3)
    with scope():
        model = functional()
        model.compile("sgd", "mse")
        model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", x)
    code = (
        "import keras, numpy as np; "
        "print(keras.models.load_model('model.keras').predict(np.load('x.npy'), verbose=0).sum())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(np.sum(model(x))), rel=1e-5)
    assert str(Path(__file__).parents[2]) not in code


FIRST = """
import keras
from keras_recompute.ipu import install; install()
from tensorflow.python import ipu
with ipu.ipu_strategy.IPUStrategy().scope():
    inputs = keras.Input((3,))
    # As keras.applications make theirs.
    model = keras.src.models.Functional(inputs, keras.layers.Dense(2)(inputs))
    assert len(model.get_pipeline_stage_assignment()) == 1
    keras.Sequential([inputs, keras.layers.Dense(2)])
assert keras.Sequential.__bases__ == (keras.Model,)
"""


@pytest.mark.long
def test_the_first_functional_model_of_a_process_may_be_one_of_keras_applications():
    subprocess.run([sys.executable, "-c", FIRST], check=True, cwd=Path(__file__).parents[2])
