"""Recomputes chosen layers one by one, in functional models, inside other layers and in subclasses.

A checkpoint between layers cuts a graph of layers. A model or layer with a computation of its own
has no such graph. There each call of a chosen layer goes through the engine: its inputs are kept,
and its results are computed again in the backward pass. Source: ``apply_activation_checkpointing``
of PyTorch, which wraps the modules that a function picks.

The layers are shared with the plain model and are not changed for good. While the model trains, and
only in that thread, their ``call`` goes through the engine. Afterwards they have their own again.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Union

import keras

from ...errors import InvalidArgumentError
from ...keras_backend.gradient_demand import gradient_may_be_asked, gradient_may_pass
from ...layers.active_groups import is_active, mark_stand_in, with_group, without_group
from ...seams.keras.graph import CloneObserver, Functional
from ...seams.keras.layers import layers_in
from ...seams.keras.training import has_own_train_step
from ...user_code import warn_user
from ..execution.section_runner import TrainedModel, recomputed_call, recomputes_itself
from ..keras_graph.shared_copy import SavedCopy, copy_sharing_weights
from .clone_mapping import counterparts, leave_note, left_note

_Entry = Union[type, str, keras.layers.Layer]
LayerSelector = Union[_Entry, Callable[[keras.layers.Layer], bool], Sequence[_Entry]]
# The note on a clone's outputs: the clones of the layers.
_CLONED = "recomputed layers"
# What Keras runs of a layer.
_METHODS = ("call", "quantized_call")


class RematLayers:
    """The chosen layers, and whether their calls are recomputed now."""

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        self.layers = tuple(layers)
        # A replica's training step runs in a thread of its own.
        self._lock = threading.Lock()
        self._users = 0
        self._before: dict[Any, Any] = {}
        # Whether the layers that were traced save memory.
        self._saves: dict[Any, bool] = {}
        # Those of them that no gradient passes through while one is taken of the model's weights.
        self._frozen: set[Any] = set()
        # Whether a gradient may be taken of the weights or inputs of the model, in this call.
        self.is_trained = False
        # Whether the warning was given, or is not needed because memory is measured.
        self.is_advised = False
        self._calls = {}
        for layer in self.layers:
            if recomputes_itself(layer):
                continue
            for name in _METHODS:
                self._calls[layer, name] = self._recomputed(layer, name)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Recompute each call of the layers that this thread makes inside."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = {}
                for (layer, name), call in self._calls.items():
                    self._before[layer, name] = vars(layer).get(name)
                    # Not by setattr: a layer that was built takes no more attributes.
                    vars(layer)[name] = call
        try:
            with with_group(self):
                yield
        finally:
            with self._lock:
                self._users -= 1
                for (layer, name), own in self._before.items() if self._users == 0 else ():
                    vars(layer).pop(name)
                    if own is not None:
                        vars(layer)[name] = own
            self._advise()

    def _advise(self) -> None:
        """Warn once where none of the layers saves memory."""
        if self.is_advised or not self._saves:
            return
        self.is_advised = True
        if any(self._saves.values()):
            return
        names = [layer.name for layer in self._saves]
        shown = ", ".join([*map(repr, names[:5]), *(["..."] if len(names) > 5 else [])])
        if len(self._frozen) == len(names):
            reason = (
                f"neither these {len(names)} layers nor layers before them have weights that "
                "train, so no gradient passes through them, and nothing of them is kept. Name "
                "layers that train, or layers behind these"
            )
        else:
            reason = (
                f"none of the {len(names)} layers keeps more than its inputs and outputs. Name "
                "layers that hold several others, such as blocks, or put checkpoints between "
                "layers by every="
            )
        warn_user(f"recomputing {shown} saves no memory: {reason}")

    def _recomputed(self, layer: keras.layers.Layer, name: str) -> Callable[..., Any]:
        plain = getattr(layer, name)

        @functools.wraps(plain)
        def whole(*args: Any, **kwargs: Any) -> Any:
            """Return what ``plain`` does: the layers inside are recomputed with it, as one."""
            # Here and not around it, since a replay runs it in the backward pass.
            with without_group(self):
                return plain(*args, **kwargs)

        def note(saves_memory: Callable[[], bool]) -> None:
            # Which takes time to find out, and one layer that does is enough.
            if not any(self._saves.values()):
                self._saves[layer] = saves_memory()

        recomputed = recomputed_call(layer, whole, note)

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not is_active(self) or not gradient_may_be_asked():
                return plain(*args, **kwargs)
            if not gradient_may_pass((args, kwargs), layers_in(layer)):
                if self.is_trained:
                    self._saves.setdefault(layer, False)
                    self._frozen.add(layer)
                return plain(*args, **kwargs)
            return recomputed(*args, **kwargs)

        if name not in vars(layer):
            mark_stand_in(call)
        return call


@keras.saving.register_keras_serializable(package="keras_recompute")
class BlocksModel(SavedCopy, CloneObserver, TrainedModel):
    """A model that recomputes chosen layers, made of a model of another class.

    ``recomputed_layers`` names the layers.
    """

    _keras_recompute_blocks: RematLayers | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        layers = left_note(self.outputs[0], _CLONED) if isinstance(self, Functional) else None
        if layers:
            self._keras_recompute_blocks = RematLayers(layers)

    def note_clones(self, replacements: dict[Any, Any], outputs: Any) -> None:
        super().note_clones(replacements, outputs)
        cloned = counterparts(self, list(self._blocks), replacements)
        if cloned:
            leave_note(outputs, _CLONED, cloned)

    @property
    def recomputed_layers(self) -> tuple[str, ...]:
        """The paths of the layers whose calls in training are recomputed in the backward pass.

        Not the layers: Keras would write their weights under this name into files.
        """
        return paths_of(self._blocks)

    @property
    def _blocks(self) -> Any:
        return iter(self._keras_recompute_blocks.layers if self._keras_recompute_blocks else ())

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch as the model's class does."""
        with self._recomputing():
            return super().train_step(*args, **kwargs)

    def _recomputing(self) -> Any:
        return (
            self._keras_recompute_blocks.active()
            if self._keras_recompute_blocks
            else contextlib.nullcontext()
        )

    @classmethod
    def _members_for(cls, plain: Any) -> dict[str, Any]:
        """Return the ``call`` of a model of this kind, with the parameters of the plain model's.

        Keras looks at the parameters of ``call``.
        """

        @functools.wraps(plain.call)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = self._keras_recompute_blocks
            if blocks and not blocks.is_advised:
                blocks.is_trained = gradient_may_pass((args, kwargs), [self])
            with self._recomputing():
                return plain.call(self, *args, **kwargs)

        return {"call": call}

    def _saved_changes(self) -> dict[str, Any]:
        inside = layers_in(self, include_self=False)
        places = {id(layer): number for number, layer in enumerate(inside)}
        blocks = [places[id(layer)] for layer in self._blocks]
        return {"blocks": blocks, "build": self.get_build_config()}

    @classmethod
    def _with_changes(cls, plain: Any, changes: dict[str, Any]) -> Any:
        inside = layers_in(plain, include_self=False)
        return with_recomputed_layers(plain, list(map(inside.__getitem__, changes["blocks"])))


