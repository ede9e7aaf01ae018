"""A Keras layer with a recomputed call, which Keras treats as a layer.

It is a second object with the layer's attributes, of a class that derives from the layer's class
and whose ``call`` is checkpointed. So weights, training, masks, types, configuration and the places
of weights in files are always the layer's. Its own are only its calls in functional models, its
name there, and the losses that its calls add.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import Any

import keras

from ..engine.policies import Policy, save_nothing
from ..errors import UnsupportedError
from ..seams.keras.call_context import entry_layer
from ..seams.keras.call_stack import stateless_caller
from ..seams.keras.graph import nodes_of_operation
from ..seams.keras.layers import CALL_RESULTS, copy_losses, layers_in, losses_of, move_losses
from .backend_checkpoint import Checkpointed
from .mixed_class import OURS, SAVED_AS, SavedAsPlain, make_class, original_class, view_as
from .policy_config import policy_from_config, policy_key, policy_to_config

# A slot, since the attributes are the layer's.
_VIEW = f"{OURS}_view"
_VIEWS = f"{OURS}_views"
# As many policies as the engine keeps programs of one function.
_KEPT = 64
# What Keras runs of a layer.
_METHODS = ("call", "quantized_call")
_classes: dict[tuple[type, Any], type] = {}


def checkpointed_layer(layer: keras.layers.Layer, policy: Policy) -> Any:
    """Return ``layer`` with a recomputed call; the same object for equal policies."""
    if isinstance(layer, CheckpointedLayer):
        layer = layer.__wrapped__
    # Not by setattr, by which Keras would track them as parts of the layer.
    views = vars(layer).setdefault(_VIEWS, _Views())
    return views.get(layer, policy)


class _View:
    """State of one checkpointed layer that it does not share with ``layer``."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        self.layer = layer
        self.own: dict[str, Any] = {name: kind() for name, kind in CALL_RESULTS.items()}


class _Views:
    """The checkpointed layers of one layer, by policy. Copies of the layer have their own."""

    def __init__(self) -> None:
        self._made: OrderedDict[Any, Any] = OrderedDict()

    def __iter__(self) -> Any:
        return iter(list(self._made.values()))

    def get(self, layer: keras.layers.Layer, policy: Policy) -> Any:
        """Return the checkpointed layer with ``policy``, made on first use."""
        key = policy_key(policy)
        made = self._made.get(key)
        if made is None:
            made = view_as(layer, _class_for(type(layer), policy))
            object.__setattr__(made, _VIEW, _View(layer))
            # Of two threads one was first.
            made = self._made.setdefault(key, made)
            # Policies made at each call would accumulate.
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return made

    def __reduce__(self) -> Any:
        return _Views, ()


