"""Classes that derive from one of ours and from a user's class, under the user's class name.

Files of Keras name importable classes, so such a class is registered as ours. Its configuration is
that of the user's class, with an entry of ours for the rest.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras

from ..errors import UnsupportedError
from ..seams.keras.graph import functional_like_constructor
from ..seams.keras.saving import reduce_layer

# What our own attributes begin with.
OURS = "_keras_recompute"
# Our entry among the arguments of the user's own class, in files.
SAVED_AS = "keras_recompute"
_PLAIN = f"{OURS}_plain_class"
_classes: dict[tuple[type, type], type] = {}
# Each class here goes in front of one of layers or models.
_Layer: Any = object


class SavedAsPlain(_Layer):
    """Mixin before a user's class: saves as that class does, and refuses what it refuses."""

    def plain_config(self) -> dict[str, Any]:
        """Return the configuration that the user's class gives.

        Raises that class's errors, and UnsupportedError if Keras could not construct the class from
        the configuration. Plain Keras would find that out only on loading the file.
        """
        plain = original_class(type(self))
        # Keras checks whether a class overrides get_config, and would count our override.
        config = dict(view_as(self, plain).get_config())
        _check_loadable(plain, config)
        return config

    def __reduce__(self) -> Any:
        return reduce_layer(self)


def original_class(kind: type) -> type:
    """Return the user's class that ``kind`` was made from, or ``kind`` itself."""
    return vars(kind).get(_PLAIN, kind)


def view_as(layer: Any, kind: type) -> Any:
    """Return an object of ``kind`` that shares all attributes of ``layer``, also later ones."""
    new: Any = object.__new__(kind)
    object.__setattr__(new, "__dict__", vars(layer))
    return new


def mixed_class(plain: Any, ours: type) -> type:
    """Return the class that derives from ``ours`` and ``plain``, under ``plain``'s name."""
    # One class per pair, so that objects of it have equal types.
    if (plain, ours) not in _classes:
        members: dict[str, Any] = {}
        # KerasHub constructs models from the class of another model, by the class's own arguments.
        if not functional_like_constructor(plain):
            members["__init__"] = plain.__init__
        members.update(getattr(ours, "_members_for", lambda _: {})(plain))
        _classes[plain, ours] = make_class(plain, ours, members)
    return _classes[plain, ours]


def make_class(plain: Any, ours: type, members: dict[str, Any]) -> type:
    """Return a new class that derives from ``ours`` and ``plain`` and has ``members``."""
    named = {
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        _PLAIN: plain,
    }
    made = type(plain.__name__, (ours, plain), {**named, **members})
    # Files name our class, whose ``from_config`` restores the rest.
    register = keras.saving.register_keras_serializable(package=SAVED_AS, name=ours.__name__)
    register(made)
    register(ours)
    return made


def class_config(plain: type) -> dict[str, Any]:
    """Return the entries by which files of Keras's models identify ``plain``."""
    registered_name = keras.saving.get_registered_name(plain)
    return {
        "module": plain.__module__,
        "class_name": plain.__name__,
        "registered_name": registered_name,
    }


def _check_loadable(plain: Any, config: dict[str, Any]) -> None:
    """Raise UnsupportedError if Keras's own ``from_config`` could not construct a ``plain``."""
    of_keras = (keras.Model.from_config, keras.layers.Layer.from_config)
    from_config = getattr(plain.from_config, "__func__", None)
    if from_config not in [method.__func__ for method in of_keras]:
        return
    if issubclass(plain, keras.Model) and functional_like_constructor(plain):
        return
    try:
        inspect.signature(plain.__init__).bind(None, **config)
    except TypeError as error:
        raise UnsupportedError(
            f"a {plain.__name__} cannot be saved with its architecture: {plain.__name__}(...) "
            f"cannot be called with what its get_config gives, {sorted(config)} ({error}). Return "
            "the arguments of the constructor in get_config, and pass **kwargs to "
            "super().__init__. Or use save_weights."
        ) from None