def paths_of(layers: Iterable[keras.layers.Layer]) -> tuple[str, ...]:
    """Return the paths of ``layers``; the name of one that has no path yet."""
    return tuple(layer.path or layer.name for layer in layers)


def with_recomputed_layers(model: keras.Model, layers: Sequence[keras.layers.Layer]) -> Any:
    """Return a model like ``model`` that shares its layers and recomputes some of them.

    Each call of ``layers`` in training is recomputed in the backward pass.
    """
    new = copy_sharing_weights(model, BlocksModel)
    new._keras_recompute_blocks = RematLayers(layers)
    new.adopt_weights_strategy()
    return new


def is_whole(layer: keras.layers.Layer) -> bool:
    """Whether ``layer`` and the layers inside it have their weights."""
    return all(each.built for each in layers_in(layer))


def require_whole(model: keras.Model, layers: Sequence[keras.layers.Layer]) -> None:
    """Raise InvalidArgumentError where ``layers`` of a ``model`` never called have no weights."""
    if model.built or (layers and all(map(is_whole, layers))):
        return
    how = (
        "Compile it as for fit, and give sample=, a batch as for fit"
        if has_own_train_step(model)
        else "Give sample=, a batch as for fit, or call it on data first"
    )
    raise InvalidArgumentError(
        f"{model.name!r} is not built: its layers or weights are created when it first runs. {how}"
    )


def select_layers(model: keras.Model, layers: LayerSelector) -> list[keras.layers.Layer]:
    """Return the layers inside ``model`` that ``layers`` selects.

    ``layers`` is a class, a pattern of names or paths, a layer, a function of a layer, or several
    of these. Raises InvalidArgumentError where it is something else, or one of them selects none.
    """
    wanted = [layers] if callable(layers) else listed(layers)
    if not wanted or not all(isinstance(each, str) or callable(each) for each in wanted):
        raise InvalidArgumentError(
            f"layers={layers!r} names no layers. Give a class of layers, a pattern of names such "
            "as 'block_*', a layer, a list of these, or a function from a layer to a bool"
        )
    inside: list[keras.layers.Layer] = []
    for layer in dict.fromkeys(layers_in(model, include_self=False)):
        if not isinstance(layer, keras.layers.InputLayer):
            inside.append(layer)
    found: set[keras.layers.Layer] = set()
    for each in wanted:
        meant = [layer for layer in inside if _means(each, layer)]
        if not meant:
            raise InvalidArgumentError(_none_found(model, each, inside))
        found.update(meant)
    return [layer for layer in inside if layer in found]


def listed(given: Any) -> list[Any]:
    """Return ``given``, a name or layer or several, as a list; it is empty for anything else."""
    if isinstance(given, (str, keras.layers.Layer)):
        return [given]
    return list(given) if isinstance(given, Iterable) else []


def _means(wanted: Any, layer: keras.layers.Layer) -> bool:
    if isinstance(wanted, type):
        return isinstance(layer, wanted)
    if isinstance(wanted, str):
        names = (layer.name, layer.path or "")
        return any(fnmatch.fnmatchcase(name, wanted) for name in names)
    # Layers can be called too.
    if isinstance(wanted, keras.layers.Layer):
        return layer is wanted
    return bool(wanted(layer))


def _none_found(model: keras.Model, wanted: Any, inside: Sequence[Any]) -> str:
    names_of_layers, names_of_classes = [], []
    for layer in inside:
        names_of_layers.append(layer.name)
        names_of_classes.append(type(layer).__name__)
    names = list(dict.fromkeys([*names_of_layers, *names_of_classes]))
    # Of a class, a name or a layer; a function may have none.
    name = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", None)
    near = difflib.get_close_matches(name, names, n=3) if name else []
    shown = ", ".join(map(repr, near or names[:20]))
    built = (
        ""
        if model.built
        else " It is not built yet, and may create its layers only then: give sample=, a batch."
    )
    more = ", ..." if len(names) > 20 else ""
    hint = f"Similar names are {shown}" if near else f"It has {shown}{more}"
    return (
        f"layers={wanted!r} matches no layer of {model.name!r}, a {type(model).__name__}. "
        f"{hint}.{built}"
    )
