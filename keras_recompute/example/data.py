"""Training data of the example: text, byte by byte, or the published example's constant numbers."""

from __future__ import annotations

import argparse
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator

from ..errors import InvalidArgumentError, RecomputeError
from ..report.files import refuse_endless

SYMBOLS = 256  # values of a byte
_BYTES = 4  # of an int32 symbol, of a float32 number


@dataclass(frozen=True)
class Text:
    """A text to learn: the bytes themselves, or the file that has them, of which only what is learnt is read."""

    name: str
    source: bytes | Path
    length: int

    def stretches(self, begins: Iterable[int], length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from each of ``begins`` on. Raises RecomputeError where they cannot be read any more."""
        try:
            with io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb") as file:
                for begin in begins:
                    file.seek(begin)
                    found = file.read(length)
                    if len(found) < length:
                        raise RecomputeError(f"{self.name}: it had {self.length} bytes when the run began, and now has fewer")
                    yield found
        except OSError as error:
            raise RecomputeError(f"{self.name}: it cannot be read any more ({error.strerror})") from None


def find_text(arguments: argparse.Namespace) -> Text:
    """Return the text to learn. Raises InvalidArgumentError if it cannot be read, may never end, or is too short."""
    needed = arguments.seq_len + 1
    if arguments.text is None:
        from pydoc_data.topics import topics  # the language reference that CPython carries: real English, offline

        reference = "\n".join(topics[key] for key in sorted(topics)).encode()
        text = Text("the Python language reference", reference, len(reference))
    else:
        text = _text_of_file(f"--text {arguments.text}", arguments.text)
    if text.length < needed:
        raise InvalidArgumentError(
            f"{text.name} has {text.length} bytes, but one sequence of {arguments.seq_len} steps needs {needed}: "
            f"give a longer text, or lower --seq-len"
        )
    return text


def _text_of_file(name: str, path: Path) -> Text:
    try:
        refuse_endless(path)
        with path.open("rb") as file:
            return Text(name, path, file.seek(0, io.SEEK_END))
    except OSError as error:
        raise InvalidArgumentError(f"{name}: it cannot be read ({error.strerror})") from None


def data_bytes(arguments: argparse.Namespace) -> int:
    """Return what the data of a run takes at least: of one epoch, and in the feed of one update."""
    if arguments.compile_only:
        return 0
    is_text = arguments.data == "text"
    per_step = 2 * _BYTES if is_text else (arguments.features + 1) * _BYTES  # an input and a target
    microbatch = arguments.batch_size * arguments.seq_len * per_step
    return microbatch * ((arguments.steps_per_epoch if is_text else 1) + arguments.gradient_accumulation)


def element_spec(tf: Any, arguments: argparse.Namespace) -> Any:
    """Return the shapes and types of one microbatch of ``make_dataset``, without making any."""
    shape = arguments.batch_size, arguments.seq_len
    if arguments.data == "text":
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.int32)
    return tf.TensorSpec((*shape, arguments.features), tf.float32), tf.TensorSpec((*shape, 1), tf.float32)


def make_dataset(tf: Any, arguments: argparse.Namespace, text: Text | None) -> Any:
    """Return the microbatches of one epoch, of fixed shape: (inputs, targets)."""
    import numpy as np

    if arguments.data == "constant":
        # One microbatch, given again and again: batching would make a copy of it each time.
        shape = arguments.batch_size, arguments.seq_len
        microbatch = np.ones((*shape, arguments.features), np.float32), np.full((*shape, 1), 0.2, np.float32)
        return tf.data.Dataset.from_tensors(microbatch).repeat(arguments.steps_per_epoch)
    assert text is not None  # find_text has been asked for it
    count = arguments.steps_per_epoch * arguments.batch_size
    begins = np.random.RandomState(arguments.seed).randint(0, text.length - arguments.seq_len, size=count)
    stretches = text.stretches(begins.tolist(), arguments.seq_len + 1)
    windows = np.stack([np.frombuffer(stretch, np.uint8) for stretch in stretches]).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((windows[:, :-1], windows[:, 1:]))
    return dataset.batch(arguments.batch_size, drop_remainder=True)
