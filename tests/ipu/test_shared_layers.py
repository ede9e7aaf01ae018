"""A layer that several stages use has its weights on one IPU.

Source: Graphcore, pipeline stage assignment.
"""

from __future__ import annotations

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

from .pipelines import configure

pytestmark = pytest.mark.usefixtures("graphcore_names")


@pytest.fixture
def scope():
    from tensorflow.python import ipu

    configure()
    with ipu.ipu_strategy.IPUStrategy().scope() as strategy:
        yield strategy


@pytest.mark.usefixtures("scope")
@pytest.mark.parametrize("method", ["fit", "predict"])
@pytest.mark.parametrize(
    "mapping",
    [None, [0, 1, 2], [0, 0, 1], [1, 0, 1], pytest.param([0, 0, 0], marks=pytest.mark.long)],
    ids=str,
)
def test_weights_are_on_one_ipu(mapping, method):
    """The layer is in stages 0 and 2; an activation, which has no weights, may be anywhere."""
    from tensorflow.python.ipu.pipelining_ops import PipelineSchedule

    inputs = keras.Input((3,), batch_size=1)
    shared, activation = keras.layers.Dense(3, name="shared"), keras.layers.Activation("tanh")
    x = inputs
    for number, layer in enumerate((shared, keras.layers.Dense(3), shared)):
        with tf.keras.ipu.PipelineStage(number):
            x = activation(layer(x))
    model = keras.Model(inputs, x)
    model.compile("sgd", "mse", steps_per_execution=2)
    model.set_pipelining_options(2, mapping, pipeline_schedule=PipelineSchedule.Sequential)
    given = (np.ones((2, 3)), np.ones((2, 3))) if method == "fit" else (np.ones((2, 3)),)
    two = mapping is None or mapping[0] != mapping[2]
    said = (
        r"'shared' is in stage 2 on IPU \d, and its weights are used in stage 0 on IPU 0\. "
        ".* device_mapping"
    )
    with pytest.raises(ValueError, match=said) if two else nullcontext():
        getattr(model, method)(*given, batch_size=1, verbose=0)
