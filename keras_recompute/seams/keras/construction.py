"""Construction of Keras models, operations and nodes: observed, replaced, or bypassed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src.models.model import inject_functional_model_class
from keras.src.ops.node import Node

from .graph import OBSERVED_METHOD, Functional
from .layers import TRAINING_STATE

# Attributes that Keras's own constructors set, and that a copy takes over as they are.
_KEPT = frozenset(
    {
        "_allow_non_tensor_positional_args", "_auto_config", "_build_shapes_dict", "_called",
        "_convert_input_args", "_dtype_policy", "_input_spec", "_parent_path", "_path",
        "_remat_mode", "_supports_masking", "_trainable", "activity_regularizer", "autocast",
        "built", "supports_jit",
    }
)  # fmt: skip
_TRACKED = ("_trainable_variables", "_non_trainable_variables", "_layers", "_seed_generators")

# One entry per enclosing ``construct_plain_functional``.
_of_keras: list[bool] = []


@contextlib.contextmanager
def construct_models_with(make: Callable[..., Any]) -> Iterator[None]:
    """Construct each Keras model inside by ``make(plain, cls, *args, **kwargs)``.

    ``plain(cls, *args, **kwargs)`` constructs it as Keras does. Models of
    ``construct_plain_functional`` and the functional models inside sequential ones are left alone.
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
    """Exempt ``Functional(inputs, outputs)`` from ``construct_models_with``."""
    _of_keras.append(True)
    try:
        yield
    finally:
        _of_keras.pop()


def derive_from_functional(cls: type) -> type:
    """Make the model class ``cls`` derive from ``Functional``, as Keras does on first use."""
    if not issubclass(cls, Functional):
        inject_functional_model_class(cls)
    return cls


@contextlib.contextmanager
def observe_construction(note: Callable[[Any], None]) -> Iterator[None]:
    """Call ``note`` with each Keras operation and each node that is constructed inside."""
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
    """Return a ``new_class`` model with the graph, layers, weights and attributes of ``model``.

    The constructor of the model's class does not run. Attributes whose names begin with ``without``
    are not copied. The result is ready to compile.
    """
    new = new_class.__new__(new_class)
    if isinstance(model, Functional):
        Functional.__init__(new, model.input, model.output, name=model.name)
    else:
        keras.Model.__init__(new, name=model.name)
    copy_attributes(model, new, without=without)
    return new


def copy_attributes(model: keras.Model, new: Any, *, without: str) -> None:
    """Give ``new``, on the layers of ``model``, its attributes, and the order of what it tracks.

    Attributes that ``new`` has stay, and what the class of ``new`` computes.
    """
    # On PyTorch layers are modules, which keep layers in their attributes apart.
    attributes = {**vars(model), **vars(model).get("_modules", {})}
    known = {*vars(new), *vars(new).get("_modules", {}), *TRAINING_STATE, OBSERVED_METHOD}
    for name, value in attributes.items():
        is_computed = isinstance(getattr(type(new), name, None), property)
        if name not in known and not is_computed and not name.startswith(without):
            setattr(new, name, value)
    for name in _TRACKED:
        _track_as(getattr(model, name), getattr(new, name), new)
    vars(new).update({name: value for name, value in vars(model).items() if name in _KEPT})


def _track_as(items: list[Any], ours: list[Any], new: keras.Model) -> None:
    """Make ``new`` track all ``items`` in their order, also layers that are in no attribute."""
    new._tracker.unlock()
    for item in items:
        new._tracker.track(item)
    place = {id(item): number for number, item in enumerate(items)}
    in_order = sorted(ours, key=lambda item: place.get(id(item), len(place)))
    if any(item is not other for item, other in zip(in_order, ours)):
        # By a slice: ``sort(key=...)`` is missing on Keras's tracked lists.
        ours[:] = in_order
