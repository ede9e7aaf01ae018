"""The size of a batch that a model is planned for."""

from __future__ import annotations

import keras

from ...errors import InvalidArgumentError


def batch_size_of(functional: keras.Model, batch_size: int | None) -> int:
    """Return ``batch_size``, or the one that the inputs of a functional model have fixed.

    Raises InvalidArgumentError where there is none, or the inputs have another one.
    """
    sizes = {tensor.shape[0]: tensor.name for tensor in functional.inputs if tensor.shape}
    sizes.pop(None, None)
    batch = batch_size or (next(iter(sizes)) if len(sizes) == 1 else None)
    if batch is None:
        raise InvalidArgumentError(
            "batch_size is None, and the memory depends on it. Give a whole number from 1 on, fix "
            "it in keras.Input, or give sample=, a batch as for fit"
        )
    for size, name in sizes.items():
        if batch_size and size != batch_size:
            raise InvalidArgumentError(
                f"batch_size is {batch_size}, and the input {name!r} of {functional.name!r} has "
                f"{size} fixed in keras.Input, for which it would be planned. Leave batch_size "
                "out, or build the model on a keras.Input without one"
            )
    return batch
