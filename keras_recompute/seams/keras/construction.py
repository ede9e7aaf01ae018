"""The construction of models, operations and nodes: watched, replaced, and repeated without the constructor."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src.models.model import inject_functional_model_class
from keras.src.ops.node import Node

from .graph import Functional
from .layers import TRAINING_STATE

# What Keras's own constructors set and a copy must have as it is, beside what the model's class sets.
_KEPT = (
    *("_trainable", "_dtype_policy", "_auto_config", "autocast", "_supports_masking", "supports_jit", "activity_regularizer"),
    *("_convert_input_args", "_allow_non_tensor_positional_args", "_input_spec", "_called", "_path", "_parent_path"),
    *("_build_shapes_dict", "_remat_mode", "built"),
)
_TRACKED = ("_trainable_variables", "_non_trainable_variables", "_layers", "_seed_generators")


_of_keras: list[bool] = []  # while functional models are made that are no one else's business


@contextlib.contextmanager
def construct_models_with(make: Callable[..., Any]) -> Iterator[None]:
    """Let ``make(plain, cls, *args, **kwargs)`` make each Keras model inside; ``plain(cls, *args, **kwargs)`` does as Keras.

    Not those of ``construct_plain_functional``, nor the functional model that a sequential one makes to run its layers.
    """
    plain, plain_build = keras.Model.__new__, keras.Sequential.build

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        if _of_keras and cls is Functional:
            return plain(cls, *args, **kwargs)
        return make(plain, cls, *args, **kwargs)

    def build(model: keras.Sequential, *args: Any, **kwargs: Any) -> None:
        with construct_plain_functional():
            plain_build(model, *args, **kwargs)

    keras.Model.__new__, keras.Sequential.build = new, functools.wraps(plain_build)(build)
    try:
        yield
    finally:
        keras.Model.__new__, keras.Sequential.build = plain, plain_build


@contextlib.contextmanager
def construct_plain_functional() -> Iterator[None]:
    """Have ``Functional(inputs, outputs)`` make a model of Keras's own class, whatever ``construct_models_with`` says."""
    _of_keras.append(True)
    try:
        yield
    finally:
        _of_keras.pop()


def derive_from_functional(cls: type) -> type:
    """Have ``cls``, a class of models, derive from ``Functional``, as Keras does where the first functional one is made."""
    if not issubclass(cls, Functional):
        inject_functional_model_class(cls)
    return cls


@contextlib.contextmanager
def observe_construction(note: Callable[[Any], None]) -> Iterator[None]:
    """Call ``note`` with each Keras operation, and each node, which is a call of one, that is made inside."""
    plain = [(made, made.__init__) for made in (Node, keras.Operation)]
    for made, plain_init in plain:
        made.__init__ = _noting(plain_init, note)
    try:
        yield
    finally:
        for made, plain_init in plain:
            made.__init__ = plain_init


def _noting(plain_init: Any, note: Callable[[Any], None]) -> Any:
    def init(made: Any, *args: Any, **kwargs: Any) -> None:
        plain_init(made, *args, **kwargs)
        note(made)

    return init


def copy_without_constructor(model: keras.Model, new_class: Any, *, without: str) -> Any:
    """Return a model of ``new_class`` with the graph, layers, weights and attributes of ``model``, ready to compile.

    The constructor of its class is not run. Attributes that begin with ``without`` are not taken over.
    """
    new = new_class.__new__(new_class)
    if isinstance(model, Functional):
        Functional.__init__(new, model.input, model.output, name=model.name)
    else:
        keras.Model.__init__(new, name=model.name)
    for name, value in list(vars(model).items()):
        if name not in vars(new) and name not in TRAINING_STATE and not name.startswith(without):
            setattr(new, name, value)
    for name in _TRACKED:
        _track_as(getattr(model, name), getattr(new, name), new)
    vars(new).update({name: value for name, value in vars(model).items() if name in _KEPT})
    return new


def _track_as(items: list[Any], ours: list[Any], new: keras.Model) -> None:
    """Have ``new`` track all ``items``, in their order; a layer that is in no attribute is found here alone."""
    new._tracker.unlock()
    for item in items:
        new._tracker.track(item)
    place = {id(item): number for number, item in enumerate(items)}
    in_order = sorted(ours, key=lambda item: place.get(id(item), len(place)))
    if any(item is not other for item, other in zip(in_order, ours)):
        ours[:] = in_order  # Keras's lists, in older versions TensorFlow's, sort by no key
