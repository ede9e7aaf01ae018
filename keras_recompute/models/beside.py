"""A model beside a model: an object of the same class that shares layers, weights and attributes, and trains on its own.

KerasHub's backbones and tasks are functional models whose classes add methods: ``generate``, a preprocessor, a configuration
of their own. Such a model is made again without running its ``__init__``, from its graph and its attributes, as an object of a
class that derives from both a class of ours and that of the model. It has a state of training of its own (compiled or not,
optimizer, history), so the model itself stays as it was.
"""

from __future__ import annotations

from typing import Any

import keras
from keras.src.models.functional import Functional, functional_like_constructor

# What Keras's own constructors set and a copy must have as it is, beside what the model's class sets.
_KEPT = (
    *("_trainable", "_dtype_policy", "_auto_config", "autocast", "_supports_masking", "supports_jit", "activity_regularizer"),
    *("_convert_input_args", "_allow_non_tensor_positional_args", "_input_spec", "_called", "_path", "_parent_path"),
    *("_build_shapes_dict", "_remat_mode", "built"),
)
# What ``compile`` and ``fit`` leave behind.
_OF_TRAINING = ("optimizer", "history", "_compile_config", "_compile_trainable_state", "_epoch_iterator")
_TRACKED = ("_trainable_variables", "_non_trainable_variables", "_layers", "_seed_generators")
SAVED_AS = "keras_recompute"  # our entry among the arguments of the model's own class, in files
_PLAIN = "_keras_recompute_plain_class"
_classes: dict[tuple[type, type], type] = {}


def beside(model: keras.Model, ours: type) -> Any:
    """Return a model that is an ``ours`` and of the class of ``model``, with its layers, weights and attributes.

    ``model`` is functional, or built. The result is not compiled.
    """
    new_class: Any = class_of(plain_class(type(model)), ours)
    new = new_class.__new__(new_class)
    if isinstance(model, Functional):
        Functional.__init__(new, model._inputs_struct, model._outputs_struct, name=model.name)
    else:
        keras.Model.__init__(new, name=model.name)
    for name, value in list(vars(model).items()):
        if name not in vars(new) and name not in _OF_TRAINING and not name.startswith("_keras_recompute"):
            setattr(new, name, value)
    for name in _TRACKED:
        _track_as(getattr(model, name), getattr(new, name), new)
    vars(new).update({name: value for name, value in vars(model).items() if name in _KEPT})
    return new


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


def _track_as(items: list[Any], ours: list[Any], new: keras.Model) -> None:
    """Have ``new`` track all ``items``, in their order; a layer that is in no attribute is found here alone."""
    new._tracker.unlock()
    for item in items:
        new._tracker.track(item)
    place = {id(item): number for number, item in enumerate(items)}
    in_order = sorted(ours, key=lambda item: place.get(id(item), len(place)))
    if any(item is not other for item, other in zip(in_order, ours)):
        ours[:] = in_order  # Keras's lists, in older versions TensorFlow's, sort by no key
