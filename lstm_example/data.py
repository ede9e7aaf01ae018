"""Training data of the example: text as bytes, or the published example's constant numbers."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Iterator

from keras_recompute.atomic_files import refuse_pipes_and_devices
from keras_recompute.errors import InvalidArgumentError, RecomputeError

from .arguments import LARGEST_SEED, Options

SYMBOLS = 256  # values of a byte
_DIGESTED = 2**20
_BYTES = 4  # of an int32 symbol, of a float32 number


@dataclass(frozen=True)
class Text:
    """A text to learn: its bytes, or a file that is read only where needed."""

    name: str
    source: bytes | Path
    length: int
    failures: list[RecomputeError] = field(default_factory=list, compare=False)
    """Errors raised while reading: TensorFlow, which reads in training, raises its own instead."""

    def digest(self) -> str:
        """Return the length of the text and a hash of its beginning, to recognise it."""
        if isinstance(self.source, Path):
            with self.source.open("rb") as file:
                # Only the beginning, as a text may be larger than memory.
                beginning = file.read(_DIGESTED)
        else:
            beginning = self.source[:_DIGESTED]
        return f"{self.length} bytes, {hashlib.sha256(beginning).hexdigest()[:16]}"

    def stretches(self, begins: Iterable[int], length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from each of ``begins``. Raises RecomputeError."""
        try:
            with (
                io.BytesIO(self.source)
                if isinstance(self.source, bytes)
                else self.source.open("rb")
            ) as file:
                for begin in begins:
                    file.seek(begin)
                    found = file.read(length)
                    if len(found) < length:
                        raise self._failed(
                            f"it had {self.length} bytes when the run began, and has fewer now"
                        )
                    yield found
        except OSError as error:
            raise self._failed(f"it can no longer be read ({error.strerror})") from None

    def _failed(self, why: str) -> RecomputeError:
        self.failures.append(RecomputeError(f"{self.name}: {why}"))
        return self.failures[-1]


def find_text(options: Options) -> Text:
    """Return the text to learn.

    Raises InvalidArgumentError if it cannot be read, may never end, or is too short.
    """
    needed = options.seq_len + 1
    if options.text is None:
        # CPython ships its language reference: real English, available offline.
        from pydoc_data.topics import topics

        reference = "\n".join(topics[key] for key in sorted(topics)).encode()
        text = Text("the Python language reference", reference, len(reference))
    else:
        text = _text_of_file(f"--text {options.text}", options.text)
    learnt = learnt_bytes(text, options)
    held_back = text.length - learnt if options.validation else needed
    if min(learnt, held_back) < needed:
        which = ""
        if options.validation:
            which = (
                f", {learnt} to train on and {held_back} held back by --validation "
                f"{options.validation:g}"
            )
        raise InvalidArgumentError(
            f"{text.name} has {text.length} bytes{which}, but a sequence of {options.seq_len} "
            f"steps needs {needed}: give a longer text, or lower --seq-len"
        )
    return text


def _text_of_file(name: str, path: Path) -> Text:
    try:
        refuse_pipes_and_devices(path)
        with path.open("rb") as file:
            return Text(name, path, file.seek(0, io.SEEK_END))
    except OSError as error:
        raise InvalidArgumentError(f"{name}: it cannot be read ({error.strerror})") from None


def data_bytes(options: Options) -> int:
    """Return the least memory of a run's data: one microbatch, and the feed of one update."""
    feed = feed_bytes(options, options.batch_size)
    # What is compiled alone is given a feed of zeros.
    return feed if options.compile_only else feed // options.gradient_accumulation + feed


def feed_bytes(options: Options, batch_size: int) -> int:
    """Return the bytes of the feed of one update: inputs and targets of its microbatches."""
    per_step = 2 * _BYTES if options.is_text else (options.features + 1) * _BYTES
    return batch_size * options.seq_len * per_step * options.gradient_accumulation


def element_spec(tf: Any, options: Options) -> Any:
    """Return the shapes and types of one microbatch of ``make_dataset``."""
    shape = options.batch_size, options.seq_len
    if options.is_text:
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.int32)
    return tf.TensorSpec((*shape, options.features), tf.float32), tf.TensorSpec(
        (*shape, 1), tf.float32
    )


def make_dataset(tf: Any, options: Options, text: Text | None, *, first: int = 0) -> Any:
    """Return an endless dataset of microbatches, (inputs, targets), from number ``first`` on.

    Each is drawn at random from the training part of the text. Their order depends on the seed
    alone.
    """
    import numpy as np

    if options.data == "constant":
        # The same microbatch is repeated: batching would copy it each time.
        shape = options.batch_size, options.seq_len
        microbatch = (
            np.ones((*shape, options.features), np.float32),
            np.full((*shape, 1), 0.2, np.float32),
        )
        return tf.data.Dataset.from_tensors(microbatch).repeat()
    assert text is not None  # find_text has been asked for it
    return _random_windows(
        tf, options, text, range(learnt_bytes(text, options)), options.seed, first
    )


def validation_dataset(tf: Any, options: Options, text: Text) -> Any:
    """Return microbatches of the held-back part of the text, always the same, endlessly."""
    seed = (options.seed + 1) % (LARGEST_SEED + 1)
    return _random_windows(
        tf, options, text, range(learnt_bytes(text, options), text.length), seed, 0
    )


def learnt_bytes(text: Text, options: Options) -> int:
    """Return the number of bytes in the training part of the text; held-back bytes come last."""
    return text.length - int(text.length * (options.validation or 0))


def _random_windows(
    tf: Any, options: Options, text: Text, part: range, seed: int, first: int
) -> Any:
    import numpy as np

    def microbatches() -> Iterator[tuple[Any, Any]]:
        random, number = np.random.RandomState(seed), 0
        while True:
            begins = random.randint(
                part.start, part.stop - options.seq_len, size=options.batch_size
            )
            # Skipped microbatches are drawn too, so that a resumed run sees the same data.
            if number >= first:
                stretches = text.stretches(begins.tolist(), options.seq_len + 1)
                windows = np.stack(
                    [np.frombuffer(stretch, np.uint8) for stretch in stretches]
                ).astype(np.int32)
                yield windows[:, :-1], windows[:, 1:]
            number += 1

    return tf.data.Dataset.from_generator(microbatches, output_signature=element_spec(tf, options))
