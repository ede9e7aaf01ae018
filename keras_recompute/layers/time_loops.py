"""What all backends share that cut Keras's loop over time: its options, and where it is cut."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from ..seams.keras.time_loops import replace_time_loops
from ..user_code import warn_user

# Steps: a shorter sequence would keep as many states as steps.
_SHORTEST = 4


@dataclass(frozen=True)
class LoopOptions:
    """Options of Keras's loop over time."""

    go_backwards: bool = False
    mask: Any = None
    constants: Sequence[Any] | None = None
    unroll: bool = False
    input_length: Any = None
    time_major: bool = False
    zero_output_for_mask: bool = False
    return_all_outputs: bool = True


@contextlib.contextmanager
def cut_time_loops(
    cut: Callable[..., Any], *, where: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Run the loops of Keras's recurrent layers by ``cut`` where they can be cut.

    ``cut(plain, layer, step, inputs, initial_states, options)`` returns what Keras's loop ``plain``
    would, or None to have that run. ``where`` says whether the backend cuts loops at that moment.
    """

    def run(
        plain: Any, layer: Any, step: Any, inputs: Any, initial_states: Any, **options: Any
    ) -> Any:
        given, found = LoopOptions(**options), None
        with replace_time_loops(None):
            if where() and is_cut(layer, inputs, given):
                found = cut(plain, layer, step, inputs, initial_states, given)
            return plain(step, inputs, initial_states, **options) if found is None else found

    with replace_time_loops(run):
        yield


def is_cut(layer: keras.layers.RNN, inputs: Any, options: LoopOptions) -> bool:
    """Whether the loop of ``layer`` over ``inputs``, ``(batch, time, ...)``, can be cut.

    A warning says so where the number of timesteps is not known.
    """
    if options.time_major or keras.ops.is_tensor(options.input_length):
        return False
    if not keras.ops.is_tensor(inputs):
        return False
    steps = inputs.shape[1]
    if steps is None:
        shape = f"the length of its sequences, {inputs.shape}, is not fixed"
        warn_uncut(layer, f"{shape}. Give keras.Input a length, and batches of that length")
        return False
    return bool(steps >= _SHORTEST)


def warn_uncut(layer: keras.layers.RNN, reason: str) -> None:
    """Warn that the steps of ``layer`` stay in memory."""
    uncut = f"the time steps of {layer.name!r} all stay in memory until their backward pass"
    warn_user(f"{uncut}, as in the plain model: {reason}")


def sqrt_sections(steps: int) -> list[tuple[int, int]]:
    """Return how ``steps`` are divided: pairs of a number of sections and their length, in order.

    If a number of sections near sqrt(steps) divides the steps, all sections are equal. Otherwise
    the first ones are one step longer.
    """
    root = math.sqrt(steps)
    near = range(math.ceil(root / math.sqrt(2)), math.floor(root * math.sqrt(2)) + 1)
    dividing = [count for count in near if steps % count == 0]
    if dividing:
        count = min(dividing, key=lambda n: abs(n - root))
        return [(count, steps // count)]
    count = round(root)
    longer = steps % count
    return [(longer, steps // count + 1), (count - longer, steps // count)]
