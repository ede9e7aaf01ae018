"""The sizes of a recurrent network split into equal sections, and the peak that follows from them.

What the compiled training step of this project's LSTM and GRU holds, in elements per timestep and sequence, for ``units``
H, ``features`` F and ``outputs`` V of the dense layer. Read off compiled programs, not derived from them:

* a section while it is replayed and back-propagated: for the LSTM the products of all gates and the gates made of them,
  8 H, or the rows they are made from and these joined, 2 F + 2 H; for the GRU 11 H + F;
* over all steps: the recurrent outputs H, from which the gates follow by one product, and 2 V, the logits and their
  gradient, or 3 V at the one moment when the loss is differentiated;
* without recomputation: gates, cell states, outputs, inputs of every step, and the outputs and their gradient joined.

Source of the recurrence's plan: Appleyard, Kocisky and Blunsom 2016; of the sections: Chen et al. 2016.
"""

from __future__ import annotations

from ..errors import InvalidArgumentError
from .chain import Chain
from .simulate import simulate
from .uniform import uniform_plan

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
) -> int:
    """Return the predicted peak in bytes of a training step, weights included, the data fed in not.

    The network: an embedding of ``embedded_symbols`` (none if 0) to ``features``, the recurrent layer, a dense layer to
    ``outputs`` values per timestep, in float32, trained by an optimiser that keeps ``optimizer_slots`` values per weight.
    Raises InvalidArgumentError for an unknown ``cell``, or more checkpoints than steps - 1.
    """
    if cell not in _GATES:
        raise InvalidArgumentError(f"cell is {cell!r}: the sizes of {' and '.join(_GATES)} are known")
    is_lstm = cell == "lstm"
    gates = _GATES[cell] * units
    recurrent_weights = (features + units) * gates + 2 * gates
    weights = embedded_symbols * features + recurrent_weights + (units + 1) * outputs
    all_steps = steps * batch
    if recompute and checkpoints:
        per_step = max(8 * units, 2 * features + 2 * units) if is_lstm else 11 * units + features
        # The last three: gradients of one section, of the sections so far, of the microbatches so far.
        kept = all_steps * units + 3 * recurrent_weights
    else:
        # One section projects all its inputs at once; several keep their outputs and these joined, with their gradient.
        whole = 2 * gates + 2 * units if is_lstm else 13 * units
        per_step = features + (4 * units + (gates if is_lstm else 5 * units) if checkpoints else whole)
        kept = 2 * recurrent_weights
        checkpoints = 0
    chain = Chain.homogeneous(
        steps,
        state_bytes=_BYTES * batch * units * _STATES[cell],
        activation_bytes=_BYTES * batch * per_step,
    )
    sections = simulate(chain, uniform_plan(steps, checkpoints=checkpoints)).peak_bytes + _BYTES * 2 * all_steps * outputs
    loss = _BYTES * 3 * all_steps * outputs
    return _BYTES * ((1 + optimizer_slots) * weights + kept) + max(sections, loss)
