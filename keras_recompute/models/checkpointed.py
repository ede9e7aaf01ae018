"""``checkpointed``: a Keras model that exists, with RecomputationCheckpoint layers put into it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import keras
from keras.src.models.functional import Functional  # what keras.Model(inputs, outputs) makes

from ..errors import InvalidArgumentError
from ..layers.recomputation_checkpoint import RecomputationCheckpoint
from .graph import read_graph
from .model import Model
from .placement import after_every


def checkpointed(model: keras.Model, *, every: int | None = None, at: Iterable[str] | None = None) -> Model:
    """Return ``model`` as a ``keras_recompute.Model``, with checkpoints where they are asked for.

    The two models share layers and weights, listed in the same order: training one trains the other, and weight files of one
    load into the other. The result is not compiled. ``model`` is functional or sequential; its checkpoint layers, if it has
    any, stay. Either

    * ``every=N``: a checkpoint after every N layers; where several values would have to be kept there (inside a residual
      block), after the one of the next N layers, or else of the N / 2 before, behind which the fewest are. ``N`` about the
      root of the number of layers takes the least memory (Chen et al. 2016, section 4.1);
    * ``at=[names]``: a checkpoint after each of the named layers, after each use of it;
    * neither, for a model that has RecomputationCheckpoint layers already.

    Raises InvalidArgumentError for a model of another kind, for both or neither of ``every`` and ``at``, for a name that
    no layer has, and for an ``every`` that leaves no place for a checkpoint.
    """
    functional = functional_model(model)
    calls = read_graph(functional).calls
    if every is not None and at is not None:
        raise InvalidArgumentError(f"every={every!r} and at={at!r} were both given: choose one of them")
    if at is not None:
        return with_checkpoints(model, _positions_of(_names(at), calls, model))
    if every is not None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidArgumentError(f"every={every!r}: it counts layers, so give a whole number from 1 on")
        positions = after_every(every, calls)
        if not positions:
            raise InvalidArgumentError(
                f"every={every} leaves no place for a checkpoint in {model.name!r}, which has {len(calls)} layers: give a "
                f"smaller number, such as {max(1, round(len(calls) ** 0.5))}"
            )
        return with_checkpoints(model, positions)
    if not any(isinstance(call.operation, RecomputationCheckpoint) for call in calls):
        raise InvalidArgumentError(
            f"{model.name!r} has no RecomputationCheckpoint layers, and neither every=N (a checkpoint after every N layers) "
            f"nor at=[names] (after the named layers) was given: say where to put them"
        )
    return with_checkpoints(model, ())


def with_checkpoints(model: keras.Model, positions: Collection[int]) -> Model:
    """Return ``model`` as a ``keras_recompute.Model`` with a checkpoint after each of the calls at ``positions``.

    Positions count the calls of ``read_graph(functional_model(model))``, from 0. Layers and weights are shared. Raises
    InvalidArgumentError for a model that is neither functional nor sequential.
    """
    functional = functional_model(model)
    taken = {operation.name for operation in functional.operations}
    number = -1

    def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal number
        number += 1
        outputs = operation(*args, **kwargs)
        if number not in positions:
            return outputs
        return RecomputationCheckpoint(was_inserted=True, name=_free_name(f"{operation.name}_checkpoint", taken))(outputs)

    outputs = functional._run_through_graph(functional.inputs, operation_fn=lambda operation: operation, call_fn=call)
    return Model(functional._inputs_struct, outputs, name=model.name)


def functional_model(model: Any) -> Any:
    """Return ``model`` if it is functional, or what a sequential one runs.

    Raises InvalidArgumentError for anything else: a subclass computes what its ``call`` or ``train_step`` says, of which a
    graph of layers knows nothing.
    """
    if type(model) in (Functional, Model):
        return model
    if type(model) is keras.Sequential:
        if model._functional is None:
            raise InvalidArgumentError(
                f"{model.name!r} does not know the shape of its input yet: begin it with keras.Input(shape), or call "
                f"build(shape) first"
            )
        return model._functional
    what = f"{model.name!r} is a {type(model).__name__}" if isinstance(model, keras.Model) else f"{model!r} is no Keras model"
    raise InvalidArgumentError(
        f"{what}: checkpointed takes a functional model, keras.Model(inputs, outputs), or a keras.Sequential. Derive a class "
        f"with methods of its own from keras_recompute.Model and put RecomputationCheckpoint layers between its layers, or "
        f"wrap what its call method computes in keras_recompute.checkpoint."
    )


def _names(at: Iterable[str]) -> list[str]:
    names = [at] if isinstance(at, str) else list(at)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"at={names!r}: give the names of layers, such as at=['dense_1']")
    return names


def _positions_of(names: list[str], calls: Collection[Any], model: keras.Model) -> set[int]:
    known = dict.fromkeys(call.operation.name for call in calls)
    unknown = [name for name in names if name not in known]
    if unknown:
        shown = ", ".join([*map(repr, list(known)[:20]), *(["..."] if len(known) > 20 else [])])
        raise InvalidArgumentError(
            f"{model.name!r} has no layer {', '.join(map(repr, unknown))} to put a checkpoint behind. Its layers are {shown}"
        )
    return {number for number, call in enumerate(calls) if call.operation.name in names}


def _free_name(name: str, taken: set[str]) -> str:
    """Return ``name``, with a number where it is ``taken``, and take it."""
    number, free = 1, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free
