"""``checkpointed``: put checkpoints into an existing Keras model, or recompute chosen layers."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Union

import keras

from ...errors import InvalidArgumentError
from ...keras_backend import require
from ...seams.keras.graph import Functional
from ...seams.keras.layers import layers_in
from ...seams.keras.training import has_own_train_step
from ..classes.layer_remat import (
    LayerSelector,
    listed,
    require_whole,
    select_layers,
    with_recomputed_layers,
)
from ..classes.model import Model, placement_of
from ..classes.new_heads import watch_for_new_heads
from ..classes.placed_model import with_placement
from ..keras_graph.call_graph import Call, Graph, checkpoints_in, read_graph
from ..keras_graph.cut_points import evenly_spaced_cuts
from ..keras_graph.submodel_inlining import functional_run_by, runs_its_graph, runs_its_layers

LayersToMark = Union[str, keras.layers.Layer, Iterable[Union[str, keras.layers.Layer]]]


def checkpointed(
    model: keras.Model,
    *,
    every: int | None = None,
    at: LayersToMark | None = None,
    layers: LayerSelector | None = None,
    sample: Any = None,
) -> Model:
    """Return ``model`` as a ``keras_recompute.Model``, with checkpoints where they are asked for.

    The two models share layers and weights, listed in the same order: training one trains the
    other, and weight files of one load into the other. The result is not compiled. The checkpoint
    layers that ``model`` has, if any, stay, and suffice: then ``every``, ``at`` and ``layers`` may
    all be left out. Otherwise give one of them.

    Args:
        model: A functional or sequential model, or one of a class of its own that is functional
            inside, as KerasHub's backbones and tasks are: then the result is of that class too.
        every: A checkpoint after about ``every`` layers, with the layers of models inside counted.
            Sections have at least half and less than twice as many, and end where the fewest bytes
            are handed on. About the root of the number of layers takes the least memory (Chen et
            al. 2016, section 4.1).
        at: Names of layers, or layers: a checkpoint after each use of each of them.
        layers: A class of layers, a pattern of names such as ``"block_*"``, a layer, several of
            these, or a function that takes a layer and says whether it is meant. Each call of such
            a layer in training is recomputed on its own, wherever it is: in a model or layer
            inside, in a model whose ``call`` or ``train_step`` is its own. Of layers in each other
            the outermost counts. Here ``model`` is any whose layers have their weights, or make
            them on ``sample``, and the result is of its class, with ``recomputed_layers``, but no
            ``keras_recompute.Model``.
        sample: A batch as it is given to ``fit`` (``x``, ``(x, y)``, or a data set of them).
            Checkpoints save activations, and where weights or a single layer take most of the
            memory they may save nothing; that depends on the batch and the compiler. Given a
            sample, the training step of both models is compiled by XLA, as ``fit`` runs it, which
            takes as long as two first steps, and a RecomputeWarning has both figures where the
            result saves less than 1 %. Where XLA lacks an operation of the model, or ``model`` is
            compiled with ``jit_compile=False``, both steps are run without jit, twice each, and the
            process is measured; variables keep their values. With ``layers`` a model that was not
            called yet is built too: one with a ``train_step`` of its own as ``fit`` does, by its
            step, for which it has to be compiled.

    Raises:
        InvalidArgumentError: A model of another kind; more than one or none of ``every``, ``at``
            and ``layers``; one of the names, classes, patterns or layers that is not in the model;
            an ``every`` that leaves no place for a checkpoint; a ``sample`` that does not fit.

    Examples:
        >>> layers = [keras.layers.Dense(8, "tanh") for _ in range(9)]
        >>> plain = keras.Sequential([keras.Input((8,)), *layers])
        >>> model = kr.checkpointed(plain, every=3)
        >>> len(model.plan.checkpoints)
        2
        >>> model.weights[0] is plain.weights[0]
        True
    """
    if sample is not None:
        require("checkpointed(sample=)")
    new = _checkpointed(model, every=every, at=at, layers=layers, sample=sample)
    watch_for_new_heads(new)
    if sample is not None and layers is None:
        _warn_unless_less(new, model, sample)
    return new


def _warn_unless_less(new: Model, model: keras.Model, sample: Any) -> None:
    """Warn where a step of ``new`` on ``sample`` takes hardly less memory than one of ``model``."""
    from ..measures.backend_measures import specs_from_sample, targets_in
    from ..measures.step_peak import warn_unless_less

    functional = functional_model(model)
    inputs = keras.tree.pack_sequence_as(functional.input, specs_from_sample(functional, sample))
    # What is measured says more than what the sections save.
    new._is_advised = True
    warn_unless_less(new, model, inputs, targets_in(sample))


def _checkpointed(
    model: keras.Model,
    *,
    every: int | None,
    at: LayersToMark | None,
    layers: LayerSelector | None,
    sample: Any,
) -> Model:
    options = {"every": every, "at": at, "layers": layers}
    given = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    if len(given) > 1:
        both = " and ".join(given)
        raise InvalidArgumentError(f"{both} were both given: choose one of them")
    if layers is not None:
        return _with_layers(model, layers, sample)
    functional = functional_model(model)
    if at is not None:
        return with_checkpoints(model, _positions_of(at, functional, model), is_open=False)
    calls = graph_of(functional).calls
    if every is not None:
        every = _number_of_layers(every)
        positions = evenly_spaced_cuts(every, calls)
        if not positions:
            raise InvalidArgumentError(_no_place(every, calls, model))
        return with_checkpoints(model, positions)
    if not checkpoints_in(calls):
        raise InvalidArgumentError(
            f"{model.name!r} has no RecomputationCheckpoint layers, and neither every= nor at= "
            "was given. Give every=N for a checkpoint after every N layers, or at=[names] for "
            "checkpoints after these layers"
        )
    return with_checkpoints(model, ())


def _number_of_layers(every: Any) -> int:
    """Return ``every`` as a whole number from 1 on."""
    try:
        count = 0 if isinstance(every, bool) else operator.index(every)
    except TypeError:
        count = 0
    if count < 1:
        raise InvalidArgumentError(
            f"every={every!r} is not a number of layers: give a whole number from 1 on"
        )
    return count


def _no_place(every: int, calls: Sequence[Call], model: keras.Model) -> str:
    """Return the message for an ``every`` that leaves no place for a checkpoint among ``calls``."""
    count = len(calls)
    shorter = [n for n in (round(count**0.5), 1) if 1 <= n < every and evenly_spaced_cuts(n, calls)]
    advice = (
        f"Give a smaller number, such as {shorter[0]}"
        if shorter
        else "No two places between its layers have few values crossing. Train the plain model, "
        "or name single layers to recompute by layers="
    )
    layers = "1 layer" if count == 1 else f"{count} layers"
    return (
        f"every={every} leaves no place for a checkpoint in {model.name!r}, which has {layers}. "
        f"{advice}"
    )


def with_checkpoints(
    model: keras.Model, positions: Collection[int], *, is_open: bool = True
) -> Model:
    """Return ``model`` as a ``keras_recompute.Model`` with checkpoints after ``positions``.

    Positions count the calls of the graph, from 0, with submodels inlined where ``is_open``. Layers
    and weights are shared. Raises InvalidArgumentError for a model that does not run a graph
    of layers.
    """
    functional = functional_model(model)
    placement = placement_of(functional).extended(functional, positions, is_open=is_open)
    return with_placement(functional, placement)


def functional_model(model: Any) -> Any:
    """Return ``model`` if it runs its graph of layers, or the functional model of a sequential one.

    Raises InvalidArgumentError for anything else: what the ``call`` of a subclass computes is in no
    graph of layers.
    """
    functional = functional_run_by(model)
    if functional is not None:
        return functional
    if runs_its_layers(model):
        raise InvalidArgumentError(
            f"the shape of the input of {model.name!r} is not known yet: begin it with "
            "keras.Input(shape), or call build(shape) first"
        )
    what = (
        f"{model.name!r} is a {type(model).__name__}"
        if isinstance(model, keras.Model)
        else f"{model!r} is not a Keras model"
    )
    graphs = Functional, keras.Sequential
    own = " with a call method of its own" if isinstance(model, graphs) else ""
    if isinstance(model, keras.Model) and has_own_train_step(model):
        inside = []
        for layer in model.layers:
            if isinstance(layer, graphs):
                inside.append(layer.name)
        if inside:
            raise InvalidArgumentError(
                f"{what}{own} that trains {', '.join(map(repr, inside))}. Recompute inside these: "
                "build it from checkpointed(network, every=...). Or name layers of any of them: "
                f"checkpointed({model.name}, layers=...)"
            )
    raise InvalidArgumentError(
        f"{what}{own}. every= and at= need a graph of layers: a functional or sequential model, "
        "or a subclass that calls super().__init__(inputs, outputs) and has no call method. For "
        "any other model name the layers to recompute by layers=, or wrap the computation in "
        "keras_recompute.checkpoint."
    )


def is_no_graph(model: Any) -> bool:
    """Return whether ``model`` is a built or compiled Keras model with a computation of its own."""
    return (
        isinstance(model, keras.Model) and not runs_its_layers(model) and not runs_its_graph(model)
    )


def graph_of(functional: keras.Model) -> Graph:
    """Return the graph of a functional model with submodels inlined and its checkpoints marked."""
    return placement_of(functional).extended(functional, (), is_open=True).graph_of(functional)


def check_trainable(model: keras.Model) -> None:
    """Raise InvalidArgumentError for a model that has weights, but none to train."""
    if model.variables and not model.trainable_variables:
        raise InvalidArgumentError(
            f"{model.name!r} has no trainable weights, so its training keeps no activations that "
            "recomputation could save. Set layer.trainable = True, or call enable_lora, first"
        )


def _with_layers(model: Any, layers: LayerSelector, sample: Any) -> Any:
    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(
            f"{model!r} is not a Keras model: give the model whose layers are to be recomputed"
        )
    if sample is None:
        return _with_recomputed_layers(model, layers)
    from ..measures.sampled_steps import batch_of, build_on, warn_unless_blocks_save

    batch = batch_of(sample)
    build_on(model, batch)
    new = _with_recomputed_layers(model, layers)
    warn_unless_blocks_save(model, new._keras_recompute_blocks, batch)
    return new


def _with_recomputed_layers(model: Any, layers: LayerSelector) -> Any:
    if runs_its_layers(model):
        model = functional_model(model)
    if not model.built and not layers_in(model, include_self=False):
        require_whole(model, ())
    found = select_layers(model, layers)
    require_whole(model, found)
    return with_recomputed_layers(model, found)


def _positions_of(at: LayersToMark, functional: keras.Model, model: keras.Model) -> set[int]:
    """Return the positions of the calls that ``at`` names."""
    wanted = listed(at)
    if not wanted or not all(isinstance(each, (str, keras.layers.Layer)) for each in wanted):
        raise InvalidArgumentError(
            f"at={at!r}: give the names of layers, such as at=['dense_1'], or layers of the model"
        )
    names: list[str] = []
    positions: dict[Any, list[int]] = {}
    for number, call in enumerate(read_graph(functional).calls):
        names.append(call.operation.name)
        for key in (call.operation.name, call.operation):
            positions.setdefault(key, []).append(number)
    found: set[int] = set()
    for each in wanted:
        if each not in positions:
            raise InvalidArgumentError(_unknown(each, list(dict.fromkeys(names)), model))
        found.update(positions[each])
    return found


def _unknown(wanted: str | keras.layers.Layer, known: list[str], model: keras.Model) -> str:
    """Return the message for a layer ``wanted`` in ``at=`` that is not among the ``known`` names.

    It has what may be meant.
    """
    name = wanted if isinstance(wanted, str) else wanted.name
    for outer in model.layers:
        inside = layers_in(outer, include_self=False)
        if wanted not in inside and wanted not in [layer.name for layer in inside]:
            continue
        return (
            f"{wanted!r} is a layer inside {outer.name!r}, a {type(outer).__name__} in "
            f"{model.name!r}, and at= names layers of the model's own graph only. layers={name!r} "
            "recomputes each call of that layer, and every=N counts layers of inner models too"
        )
    near = difflib.get_close_matches(name, known, n=3)
    shown = ", ".join([*map(repr, known[:20]), *(["..."] if len(known) > 20 else [])])
    meant = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Its layers are {shown}"
    return f"{model.name!r} has no layer {wanted!r} to put a checkpoint after. {meant}"
