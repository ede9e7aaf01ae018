"""Types and shapes of the arguments that a function is compiled for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgumentError


def refuse_closed_specs(arguments: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError for specs in a data class that TensorFlow does not look into."""
    import tensorflow as tf

    for name, argument in arguments.items():
        for leaf in tf.nest.flatten(argument):
            fields = dataclasses.fields(leaf) if dataclasses.is_dataclass(leaf) else ()
            if any(isinstance(getattr(leaf, f.name, None), tf.TensorSpec) for f in fields):
                kind = type(leaf).__name__
                raise InvalidArgumentError(
                    f"{name} holds a {kind}, a data class with a TensorSpec, which tf.function "
                    f"does not look into. Give {kind} the methods __tf_flatten__ and "
                    f"__tf_unflatten__, or pass its fields as a dict"
                )


def argument_specs(concrete: Any) -> list[Any]:
    """Return types and shapes of the arguments of a trace, flat.

    Raises InvalidArgumentError for a shape that is not known as a whole.
    """
    import tensorflow as tf

    data = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    specs = []
    for tensor in data:
        if not tensor.shape.is_fully_defined():
            raise InvalidArgumentError(
                f"the argument {tensor.op.name!r} has the shape {tensor.shape}: a program is "
                f"compiled for one size, so give a TensorSpec or a tensor without None"
            )
        specs.append(tf.TensorSpec(tensor.shape, tensor.dtype))
    return specs
