"""Training data of the example: text, byte by byte, or the published example's constant numbers."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator

from ..errors import InvalidArgumentError, RecomputeError
from ..files import refuse_endless
from .arguments import Options

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


def find_text(options: Options) -> Text:
    """Return the text to learn. Raises InvalidArgumentError if it cannot be read, may never end, or is too short."""
    needed = options.seq_len + 1
    if options.text is None:
        from pydoc_data.topics import topics  # the language reference that CPython carries: real English, offline

        reference = "\n".join(topics[key] for key in sorted(topics)).encode()
        text = Text("the Python language reference", reference, len(reference))
    else:
        text = _text_of_file(f"--text {options.text}", options.text)
    if text.length < needed:
        raise InvalidArgumentError(
            f"{text.name} has {text.length} bytes, but one sequence of {options.seq_len} steps needs {needed}: "
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


def data_bytes(options: Options) -> int:
    """Return what the data of a run takes at least: of one epoch, and in the feed of one update."""
    if options.compile_only:
        return 0
    microbatch = feed_bytes(options, options.batch_size) // options.gradient_accumulation
    return microbatch * ((options.steps_per_epoch if options.is_text else 1) + options.gradient_accumulation)


def feed_bytes(options: Options, batch_size: int) -> int:
    """Return what the feed of one update takes: the inputs and targets of its microbatches."""
    per_step = 2 * _BYTES if options.is_text else (options.features + 1) * _BYTES
    return batch_size * options.seq_len * per_step * options.gradient_accumulation


def element_spec(tf: Any, options: Options) -> Any:
    """Return the shapes and types of one microbatch of ``make_dataset``, without making any."""
    shape = options.batch_size, options.seq_len
    if options.is_text:
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.int32)
    return tf.TensorSpec((*shape, options.features), tf.float32), tf.TensorSpec((*shape, 1), tf.float32)


def make_dataset(tf: Any, options: Options, text: Text | None) -> Any:
    """Return the microbatches of one epoch, of fixed shape: (inputs, targets)."""
    import numpy as np

    if options.data == "constant":
        # One microbatch, given again and again: batching would make a copy of it each time.
        shape = options.batch_size, options.seq_len
        microbatch = np.ones((*shape, options.features), np.float32), np.full((*shape, 1), 0.2, np.float32)
        return tf.data.Dataset.from_tensors(microbatch).repeat(options.steps_per_epoch)
    assert text is not None  # find_text has been asked for it
    count = options.steps_per_epoch * options.batch_size
    begins = np.random.RandomState(options.seed).randint(0, text.length - options.seq_len, size=count)
    stretches = text.stretches(begins.tolist(), options.seq_len + 1)
    windows = np.stack([np.frombuffer(stretch, np.uint8) for stretch in stretches]).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((windows[:, :-1], windows[:, 1:]))
    return dataset.batch(options.batch_size, drop_remainder=True)
