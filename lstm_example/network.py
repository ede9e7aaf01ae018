"""The example's network as plain Keras layers, for any number of steps: saved, and sampled from.

It has the weights of the trained network in the same order, and none of its sections.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any, Iterator

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.keras_backend import TENSORFLOW, current_backend
from keras_recompute.report.output import Output
from keras_recompute.startup_lines import load_tensorflow

from .data import SYMBOLS
from .options import Options
from .saves import MODEL, OPTIMIZER, Save, last_save


def plain_network(options: Options) -> Any:
    """Return the network for bytes ``(batch, steps)`` or numbers ``(batch, steps, features)``."""
    import keras

    cell = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[options.cell]
    last = keras.layers.Dense(SYMBOLS if options.is_text else 1, name="next")
    recurrent = cell(options.units, return_sequences=True, name=options.cell)
    if options.is_text:
        layers = [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(SYMBOLS, options.features, name="bytes"),
        ]
    else:
        layers = [keras.Input((None, options.features))]
    return keras.Sequential([*layers, recurrent, last], name="network")


def store(model: Any, network: Any, folder: Path) -> None:
    """Write ``network`` with the weights and optimiser state of ``model`` into ``folder``."""
    import numpy as np

    # The trained model has the same weights, spread over its sections.
    network.set_weights(model.get_weights())
    network.save(folder / MODEL)
    np.savez(folder / OPTIMIZER, *_state_arrays(model.optimizer))


def restore(model: Any, save: Save) -> None:
    """Restore ``model`` and its optimiser to the state in ``save``."""
    optimizer = model.optimizer
    weights, state = _load_network(save, "--resume").get_weights(), _load_arrays(save)
    # Keras creates the optimiser's variables in the first step; restoring needs them now.
    optimizer.build(model.trainable_variables)
    _require_same_shapes(save, MODEL, weights, model.get_weights())
    _require_same_shapes(save, OPTIMIZER, state, _state_arrays(optimizer))
    model.set_weights(weights)
    state[0] *= getattr(optimizer, "gradient_accumulation_steps", None) or 1
    for variable, array in zip(_state_variables(optimizer), state):
        variable.assign(array)


def _state_variables(optimizer: Any) -> list[Any]:
    """Return the variables that an update leaves to the next one, the same on all backends."""
    of_one_update = re.compile("gradient_accumulator|gradient_norm")
    return [v for v in optimizer.variables if not of_one_update.search(v.path)]


def _state_arrays(optimizer: Any) -> list[Any]:
    import keras

    # The first one counts updates, where Keras's own may count microbatches.
    state = [optimizer.iterations, *_state_variables(optimizer)[1:]]
    return list(map(keras.ops.convert_to_numpy, state))


def _load_arrays(save: Save) -> list[Any]:
    """Return the arrays of the optimiser's state. Raises InvalidArgumentError if damaged."""
    import numpy as np

    try:
        # A save may come from elsewhere, and unpickling runs code.
        with np.load(save.path / OPTIMIZER, allow_pickle=False) as arrays:
            return [arrays[f"arr_{number}"] for number in range(len(arrays.files))]
    except Exception as error:  # of zipfile, zlib or NumPy, for any damage
        raise InvalidArgumentError(
            f"--resume {save.path}: {OPTIMIZER} cannot be read ({_first_line(error)})"
        ) from error


def _require_same_shapes(save: Save, file: str, found: list[Any], wanted: list[Any]) -> None:
    """Raise InvalidArgumentError unless ``found`` has the shapes and types of ``wanted``."""
    if len(found) != len(wanted):
        raise InvalidArgumentError(
            f"--resume {save.path}: {file} holds {len(found)} arrays, and this run has "
            f"{len(wanted)}; start a new run"
        )
    for number, (array, other) in enumerate(zip(found, wanted)):
        # Backends count in whole numbers of different sizes.
        is_count = array.dtype.kind == other.dtype.kind == "i"
        if array.shape != other.shape or not (is_count or array.dtype == other.dtype):
            raise InvalidArgumentError(
                f"--resume {save.path}: array {number} of {file} is "
                f"{array.dtype}{list(array.shape)}, and this run has "
                f"{other.dtype}{list(other.shape)}; start a new run"
            )


def generate(options: Options, output: Output) -> None:
    """Print the text and its continuation byte by byte, until ``output`` fails.

    Raises InvalidArgumentError if there is no network to load.
    """
    assert options.load is not None  # the arguments were checked
    assert options.generate is not None
    try:
        prompt = options.generate.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("--generate: the text is not valid UTF-8") from None
    save = last_save(options.load, "--load")
    if save is None:
        raise InvalidArgumentError(
            f"--load {options.load}: there is no save in it; give the folder of --save"
        )
    data = save.state["settings"].get("data")
    if data != "text":
        raise InvalidArgumentError(
            f"--load {save.path}: it was trained on {data} data, not on text"
        )
    if current_backend() == TENSORFLOW:
        load_tensorflow()

    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a letter may be several bytes
    output.write(options.generate)
    for byte in sample_bytes(
        save, prompt, length=options.length, temperature=options.temperature, seed=options.seed
    ):
        output.write(decoder.decode(bytes([byte])))
        output.flush()
        if output.error:
            return
    output.write(f"{decoder.decode(b'', final=True)}\n")


def sample_bytes(
    save: Save, prompt: bytes, *, length: int, temperature: float, seed: int
) -> Iterator[int]:
    """Yield ``length`` bytes by which the network of ``save`` continues ``prompt``.

    Each byte is drawn with the probability that the network gives it, with logits divided by
    ``temperature``. At temperature 0 the most likely byte is taken.
    """
    import keras
    import numpy as np

    layers = _load_network(save, "--load").layers
    # A save of constant numbers has no embedding.
    if len(layers) != 3 or not hasattr(layers[1], "cell"):
        raise InvalidArgumentError(
            f"--load {save.path}: {MODEL} is not a network for text; train one with --data text "
            "and --save"
        )
    embedding, recurrent, last = layers

    random, states = np.random.RandomState(seed), recurrent.get_initial_state(batch_size=1)
    # The prompt is run through too, to bring the state up to it.
    symbols = list(prompt)
    for number in range(len(prompt) + length - 1):
        inputs = embedding(keras.ops.convert_to_tensor([symbols[number]]))
        output, states = recurrent.cell(inputs, list(map(keras.ops.stop_gradient, states)))
        if number >= len(prompt) - 1:
            logits = keras.ops.convert_to_numpy(last(output)[0]).astype(np.float64)
            symbols.append(_draw_byte(logits, temperature, random))
            yield symbols[-1]


def _load_network(save: Save, said_by: str) -> Any:
    """Return the network of ``save``. Raises InvalidArgumentError if this Keras cannot open it."""
    import keras

    try:
        return keras.models.load_model(save.path / MODEL)
    except Exception as error:  # of any kind, and many lines long
        raise InvalidArgumentError(
            f"{said_by} {save.path}: Keras {keras.__version__} cannot open {MODEL}, which Keras "
            f"{save.state['versions'].get('keras')} wrote ({_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def _draw_byte(logits: Any, temperature: float, random: Any) -> int:
    import numpy as np

    if not temperature:
        return int(np.argmax(logits))
    # Subtracting the largest logit keeps the exponential finite.
    weights = np.exp((logits - logits.max()) / temperature)
    return int(random.choice(len(weights), p=weights / weights.sum()))
