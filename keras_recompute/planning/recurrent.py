"""The sizes of a recurrent network split into equal sections, and the peak that follows from them.

What the compiled training step of this project's LSTM and GRU keeps, in elements per timestep and sequence, for ``units``
H and ``features`` F. In the backward pass of a section, at its largest moment: the products of all gates and the gates
made of them, or the products and the rows they are made from. Kept over all steps: the recurrent outputs, from which the
gates follow by one product. Without recomputation: gates, cell states, outputs, inputs of every step, and the outputs and
their gradient once more, joined.

Source of the recurrence's plan: Appleyard, Kocisky and Blunsom 2016; of the sections: Chen et al. 2016.
"""

from __future__ import annotations

from ..errors import InvalidArgumentError
from .chain import Chain
from .simulate import simulate
from .uniform import section_lengths, uniform_plan

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
) -> int:
    """Return the predicted peak in bytes of a training step, weights included, the data fed in not.

    The network: an embedding of ``embedded_symbols`` (none if 0) to ``features``, the recurrent layer, a dense layer to
    ``outputs`` values per timestep, in float32. Raises InvalidArgumentError for an unknown ``cell``, or more checkpoints
    than steps - 1.
    """
    if cell not in _GATES:
        raise InvalidArgumentError(f"cell is {cell!r}: the sizes of {' and '.join(_GATES)} are known")
    gates = _GATES[cell] * units
    recurrent_weights = (features + units) * gates + 2 * gates
    weights = embedded_symbols * features + recurrent_weights + (units + 1) * outputs
    if recompute and checkpoints:
        per_step = 8 * units
        # gradients of one section, of the sections so far, of the microbatches so far, and the joined weights
        kept = steps * batch * (units + 2 * outputs) + 3 * recurrent_weights
    else:
        per_step = gates + 4 * units + features
        kept = 2 * steps * batch * outputs + 2 * recurrent_weights
        checkpoints = 0
    chain = Chain.homogeneous(
        steps,
        state_bytes=_BYTES * batch * units * _STATES[cell],
        activation_bytes=_BYTES * batch * per_step,
        fixed_bytes=_BYTES * (weights + kept),
    )
    return simulate(chain, uniform_plan(steps, checkpoints=checkpoints)).peak_bytes
