"""What builds models on Keras's backend.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

from keras_recompute.keras_backend import TENSORFLOW, current_backend

from .model_builder import BuildModel, ModelBuilder, Say
from .run_record import RunRecord


def load_builder(record: RunRecord, build_model: BuildModel, say: Say) -> ModelBuilder:
    """Load the framework of Keras's backend, and return what builds models with it.

    ``build_model`` is for Graphcore's API, which TensorFlow alone has.
    """
    if current_backend() == TENSORFLOW:
        from .graphcore_models import GraphcoreBuilder

        return GraphcoreBuilder(record, say, build_model)
    from .keras_models import KerasBuilder

    return KerasBuilder(record, say)
