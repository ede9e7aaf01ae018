"""A model beside a model: an object of the same class that shares layers, weights and attributes, and trains on its own.

KerasHub's backbones and tasks are functional models whose classes add methods: ``generate``, a preprocessor, a configuration
of their own. Such a model is made again without running its ``__init__``, from its graph and its attributes, as an object of a
class that derives from both a class of ours and that of the model. It has a state of training of its own (compiled or not,
optimizer, history), so the model itself stays as it was.
"""

from __future__ import annotations

from typing import Any

import keras

from ..seams.keras.graph import functional_like_constructor
from ..seams.keras.made import made_again

_OURS = "_keras_recompute"  # what our own attributes begin with
SAVED_AS = "keras_recompute"  # our entry among the arguments of the model's own class, in files
_PLAIN = f"{_OURS}_plain_class"
_classes: dict[tuple[type, type], type] = {}


def beside(model: keras.Model, ours: type) -> Any:
    """Return a model that is an ``ours`` and of the class of ``model``, with its layers, weights and attributes.

    ``model`` is functional, or built. The result is not compiled.
    """
    return made_again(model, class_of(plain_class(type(model)), ours), without=_OURS)


def plain_class(kind: type) -> type:
    """Return the class of the model beside which a model of ``kind`` stands; ``kind`` itself if it stands beside none."""
    return vars(kind).get(_PLAIN, kind)


def class_of(plain: Any, ours: type) -> type:
    """Return the class that derives from ``ours`` and ``plain`` and goes by the name of ``plain``."""
    if (plain, ours) not in _classes:
        members: dict[str, Any] = {
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__doc__": plain.__doc__,
            _PLAIN: plain,
        }
        if not functional_like_constructor(plain):
            members["__init__"] = plain.__init__  # KerasHub makes models of the class of a model, by its own arguments
        members.update(getattr(ours, "_members_for", lambda _: {})(plain))
        made = type(plain.__name__, (ours, plain), members)
        # Files name a class of ours, which stands in a module: it finds out the rest (see ``from_config`` there).
        register = keras.saving.register_keras_serializable(package="keras_recompute", name=ours.__name__)
        register(made)
        register(ours)
        _classes[plain, ours] = made
    return _classes[plain, ours]


def class_config(plain: type) -> dict[str, Any]:
    """Return how Keras finds ``plain`` again, as in the files of its models."""
    registered_name = keras.saving.get_registered_name(plain)
    return {"module": plain.__module__, "class_name": plain.__name__, "registered_name": registered_name}
