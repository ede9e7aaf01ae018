"""What the example learns: text, byte by byte, or the published example's constant numbers."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import InvalidArgumentError

SYMBOLS = 256  # values of a byte


def read_text(arguments: argparse.Namespace) -> bytes:
    """Return the text to learn as bytes. Raises InvalidArgumentError if it cannot be read or is too short."""
    needed = arguments.seq_len + 1
    if arguments.text is None:
        from pydoc_data.topics import topics  # the language reference that CPython carries: real English, offline

        text, name = "\n".join(topics[key] for key in sorted(topics)).encode(), "the Python language reference"
    else:
        name = f"--text {arguments.text}"
        try:
            text = arguments.text.read_bytes()
        except OSError as error:
            raise InvalidArgumentError(f"{name}: it cannot be read ({error.strerror})") from None
    if len(text) < needed:
        raise InvalidArgumentError(
            f"{name} has {len(text)} bytes, but one sequence of {arguments.seq_len} steps needs {needed}: "
            f"give a longer text, or lower --seq-len"
        )
    return text


def element_spec(tf: Any, arguments: argparse.Namespace) -> Any:
    """Return the shapes and types of one microbatch of ``make_dataset``, without making any."""
    shape = arguments.batch_size, arguments.seq_len
    if arguments.data == "text":
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.int32)
    return tf.TensorSpec((*shape, arguments.features), tf.float32), tf.TensorSpec((*shape, 1), tf.float32)


def make_dataset(tf: Any, arguments: argparse.Namespace, text: bytes | None) -> Any:
    """Return the microbatches of one epoch, of fixed shape: (inputs, targets)."""
    import numpy as np

    if arguments.data == "constant":
        # One microbatch, given again and again: batching would make a copy of it each time.
        shape = arguments.batch_size, arguments.seq_len
        microbatch = np.ones((*shape, arguments.features), np.float32), np.full((*shape, 1), 0.2, np.float32)
        return tf.data.Dataset.from_tensors(microbatch).repeat(arguments.steps_per_epoch)
    assert text is not None  # read_text has been asked for it
    count = arguments.steps_per_epoch * arguments.batch_size
    begins = np.random.RandomState(arguments.seed).randint(0, len(text) - arguments.seq_len, size=count)
    symbols = np.frombuffer(text, np.uint8).astype(np.int32)
    windows = np.stack([symbols[begin : begin + arguments.seq_len + 1] for begin in begins])
    dataset = tf.data.Dataset.from_tensor_slices((windows[:, :-1], windows[:, 1:]))
    return dataset.batch(arguments.batch_size, drop_remainder=True)
