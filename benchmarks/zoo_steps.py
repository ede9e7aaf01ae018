"""What the zoo asks of a model on each backend: a batch, places of checkpoints, and plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from zoo_models import BLOCKS, HUB

import keras_recompute as kr
from keras_recompute.liveness import profile
from keras_recompute.planning import BudgetTooSmallError

# Whose plans for half of the plain peak are compiled.
PLANNED = (
    "BertBackbone",
    "GPT2Backbone",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "ViTBackbone",
    "LlamaBackbone",
    "VGG16",
    "OPTBackbone",
    "FNetBackbone",
)
Batch = tuple[Any, Any]  # inputs and targets


def batch_of(model: keras.Model, inputs: list[Any]) -> Batch:
    """Return the batch of ``inputs``, flat, and targets of zeros for every output."""
    x = keras.tree.pack_sequence_as(model.input, inputs)
    given = keras.tree.map_structure(lambda value: keras.KerasTensor(value.shape, value.dtype), x)
    outputs = model.compute_output_spec(given)
    y = keras.tree.map_structure(lambda output: np.zeros(output.shape, "float32"), outputs)
    return x, y


def place(model: keras.Model, name: str) -> dict[str, Any]:
    """Return where the checkpoints of a model of the zoo stand, as ``checkpointed`` is told.

    That is about the square root of its layers; KerasHub's are the six blocks.
    """
    if name in BLOCKS:
        return {"layers": BLOCKS[name]}
    return {"every": 2 if name in HUB else round(len(model.layers) ** 0.5)}


def half_plan(model: keras.Model, batch: Batch) -> dict[str, Any]:
    """Return what the plan for half of the plain peak takes, or the floor of its refusal.

    Both are compiled or recorded anew, and are shares of the plain peak.
    """
    plain_bytes = profile(model, *batch).peak_bytes
    budget, refused = plain_bytes // 2, False
    try:
        planned = kr.plan(model, memory_budget=budget, sample=batch)[0]
    except BudgetTooSmallError as refusal:
        budget, refused = refusal.smallest_budget_bytes, True
        planned = kr.plan(model, memory_budget=budget, sample=batch)[0]
    planned.compile("adam", "mse")
    found = profile(planned, *batch).peak_bytes
    return {
        "refused": refused,
        "holds": found <= budget,
        "budget": budget / plain_bytes,
        "peak": found / plain_bytes,
    }


def tried(work: Callable[[], Any]) -> Any:
    """Return what ``work()`` does, or the first line of its error."""
    try:
        return work()
    except Exception as error:  # said in the table
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return {"error": said}
