"""Models that ``checkpointed`` makes in a strategy's scope, and pipelines that hold them."""

from __future__ import annotations

import keras
import pytest

import keras_recompute as kr
from keras_recompute.ipu.models.pipelined import PipelinedModel
from keras_recompute.ipu.pipeline.staged_graph import staged_graph

from .pipeline_oracle import stage
from .pipelines import configure, numbers

ROWS, WIDTH = 4, 3

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.fixture(autouse=True)
def scope():
    from tensorflow.python import ipu

    configure()
    with ipu.ipu_strategy.IPUStrategy().scope():
        yield


def test_checkpoints_of_a_model_inside_are_cut_in_its_stage():
    """They are no layers of the model inside, whose layers are calls of the stage."""
    x = inputs = keras.Input((WIDTH,), batch_size=ROWS)
    for name in "abc":
        x = keras.layers.Dense(WIDTH, name=name)(x)
    inner = kr.checkpointed(keras.Model(inputs, x), at=["b"])
    inputs = keras.Input((WIDTH,), batch_size=ROWS)
    with stage(0):
        x = inner(inputs)
    with stage(1):
        x = keras.layers.Dense(1)(x)
    model = keras.Model(inputs, x)
    calls = staged_graph(model, model.assigned_stages).calls
    assert [(c.operation.name, c.stage) for c in calls if c.ends_section] == [("b", 0)]


def chain():
    x = inputs = keras.Input((WIDTH,), batch_size=ROWS)
    for name in "abcd":
        x = keras.layers.Dense(WIDTH, name=name)(x)
    return keras.Model(inputs, x)


MADE_OUTSIDE = chain()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: MADE_OUTSIDE, marks=pytest.mark.long(every_case=True)),
        chain,
    ],
    ids=["outside", "inside"],
)
def test_checkpoints_that_are_put_into_a_model_in_the_scope(make):
    ours = kr.checkpointed(make(), at=["b"])
    ours.compile("sgd", "mse")
    ours.fit(numbers(ROWS, WIDTH), numbers(ROWS, WIDTH), batch_size=ROWS, verbose=0)
    for model in (ours, keras.models.clone_model(ours)):
        assert isinstance(model, PipelinedModel)
        assert model.plan.checkpoints == ("b",)
