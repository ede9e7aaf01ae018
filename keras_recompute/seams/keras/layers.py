"""State of layers, and side outputs of their calls. Importing this loads no Keras."""

from __future__ import annotations

from typing import Any, NamedTuple

# Attributes of every layer and model on which their calls depend.
CALL_SETTINGS = frozenset({"_trainable", "_dtype_policy", "_trainable_variables", "_non_trainable_variables", "_layers"})
# What calls of a layer leave in it: losses, and nodes in functional models.
CALL_RESULTS = {"_losses": list, "_loss_ids": set, "_inbound_nodes": list, "_outbound_nodes": list}
# What ``compile`` and ``fit`` put into a model.
TRAINING_STATE = frozenset({"optimizer", "history", "stop_training", "_compile_config", "_eval_epoch_iterator"})
# What Keras notes in every layer and operation, on which no call depends unless its code reads it:
# arguments of the constructor, names, what it was called on and built for, and how it is saved.
BOOKKEEPING = frozenset(
    {
        "_auto_config", "_auto_config_error_args", "_build_shapes_dict", "_call_signature", "_called",
        "_inbound_nodes", "_input_shape_arg", "_lock", "_loss_ids", "_losses", "_losses_override",
        "_outbound_nodes", "_parent_path", "_path", "_saved_model_arg_spec",
        "_saved_model_inputs_spec", "_tracked", "_tracker", "build", "built",
        "call_signature_parameters", "name", "quantize", "supports_jit",
    }
)  # fmt: skip
TRACKING_PREFIX = "_self_"  # what TensorFlow's notes of what an object holds begin with
# The same of variables: their name and value, and how the value began.
VARIABLE_BOOKKEEPING = frozenset({"_initializer", "_name", "_path", "_value"})


def layers_in(layer: Any, *, include_self: bool = True) -> list[Any]:
    """Return ``layer`` and the layers inside it, and those in them."""
    return list(layer._flatten_layers(include_self=include_self))


class MutableState(NamedTuple):
    """What calls of a layer may change: variables, and generators of random numbers with whether their seed was given."""

    variables: list[Any]
    generators: list[tuple[Any, bool]]


def mutable_state(layer: Any) -> MutableState:
    """Return what calls of ``layer`` may change beside its metrics; Keras's own generator too, if there is one."""
    from keras.src.backend.common import global_state

    layers = layers_in(layer)
    variables = {id(v): v for each in layers for v in each._non_trainable_variables}
    generators = {id(g): (g, g._initial_seed is not None) for each in layers for g in each._seed_generators}
    of_keras = global_state.get_global_attribute("global_seed_generator")  # as all its versions name it
    if of_keras is not None:
        generators.setdefault(id(of_keras), (of_keras, False))
    return MutableState(list(variables.values()), list(generators.values()))


def losses_of(layer: Any) -> list[Any]:
    """Return the list in which ``layer`` keeps what ``add_loss`` gave to itself since it was called last."""
    losses: list[Any] = layer._losses
    return losses


def move_losses(layer: Any, to: Any) -> None:
    """Have the losses that ``layer`` added be those that ``to`` added."""
    to._losses.extend(layer._losses)
    to._loss_ids.update(layer._loss_ids)
    layer._losses.clear()
    layer._loss_ids.clear()


def copy_losses(layer: Any, to: Any) -> None:
    """Have ``to`` have the losses that ``layer`` added, and no others."""
    to._losses[:] = layer._losses
    to._loss_ids.clear()
    to._loss_ids.update(layer._loss_ids)


def mask_of(value: Any) -> Any:
    """Return the mask that Keras hung on ``value``, or None."""
    return getattr(value, "_keras_mask", None)


def attach_mask(value: Any, mask: Any) -> None:
    """Hang ``mask`` on the tensor ``value``, where layers behind it look for it."""
    value._keras_mask = mask


def backend_variable(variable: Any) -> Any:
    """Return TensorFlow's variable of Keras's; ``value`` would be a tensor of another type in mixed precision."""
    return variable._value


def takes_training(operation: Any) -> bool:
    """Whether the ``call`` of a layer takes ``training``."""
    return bool(getattr(operation, "_call_has_training_arg", False))


def arguments_from_context(operation: Any) -> Any:
    """Return the names of arguments that an outer call sets, such as ``training``; none of what is no layer."""
    return getattr(operation, "_call_context_args", ())


def is_in_remat_scope(layer: Any) -> bool:
    """Whether ``layer`` was made in a ``keras.RematScope``."""
    return bool(layer._remat_mode)