@keras.saving.register_keras_serializable(package=SAVED_AS)
class CheckpointedLayer(SavedAsPlain):
    """Mixin before the class of a layer. ``__wrapped__`` is the layer itself."""

    _keras_recompute_policy: Policy = save_nothing

    @property
    def __wrapped__(self) -> Any:
        return getattr(self, _VIEW).layer

    def __getattr__(self, name: str) -> Any:
        if name.startswith(OURS):
            raise AttributeError(name)
        # Not properties, since a layer may have a ``policy`` of its own.
        if name == "policy":
            return self._keras_recompute_policy
        if name == "__name__":
            return self.name
        above: Any = super()
        if hasattr(type(self.__wrapped__), "__getattr__"):
            return above.__getattr__(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"checkpoint({self.__wrapped__!r}, policy={self._keras_recompute_policy!r})"

    @property
    def _keras_recompute_function(self) -> Checkpointed:
        """The layer's whole call as a checkpointed function, for inspection."""
        return Checkpointed(self.__wrapped__, self._keras_recompute_policy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Read before the call: inside it this layer may be the outermost one.
        around = entry_layer() or stateless_caller()
        outputs = super().__call__(*args, **kwargs)
        layer = self.__wrapped__
        if around is None:
            copy_losses(self, layer)
        # A model sums the losses of the layers it tracks: of the layer, if ``call`` wraps it for
        # one call, or of this object. If it tracks both, only one of them may have the losses.
        elif losses_of(self) and any(each is layer for each in layers_in(around)):
            move_losses(self, layer)
        return outputs

    def symbolic_call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer in a functional model, under a name of its own."""
        own = getattr(self, _VIEW).own
        if not nodes_of_operation(self) and "name" not in own:
            others = [self.__wrapped__, *vars(self.__wrapped__)[_VIEWS]]
            number = sum(bool(nodes_of_operation(other)) for other in others)
            if number:
                own["name"] = f"{self.name}_checkpoint" + (f"_{number}" if number > 1 else "")
        return super().symbolic_call(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the layer's configuration, with an entry for its class and the policy."""
        saved = keras.saving.serialize_keras_object(self.__wrapped__)
        config = dict(saved.pop("config"))
        policy = policy_to_config(self._keras_recompute_policy, self.name)
        return {**config, SAVED_AS: {"layer": saved, "policy": policy, **self._name_of_its_own()}}

    def _name_of_its_own(self) -> dict[str, str]:
        """Return the name in files, if it differs from that of the layer in the same graph."""
        own = getattr(self, _VIEW).own
        if "name" not in own:
            return {}
        others = [each for each in vars(self.__wrapped__)[_VIEWS] if each is not self]
        if any(map(nodes_of_operation, others)):
            raise UnsupportedError(
                f"{self.__wrapped__.name!r} is checkpointed by two policies in functional models, "
                "and a file would load it as two layers. Give it one policy to save it"
            )
        return {"name": own["name"]}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Make a layer from a configuration of ``get_config``, or of the layer's own class."""
        config = dict(config)
        ours = config.pop(SAVED_AS, None)
        if ours is None:
            plain: Any = original_class(cls)
            return checkpointed_layer(plain.from_config(config), cls._keras_recompute_policy)
        saved = {**ours["layer"], "config": config}
        layer = keras.saving.deserialize_keras_object(saved, custom_objects=custom_objects)
        made = checkpointed_layer(layer, policy_from_config(ours["policy"]))
        if "name" in ours:
            made.name = ours["name"]
        return made


class _Recomputed:
    """Descriptor of a checkpointed method, also if it was set on the layer object."""

    def __init__(self, plain: Any, name: str) -> None:
        self._plain = getattr(plain, name)
        self._name = name

    def __get__(self, layer: Any, owner: Any = None) -> Any:
        if layer is None:
            return self._plain
        method = vars(layer).get(self._name) or self._plain.__get__(layer, owner)
        if isinstance(method, Checkpointed):
            # This policy takes the place of that.
            method = method.__wrapped__
        checkpointed = Checkpointed(method, layer._keras_recompute_policy)
        # In warnings, and of the operations.
        checkpointed.__name__ = layer.name
        return checkpointed

    def __set__(self, layer: Any, method: Any) -> None:
        vars(layer)[self._name] = method

    def __delete__(self, layer: Any) -> None:
        del vars(layer)[self._name]


class _Own:
    """Descriptor of an attribute that a checkpointed layer does not share."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layer: Any, owner: Any = None) -> Any:
        if layer is None:
            return self
        found = getattr(layer, _VIEW).own
        if self._name in found:
            return found[self._name]
        if self._name in vars(layer):
            return vars(layer)[self._name]
        raise AttributeError(self._name)

    def __set__(self, layer: Any, value: Any) -> None:
        getattr(layer, _VIEW).own[self._name] = value


def _class_for(plain: Any, policy: Policy) -> type:
    """Return the subclass of ``plain`` whose calls are recomputed by ``policy``."""
    key = plain, policy_key(policy)
    if key not in _classes:
        members: dict[str, Any] = {}
        for name in (*CALL_RESULTS, "name"):
            members[name] = _Own(name)
        for name in _METHODS:
            members[name] = _Recomputed(plain, name)
        members["__slots__"] = (_VIEW,)
        members["_keras_recompute_policy"] = staticmethod(policy)  # a function, no method
        members["__new__"], members["__init__"] = _constructor(plain, policy)
        _classes[key] = make_class(plain, CheckpointedLayer, members)
    return _classes[key]


def _constructor(plain: Any, policy: Policy) -> tuple[Any, Any]:
    """Return ``__new__`` and ``__init__`` that make a ``plain`` and return it checkpointed."""

    def new(_: type, *args: Any, **kwargs: Any) -> Any:
        return checkpointed_layer(plain(*args, **kwargs), policy)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        # What ``new`` returns is complete.
        pass

    # Keras reads the signature to decide how models of the class are reconstructed.
    init.__signature__ = inspect.signature(plain.__init__)  # type: ignore[attr-defined]
    return new, init
