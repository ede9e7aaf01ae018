"""The example's models with Keras alone, on JAX and PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import keras

import keras_recompute as kr
from keras_recompute.keras_backend import TORCH, current_backend
from keras_recompute.liveness import Program

from .data import batch_spec
from .memory_check import capacity_of
from .model_builder import ModelBuilder
from .network import plain_network
from .options import Options
from .sequence_plans import SequencePlan, sections_of

Optimizer: Any = keras.optimizers.Optimizer


class KerasBuilder(ModelBuilder):
    """Builds ``kr.Model``s, which ``fit`` trains by steps of one microbatch."""

    def _load(self) -> dict[str, str]:
        backend = current_backend()
        if backend == TORCH:
            self.verbs = "recording", "recorded"
        version = importlib.import_module(backend).__version__
        return {backend: version, "keras": keras.__version__}

    def _new_model(self, plan: SequencePlan) -> Any:
        keras.backend.clear_session()
        keras.utils.set_random_seed(self.options.seed)
        return build_model(self.options, plan)

    def _profile(self) -> Program:
        options = self.options
        specs = batch_spec(options, keras.KerasTensor)
        capacity = capacity_of(options)[0]
        return kr.liveness.profile(
            self.model, *specs, capacity_bytes=capacity, device=options.device
        )

    def last_update(self, logs: dict[str, Any]) -> tuple[float, float | None]:
        """Return the mean loss of its microbatches, and the norm of the sum of their gradients."""
        norm = keras.ops.convert_to_numpy(self.model.optimizer.norm)
        return float(logs["loss"]), float(norm)


def build_model(options: Options, plan: SequencePlan) -> Any:
    """Return the compiled model of ``plan``, the network that the stand-in trains too."""
    *embedding, _, last = plain_network(options).layers
    recurrent = _recurrent_layer(options)
    specs = batch_spec(options, keras.KerasTensor)
    inputs = keras.Input(batch_shape=specs[0].shape, dtype=specs[0].dtype)
    state, outputs = None, []
    sections = sections_of(options.seq_len, plan.checkpoints)
    for begin, end in sections:
        x = kr.TimeSlice(begin, end)(inputs)
        for layer in embedding:
            x = layer(x)
        x, *state = recurrent(x, initial_state=state)
        outputs.append(x)
        # The last state is not needed again, so it needs no checkpoint.
        if plan.recompute and end < options.seq_len:
            state = kr.RecomputationCheckpoint()(state)
    x = keras.layers.Concatenate(axis=1)(outputs) if len(outputs) > 1 else outputs[0]
    kind = kr.Model if plan.recompute else keras.Model
    model = kind(inputs, last(x))
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(_optimizer(options), cross_entropy if options.is_text else "mse")
    return model


def _recurrent_layer(options: Options) -> Any:
    kind = kr.LSTM if options.cell == "lstm" else kr.GRU
    return kind(options.units, return_sequences=True, return_state=True, name=options.cell)


def _optimizer(options: Options) -> Any:
    base = keras.optimizers.Adam if options.is_text else keras.optimizers.SGD
    steps = options.gradient_accumulation
    summing = type(base.__name__, (_SummedGradients, base), {})
    return summing(options.learning_rate, gradient_accumulation_steps=steps if steps > 1 else None)


class _SummedGradients(Optimizer):
    """A base class of optimizers that sum the gradients of an update, as an IPU does.

    ``norm`` is the norm of the sum so far. Keras takes the mean.
    """

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.norm = self.add_variable((), name="gradient_norm")

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        steps = self.gradient_accumulation_steps or 1
        before = [v / steps for v in self.variables if "gradient_accumulator" in v.path]
        squares = 0.0
        for gradient, earlier in zip(grads, before or [0.0] * len(grads)):
            squares = squares + keras.ops.sum(keras.ops.square(gradient + earlier))
        self.norm.assign(keras.ops.sqrt(squares))
        super().apply([gradient * steps for gradient in grads], trainable_variables)
