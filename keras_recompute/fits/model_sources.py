"""The model that ``keras-recompute fits`` is asked about, built without values of its weights.

It comes from a ``.keras`` file, from a function, or from a configuration of KerasHub in JSON.
"""

from __future__ import annotations

import importlib
import json
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from ..errors import InvalidArgumentError, RecomputeError
from ..liveness import abstract
from ..seams.keras.layers import layers_in
from ..user_code import call_named, error_line
from .several_devices import distribute

_HUB = "keras_hub"


@dataclass(frozen=True)
class BuiltModel:
    """A compiled model, and what its training step is made of, in words."""

    model: keras.Model
    step: str


def build(
    source: str,
    *,
    dtype: str | None = None,
    quantize: str | None = None,
    lora: int | None = None,
    optimizer: str | None = None,
    devices: tuple[int, int] = (1, 1),
) -> BuiltModel:
    """Build the model that ``source`` names, compiled, without values of its weights.

    Args:
        source: A path to a ``.keras`` file, or to the JSON of a class and its configuration as
            Keras and KerasHub write it; ``module:function`` or ``file.py:function``, where the
            function returns a model; or ``Class:config.json``, a class of KerasHub's models.
        dtype: A policy of Keras, such as ``"mixed_bfloat16"``; by default Keras's own, or that of
            the file.
        quantize: How weights are stored, as ``keras.Model.quantize`` takes it, such as ``"int8"``.
        lora: The rank by which all layers that can are adapted; all other weights are frozen.
        optimizer: A name of Keras's, such as ``"adamw"``; by default the model's own, else AdamW.
        devices: Among how many the batch is divided, and the weights (``distribute``).

    Raises:
        InvalidArgumentError: There is no such thing, or it cannot be built; says why.
    """
    if dtype is not None:
        _as_one_line(f"--dtype {dtype}", lambda: keras.config.set_dtype_policy(dtype))
    with abstract():
        model = _model_of(source, devices)
        if not isinstance(model, keras.Model):
            raise InvalidArgumentError(
                f"{source} returns {model!r:.80} ({type(model).__name__}), and not a Keras model"
            )
        if quantize is not None:
            _quantize(model, quantize)
        if lora is not None:
            _adapt(model, lora)
        model, is_of_tokens = _with_vocabulary(model)
        own = getattr(model, "optimizer", None)
        if own is None or optimizer is not None or is_of_tokens:
            loss = getattr(model, "loss", None)
            if is_of_tokens:
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer or "adamw", loss)
    loss_said = "the squares of its outputs" if model.loss is None else "its loss"
    if is_of_tokens:
        loss_said = "the next token over the whole vocabulary"
    return BuiltModel(model, f"{type(model.optimizer).__name__}, {loss_said}")


def _model_of(source: str, devices: tuple[int, int]) -> Any:
    name, _, rest = source.rpartition(":")
    if source.endswith(".json") and name:
        return _as_one_line(source, lambda: _of_class(name, Path(rest), devices))
    distribute(None, *devices)
    if source.endswith(".json"):
        return _as_one_line(source, lambda: _deserialized(json.loads(Path(source).read_bytes())))
    if source.endswith(".keras"):
        return _as_one_line(source, lambda: _from_archive(source))
    if not name:
        raise InvalidArgumentError(
            f"{source!r} is no model: give a .keras file, a .json with a configuration, "
            "Class:config.json with a class of KerasHub, or module:function"
        )
    return _as_one_line(source, lambda: call_named(name, rest))


def _from_archive(path: str) -> Any:
    with zipfile.ZipFile(path) as archive:
        return _deserialized(json.loads(archive.read("config.json")))


def _of_class(name: str, path: Path, devices: tuple[int, int]) -> Any:
    cls = getattr(_hub().models, name)
    distribute(cls, *devices)
    config = json.loads(path.read_bytes())
    # A preset of KerasHub has the class's configuration inside.
    return cls.from_config(config.get("config", config))


def _deserialized(config: Any) -> Any:
    if str(config.get("module", "")).startswith(_HUB):
        _hub()
    return keras.saving.deserialize_keras_object(config)


def _hub() -> Any:
    try:
        return importlib.import_module(_HUB)
    except ImportError as error:
        raise InvalidArgumentError(
            f"a class of KerasHub needs it: pip install keras-hub ({error})"
        ) from error


def _as_one_line(source: str, make: Callable[[], Any]) -> Any:
    """Return ``make()``. Its errors become an InvalidArgumentError of one line with ``source``."""
    try:
        return make()
    except RecomputeError:
        raise
    except Exception as error:  # the user's code, or what Keras says to a wrong configuration
        raise InvalidArgumentError(f"{source}: {error_line(error)}") from error


def _quantize(model: keras.Model, mode: str) -> None:
    with warnings.catch_warnings():
        # Keras warns of each layer that has nothing to quantize, such as the input.
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        _as_one_line(f"--quantize {mode}", lambda: model.quantize(mode))


def _adapt(model: keras.Model, rank: int) -> None:
    """Freeze ``model``, and give adapters of ``rank`` to KerasHub's choice of layers, or to all."""
    if hasattr(model, "enable_lora"):
        model.enable_lora(rank)
        if model.trainable_variables:
            return
        # It chooses by name, and finds none in FLUX: nothing would be trained.
        model.trainable = True
    layers = layers_in(model, include_self=False)
    adapted = [layer for layer in layers if hasattr(layer, "enable_lora")]
    if not adapted:
        raise InvalidArgumentError(f"--lora {rank}: {model.name!r} has no layer that takes it")
    for layer in layers:
        layer.trainable = layer in adapted
    for layer in adapted:
        layer.enable_lora(rank)


def _with_vocabulary(model: keras.Model) -> tuple[keras.Model, bool]:
    """Return a backbone of KerasHub's that reads text with its vocabulary at the end, and whether.

    Other models stay as they are.
    """
    embedding: Any = getattr(model, "token_embedding", None)
    is_backbone = type(model).__module__.startswith(_HUB) and hasattr(embedding, "tie_weights")
    if not is_backbone:
        return model, False
    states = model.output
    if isinstance(states, dict):
        # What is read for a class of the whole text is no state of a token.
        states = states.get("decoder_sequence_output", states.get("sequence_output"))
    if states is None:
        return model, False
    return keras.Model(model.inputs, embedding(states, reverse=True), name=model.name), True
