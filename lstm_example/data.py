"""Training data of the example: text as bytes, or the published example's constant numbers."""

from __future__ import annotations

import hashlib
import io
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Callable, Iterable, Iterator

from keras_recompute.atomic_files import refuse_pipes_and_devices
from keras_recompute.errors import InvalidArgumentError, RecomputeError
from keras_recompute.keras_backend import TENSORFLOW, current_backend

from .options import LARGEST_SEED, Options
from .path_failures import refuse_path

SYMBOLS = 256  # values of a byte
_DIGESTED = 2**20
_BYTES = 4  # of an int32 symbol, of a float32 number


@dataclass(frozen=True)
class Text:
    """A text to learn: its name, what opens it, and its bytes; it is read where needed."""

    name: str
    open: Callable[[], IO[Any]]
    length: int
    failures: list[RecomputeError] = field(default_factory=list, compare=False)
    """Errors raised while reading: TensorFlow, which reads in training, raises its own instead."""

    def digest(self) -> str:
        """Return the length of the text and a hash of its beginning, to recognise it."""
        with self.open() as file:
            # Only the beginning, as a text may be larger than memory.
            beginning = file.read(_DIGESTED)
        return f"{self.length} bytes, {hashlib.sha256(beginning).hexdigest()[:16]}"

    def stretches(self, begins: Iterable[int], length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from each of ``begins``. Raises RecomputeError."""
        try:
            with self.open() as file:
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
        text = Text("the Python language reference", partial(io.BytesIO, reference), len(reference))
    else:
        name = f"--text {options.text}"
        with refuse_path(name, "it cannot be read"):
            refuse_pipes_and_devices(options.text)
            with options.text.open("rb") as file:
                text = Text(name, partial(options.text.open, "rb"), file.seek(0, io.SEEK_END))
    learnt = learnt_bytes(text, options)
    held_back = text.length - learnt if options.validation else needed
    if min(learnt, held_back) < needed:
        parts = f", {learnt} to train on and {held_back} held back by --validation"
        which = f"{parts} {options.validation:g}" if options.validation else ""
        raise InvalidArgumentError(
            f"{text.name} has {text.length} bytes{which}, but a sequence of {options.seq_len} "
            f"steps needs {needed}: give a longer text, or lower --seq-len"
        )
    return text


def data_bytes(options: Options) -> int:
    """Return the least memory of a run's data: one microbatch, and the feed of one program."""
    feed = feed_bytes(options, options.batch_size)
    # What is compiled alone is given a feed of zeros.
    return feed if options.compile_only else feed // microbatches_fed(options) + feed


def feed_bytes(options: Options, batch_size: int) -> int:
    """Return the bytes that a program is fed: inputs and targets of its microbatches."""
    per_step = 2 * _BYTES if options.is_text else (options.features + 1) * _BYTES
    return batch_size * options.seq_len * per_step * microbatches_fed(options)


def microbatches_fed(options: Options) -> int:
    """Return the microbatches of one program: of an update, or one where Keras alone trains."""
    return options.gradient_accumulation if current_backend() == TENSORFLOW else 1


def batch_spec(options: Options, spec: Callable[[tuple[int, ...], str], Any]) -> tuple[Any, Any]:
    """Return ``spec`` of shape and type of the inputs and the targets of one microbatch."""
    shape = options.batch_size, options.seq_len
    if options.is_text:
        return spec(shape, "int32"), spec(shape, "int32")
    return spec((*shape, options.features), "float32"), spec((*shape, 1), "float32")


def microbatches(
    options: Options, text: Text | None, *, first: int = 0
) -> Iterator[tuple[Any, Any]]:
    """Yield microbatches without end, (inputs, targets), from number ``first`` on.

    Each is drawn at random from the training part of the text. Their order depends on the seed
    alone.
    """
    import numpy as np

    if text is None:
        inputs, targets = batch_spec(options, np.empty)
        inputs.fill(1.0)
        targets.fill(0.2)
        return itertools.repeat((inputs, targets))
    part = range(learnt_bytes(text, options))
    return _random_windows(options, text, part, options.seed, first)


def validation_batches(options: Options, text: Text, count: int) -> tuple[Any, Any]:
    """Return ``count`` microbatches of the held-back part of the text, always the same, as one."""
    import numpy as np

    seed = (options.seed + 1) % (LARGEST_SEED + 1)
    part = range(learnt_bytes(text, options), text.length)
    windows = _random_windows(options, text, part, seed)
    inputs, targets = zip(*itertools.islice(windows, count))
    return np.concatenate(inputs), np.concatenate(targets)


def learnt_bytes(text: Text, options: Options) -> int:
    """Return the number of bytes in the training part of the text; held-back bytes come last."""
    return text.length - int(text.length * (options.validation or 0))


def _random_windows(
    options: Options, text: Text, part: range, seed: int, first: int = 0
) -> Iterator[tuple[Any, Any]]:
    import numpy as np

    random, last = np.random.RandomState(seed), part.stop - options.seq_len
    for number in itertools.count():
        begins = random.randint(part.start, last, size=options.batch_size).tolist()
        # Skipped microbatches are drawn too, so that a resumed run sees the same data.
        if number < first:
            continue
        found = list(text.stretches(begins, options.seq_len + 1))
        windows = np.frombuffer(b"".join(found), np.uint8).astype(np.int32)
        windows = windows.reshape(options.batch_size, -1)
        yield windows[:, :-1], windows[:, 1:]
