"""A formula for the peak memory of a training step of an LSTM or GRU cut into sections.

The coefficients were read off the buffer assignments of compiled programs at some hundred shapes.
They count elements, in terms of ``units`` H, ``features`` F, ``outputs`` V of the dense layer, and
G gates (4 or 3). ``rows`` are timesteps times sequences: of all steps A, of one section s, of the
innermost group of sections g.

* Always alive: the weights W, the optimiser's slots, the gradients summed so far, and W again.
* While a section is back-propagated: W per level for the sections so far; the states at the borders
  of sections and of groups; g H outputs of one group, from which one product computes the gates;
  the group's part of the input and of the logits' gradient; F per row of all rows and of the
  group's for the gradient of an embedding, which is sparse; the concatenated kernels, (F + H) 4 H,
  or (F + H) 2 H of the GRU. ``_section_elements`` adds the largest of the moments that it lists.
* When the loss is differentiated: 3 V per row (logits, their exponentials, their gradient); V stays
  as the gradient. For a squared error 2 V. With one level A H outputs are alive too.
* With two section lengths there are two loops. The weight gradients of the first (W) stay alive
  during the second.
* With one section, or everything kept: the activations of all rows, see ``_kept_elements``.

Most shapes are within 3 % of the compiled peak, all that were tried within 5 %
(``benchmarks/predictions.py``).

Sources: Appleyard, Kocisky and Blunsom 2016 for the recurrence; Chen et al. 2016 for the sections.
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
    """Return the predicted peak of a training step in bytes: with weights, without fed data.

    The network is an embedding, the recurrent layer, and a dense layer on every timestep, in
    float32. The loss is the cross-entropy of embedded symbols, or the squared error without them.

    Args:
        cell: ``"lstm"`` or ``"gru"``.
        steps: Timesteps.
        checkpoints: Checkpoints, which make one section more.
        recompute: Whether activations are recomputed; False keeps them all.
        batch: Sequences.
        features: Values of an input at one timestep.
        units: Values of a state.
        outputs: Values of an output of the dense layer.
        embedded_symbols: Rows of the embedding; 0 for no embedding.
        optimizer_slots: Values that the optimiser keeps per weight.
        levels: Levels of loops that sections are grouped in, if their number can be divided so.

    Raises:
        InvalidArgumentError: An unknown ``cell``, or more checkpoints than ``steps`` - 1.

    Examples:
        >>> sizes = dict(steps=256, batch=8, features=16, units=32, outputs=4)
        >>> network = dict(cell="lstm", recompute=True, **sizes)
        >>> [kr.planning.predicted_peak_bytes(checkpoints=k, **network) for k in (0, 3, 15)]
        [2172960, 805936, 562224]
    """
    if cell not in _GATES:
        raise InvalidArgumentError(f"cell is {cell!r}: give {' or '.join(_GATES)}")
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
        """Elements of the concatenated kernels of inputs and states, of the GRU for both gates."""
        return (self.features + self.units) * (4 if self.is_lstm else 2) * self.units

    @property
    def weights(self) -> int:
        biases = _GATES[self.cell] * self.units * (1 if self.is_lstm else 2)
        dense = (self.units + 1) * self.outputs
        return self.symbols * self.features + self.kernel + self.recurrent_kernel + biases + dense

    @property
    def table_gradient(self) -> int:
        """Elements per row of the sparse gradient of the embedding: one row of it per symbol."""
        return self.features if self.symbols else 0

    @property
    def loss_gradient(self) -> int:
        """Elements per row that the loss leaves for the backward pass."""
        return self.outputs if self.symbols else 2 * self.outputs


def _sections_peak_elements(
    network: _Network, rows: int, lengths: Counter[int], levels: int
) -> int:
    """Return the elements held beyond weights, optimiser and sums; ``lengths`` counts sections."""
    batch, units = network.batch, network.units
    counts = {length: equal_groups(count, levels) for length, count in lengths.items()}
    state = batch * units * _STATES[network.cell]
    lasting = sum(loops[0] * state for loops in counts.values()) + network.weights * (
        len(counts) - 1
    )
    lasting += network.kernels_joined
    # With one level the outputs of all sections stay; deeper loops keep those of one group.
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
            # Of embedded symbols the group is given one number each, and collects the gradients.
            inputs = network.features + (1 if network.symbols else 0)
            within += group * (inputs + network.outputs) + inner * state
        if len(loops) > 1:
            within += group * units
        section = length * batch
        within += section * network.outputs + _section_elements(network, section)
        peaks.append(within + rows * (network.loss_gradient + network.table_gradient))
    return lasting + max(peaks)


def _section_elements(network: _Network, rows: int) -> int:
    """Return the elements that one section needs at most during replay and back-propagation."""
    units, features = network.units, network.features
    if network.is_lstm:
        moments = [
            rows * (2 * features + 2 * units),  # inputs and outputs, and their rows joined
            # The joined rows and their product, which the gates overwrite.
            rows * (features + 5 * units),
            # The gates' gradients, and the kernel's.
            rows * (4 * units + features) + network.kernel,
            rows * 5 * units + network.recurrent_kernel,
        ]
    else:
        moments = [
            rows * (5 * units + features) + network.kernel,
            # The transposed kernel, for the gradients of the states.
            rows * (7 * units + features) + network.recurrent_kernel,
            rows * 5 * units + 2 * network.recurrent_kernel,  # and its gradient
        ]
    if network.symbols:
        # The gradient of the embedded inputs.
        moments.append(rows * ((4 if network.is_lstm else 8) * units + 2 * features))
    return max(moments)


def _kept_elements(
    network: _Network, rows: int, section: int, *, recompute: bool, is_one: bool
) -> int:
    """Return the elements held where all rows are kept: without recomputation, or in one section.

    ``section`` counts the rows of the last section. The dense layer runs backward before the
    recurrent layer does, so that only the gradient of the outputs remains of the loss.
    """
    units, features = network.units, network.features
    if recompute:
        # Inputs and outputs, their concatenation for the product of all gates, and the product; for
        # the GRU also what its loop reads.
        forward = rows * units
        backward = (
            rows * (2 * features + (7 if network.is_lstm else 6) * units) + network.kernels_joined
        )
        if not network.is_lstm:
            backward = max(backward, rows * (features + 9 * units))
    elif network.is_lstm:
        # Gates, cell states and outputs; then the gate gradients of one section.
        forward = rows * (features + 6 * units)
        backward = forward + rows * units + section * (1 if is_one else 5) * units
    else:
        forward = rows * (features + 5 * units)
        backward = forward + rows * units + section * (1 if is_one else 4) * units
    gathered = 0 if recompute or is_one else rows * units  # the sections' outputs side by side
    return max(forward + gathered + 3 * rows * network.outputs, backward)
