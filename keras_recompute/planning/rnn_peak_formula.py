"""The peak of a training step of a recurrent network, predicted from how its sequence is cut into
sections.

What the compiled programs of this project's LSTM and GRU hold when they hold most, read off their
buffer assignments at some hundred shapes and written down in elements: ``units`` H, ``features`` F,
``outputs`` V of the dense layer, G gates (4 or 3), ``rows`` (timesteps times sequences) of all
steps A, of a section s, of the innermost group of sections g.

* Always: the weights W, the optimiser's values, the gradients of the microbatches so far, W again.
* While a section is back-propagated: W at each level, for the sections so far; states at the
  borders of the sections and of the groups around them; the outputs g H of the sections of one
  group, from which their gates follow by one product; the share of a group in the input and in the
  gradient of the logits; the kernels joined, (F + H) 4 H, of the GRU (F + H) 2 H. On top comes the
  largest of the moments that ``_section_elements`` lists.
* When the loss is differentiated: 3 V per row (logits, their exponentials, their gradient), of
  which V stays as the gradient; of a squared error 2 V. With one level the outputs A H are alive
  then too.
* Sections of two lengths make two loops: what one of them has ready, W, waits for the other.
* With one section, or everything kept, the activations of all rows: ``_kept_elements``.

Within 3 % of what is compiled for most shapes, within 5 % for all that were tried
(``benchmarks/predictions.py``). Source of the recurrence's plan: Appleyard, Kocisky and Blunsom
2016; of the sections: Chen et al. 2016.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..errors import InvalidArgumentError
from .chain import check_count
from .nested_sections import equal_groups
from .uniform_sections import section_lengths

_BYTES = 4  # float32
_GATES = {"lstm": 4, "gru": 3}
_STATES = {"lstm": 2, "gru": 1}


def predicted_peak_bytes(
    *,
    cell: str,
    steps: int,
    checkpoints: int,
    recompute: bool,
    batch: int,
    features: int,
    units: int,
    outputs: int,
    embedded_symbols: int = 0,
    optimizer_slots: int = 0,
    levels: int = 1,
) -> int:
    """Return the predicted peak in bytes of a training step, weights included, the data fed in not.

    The network: an embedding, the recurrent layer, and a dense layer on every timestep, in float32,
    trained on the cross-entropy of embedded symbols, else on the squared error.

    Args:
        cell: ``"lstm"`` or ``"gru"``.
        steps: Timesteps.
        checkpoints: Checkpoints, which make one section more.
        recompute: False: every activation is kept.
        batch: Sequences.
        features: Values of an input at one timestep.
        units: Values of a state.
        outputs: Values of an output of the dense layer.
        embedded_symbols: Symbols that the embedding knows; 0: there is none.
        optimizer_slots: Values that the optimiser keeps per weight.
        levels: Loops that the sections are grouped in, as their number divides.

    Raises:
        InvalidArgumentError: An unknown ``cell``, or more checkpoints than ``steps`` - 1.

    Examples:
        >>> sizes = dict(steps=256, batch=8, features=16, units=32, outputs=4)
        >>> network = dict(cell="lstm", recompute=True, **sizes)
        >>> [kr.planning.predicted_peak_bytes(checkpoints=k, **network) for k in (0, 3, 15)]
        [2172960, 805936, 562224]
    """
    if cell not in _GATES:
        raise InvalidArgumentError(
            f"cell is {cell!r}: the sizes of {' and '.join(_GATES)} are known"
        )
    check_count("checkpoints", checkpoints, at_least=0)
    lengths = section_lengths(steps, checkpoints + 1)
    network = _Network(cell, batch, features, units, outputs, embedded_symbols)
    rows = steps * batch
    if recompute and checkpoints:
        peak = _sections_peak_elements(network, rows, Counter(lengths), levels)
    else:
        peak = _kept_elements(
            network, rows, lengths[-1] * batch, recompute=recompute, is_one=not checkpoints
        )
    return _BYTES * ((2 + optimizer_slots) * network.weights + peak)


@dataclass(frozen=True)
class _Network:
    cell: str
    batch: int
    features: int
    units: int
    outputs: int
    symbols: int

    @property
    def is_lstm(self) -> bool:
        return self.cell == "lstm"

    @property
    def kernel(self) -> int:
        return self.features * _GATES[self.cell] * self.units

    @property
    def recurrent_kernel(self) -> int:
        return self.units * _GATES[self.cell] * self.units

    @property
    def kernels_joined(self) -> int:
        """Elements of the kernels of all gates, or of the GRU's two, for inputs and states side by
        side.
        """
        return (self.features + self.units) * (4 if self.is_lstm else 2) * self.units

    @property
    def weights(self) -> int:
        biases = _GATES[self.cell] * self.units * (1 if self.is_lstm else 2)
        dense = (self.units + 1) * self.outputs
        return self.symbols * self.features + self.kernel + self.recurrent_kernel + biases + dense

    @property
    def loss_gradient(self) -> int:
        """Elements per row that the loss leaves for the backward pass."""
        return self.outputs if self.symbols else 2 * self.outputs


def _sections_peak_elements(
    network: _Network, rows: int, lengths: Counter[int], levels: int
) -> int:
    """Return what is held beyond weights, optimiser and sums, of sections with ``lengths`` (steps:
    how many).
    """
    batch, units = network.batch, network.units
    counts = {length: equal_groups(count, levels) for length, count in lengths.items()}
    state = batch * units * _STATES[network.cell]
    lasting = sum(loops[0] * state for loops in counts.values()) + network.weights * (
        len(counts) - 1
    )
    lasting += network.kernels_joined
    lasting += sum(
        length * batch * count * units
        for length, count in lengths.items()
        if len(counts[length]) == 1
    )
    peaks = [3 * rows * network.outputs]
    for length, loops in counts.items():
        within, group = network.weights * len(loops), length * batch * lengths[length]
        for outer, inner in zip(loops, loops[1:]):
            group //= outer
            share = group * ((1 if network.symbols else network.features) + network.outputs)
            within += share + inner * state
        if len(loops) > 1:
            within += group * units
        section = length * batch
        within += section * network.outputs + _section_elements(network, section)
        peaks.append(within + rows * network.loss_gradient)
    return lasting + max(peaks)


def _section_elements(network: _Network, rows: int) -> int:
    """Return what one section needs at most while it is replayed and back-propagated."""
    units, features = network.units, network.features
    if network.is_lstm:
        moments = [
            rows * (2 * features + 2 * units),  # inputs and outputs, and their rows joined
            # Those rows and their product, over which the gates are written
            rows * (features + 5 * units),
            # The gates' gradients, and of the kernel
            rows * (4 * units + features) + network.kernel,
            rows * 5 * units + network.recurrent_kernel,
        ]
    else:
        moments = [
            rows * (5 * units + features) + network.kernel,
            # Turned round, for the states' gradients
            rows * (7 * units + features) + network.recurrent_kernel,
            rows * 5 * units + 2 * network.recurrent_kernel,  # and its gradient
        ]
    if network.symbols:
        # The gradient of the embedded inputs
        moments.append(rows * ((4 if network.is_lstm else 8) * units + 2 * features))
    return max(moments)


def _kept_elements(
    network: _Network, rows: int, section: int, *, recompute: bool, is_one: bool
) -> int:
    """Return the same where all rows are kept: nothing recomputed, or all in one section.
    ``section``: rows of the last.

    The dense layer has run backward before the recurrent one does: of the loss the gradient of the
    outputs is left.
    """
    units, features = network.units, network.features
    if recompute:
        # inputs and outputs, beside one another too for the product of all gates, and that; of the
        # GRU what its loop reads
        forward = rows * units
        backward = (
            rows * (2 * features + (7 if network.is_lstm else 6) * units) + network.kernels_joined
        )
        if not network.is_lstm:
            backward = max(backward, rows * (features + 9 * units))
    elif network.is_lstm:
        # gates, cell states, outputs; then the gradients of the gates of one section
        forward = rows * (features + 6 * units)
        backward = forward + rows * units + section * (1 if is_one else 5) * units
    else:
        forward = rows * (features + 5 * units)
        backward = forward + rows * units + section * (1 if is_one else 4) * units
    gathered = 0 if recompute or is_one else rows * units  # the sections' outputs side by side
    return max(forward + gathered + 3 * rows * network.outputs, backward)
