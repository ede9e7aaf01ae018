"""State of Keras layers, and the side outputs of their calls: losses and masks.

Importing this module does not load Keras.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

# Attributes of every layer and model that the results of their calls depend on.
CALL_SETTINGS = frozenset(
    {"_trainable", "_dtype_policy", "_trainable_variables", "_non_trainable_variables", "_layers"}
)
# What calls of a layer leave in it: losses, and nodes in functional models.
CALL_RESULTS = {"_losses": list, "_loss_ids": set, "_inbound_nodes": list, "_outbound_nodes": list}
# What ``compile`` and ``fit`` put into a model.
TRAINING_STATE = frozenset(
    {"optimizer", "history", "stop_training", "_compile_config", "_eval_epoch_iterator"}
)
# Attributes that Keras keeps in every layer or operation and that no call depends on, unless its
# code reads them: constructor arguments, names, what it was built for, how it is saved.
BOOKKEEPING = frozenset(
    {
        "_auto_config", "_auto_config_error_args", "_build_shapes_dict", "_call_signature",
        "_called", "_inbound_nodes", "_input_shape_arg", "_lock", "_loss_ids", "_losses",
        "_losses_override",
        "_outbound_nodes", "_parent_path", "_path", "_saved_model_arg_spec",
        "_saved_model_inputs_spec", "_tracked", "_tracker", "build", "built",
        "call_signature_parameters", "name", "quantize", "supports_jit",
    }
)  # fmt: skip
TRACKING_PREFIX = "_self_"  # of the attributes in which TensorFlow tracks an object's parts
# The same for variables: name, value and initializer.
VARIABLE_BOOKKEEPING = frozenset({"_initializer", "_name", "_path", "_value"})


def layers_in(layer: Any, *, include_self: bool = True) -> list[Any]:
    """Return ``layer`` and all layers nested in it."""
    return list(layer._flatten_layers(include_self=include_self))


class MutableState(NamedTuple):
    """State that calls of a layer may change: variables, and random generators.

    Each generator comes with whether its seed was given.
    """

    variables: list[Any]
    generators: list[tuple[Any, bool]]


def mutable_state(layer: Any) -> MutableState:
    """Return the state that calls of ``layer`` may change, except its metrics.

    Keras's global random generator is part of it, if it exists.
    """
    layers = layers_in(layer)
    variables = {}
    for each in layers:
        for variable in each._non_trainable_variables:
            variables[id(variable)] = variable
    generators = {
        id(g): (g, g._initial_seed is not None) for each in layers for g in each._seed_generators
    }
    of_keras = global_seed_generator()
    if of_keras is not None:
        generators.setdefault(id(of_keras), (of_keras, False))
    return MutableState(list(variables.values()), list(generators.values()))


def global_seed_generator() -> Any:
    """Return the generator that Keras draws from where no seed is given; None before it does."""
    from keras.src.backend.common import global_state

    # The same attribute name in all releases from 3.12 to 3.15.
    return global_state.get_global_attribute("global_seed_generator")


def losses_of(layer: Any) -> list[Any]:
    """Return the losses that ``layer`` added by ``add_loss`` since its last call.

    In a ``keras.StatelessScope`` they stand in the scope, and the layer knows their identities.
    """
    scope = _stateless_scope()
    if scope is None:
        return list(layer._losses)
    return [loss for loss in scope.losses if id(loss) in layer._loss_ids]


def add_losses(layer: Any, losses: Iterable[Any]) -> None:
    """Have ``layer`` add ``losses``; not in a ``keras.StatelessScope`` that collects none."""
    scope = _stateless_scope()
    if scope is None:
        layer._losses.extend(losses)
    elif scope.collect_losses:
        for loss in losses:
            scope.add_loss(loss)
            layer._loss_ids.add(id(loss))


def remove_losses(layer: Any, losses: Iterable[Any]) -> None:
    """Remove ``losses`` from the losses that ``layer`` added."""
    removed = set(map(id, losses))
    scope = _stateless_scope()
    held = layer._losses if scope is None else scope.losses
    held[:] = [loss for loss in held if id(loss) not in removed]
    layer._loss_ids.difference_update(removed)


def _stateless_scope() -> Any:
    from .call_context import stateless_scope

    return stateless_scope()


def move_losses(layer: Any, to: Any) -> None:
    """Move the losses that ``layer`` added to the layer ``to``."""
    to._losses.extend(layer._losses)
    to._loss_ids.update(layer._loss_ids)
    layer._losses.clear()
    layer._loss_ids.clear()


def copy_losses(layer: Any, to: Any) -> None:
    """Replace the losses of ``to`` by the losses that ``layer`` added."""
    to._losses[:] = layer._losses
    to._loss_ids.clear()
    to._loss_ids.update(layer._loss_ids)


def mask_of(value: Any) -> Any:
    """Return the mask that Keras attached to ``value``, or None."""
    from keras.src.backend.common.masking import get_keras_mask

    return get_keras_mask(value)


def attach_mask(value: Any, mask: Any) -> None:
    """Attach ``mask`` to the tensor ``value``, where the layers after it look for it."""
    from keras.src.backend.common.masking import set_keras_mask

    set_keras_mask(value, mask)


def backend_variable(variable: Any) -> Any:
    """Return the TensorFlow variable, or the parameter of PyTorch, of a Keras variable."""
    # The public ``value`` is a cast tensor in mixed precision.
    return variable._value


def is_trainable_itself(layer: Any) -> bool:
    """Return what ``layer.trainable`` was set to, whatever its weights are."""
    return bool(layer._trainable)


def set_trainable_itself(layer: Any, is_trainable: bool) -> None:
    """Set what ``layer.trainable`` says, and change no weight and no layer inside."""
    # Not by Keras's own setattr, which tracks what is set.
    object.__setattr__(layer, "_trainable", is_trainable)


def takes_training(operation: Any) -> bool:
    """Whether the ``call`` of a layer takes ``training``."""
    return bool(getattr(operation, "_call_has_training_arg", False))


def arguments_from_context(operation: Any) -> Any:
    """Return the names of arguments set by an outer call, such as ``training``."""
    return getattr(operation, "_call_context_args", ())


def is_in_remat_scope(layer: Any) -> bool:
    """Whether ``layer`` was constructed in a ``keras.RematScope``."""
    return bool(layer._remat_mode)


@contextlib.contextmanager
def values_replaced(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Return a context in which ``variables`` have other values, whatever is assigned to them."""
    before = [variable._value for variable in variables]
    for variable, value in zip(variables, values):
        variable._value = value
    try:
        yield
    finally:
        for variable, value in zip(variables, before):
            variable._value = value


@contextlib.contextmanager
def losses_cleared(layers: Sequence[Any]) -> Iterator[None]:
    """Return a context behind which ``layers`` hold none of the losses that they have added."""
    try:
        yield
    finally:
        for layer in layers:
            layer._losses.clear()
            layer._loss_ids.clear()
