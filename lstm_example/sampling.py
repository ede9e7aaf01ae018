"""``--generate``: continuation of a text by a saved network."""

from __future__ import annotations

import codecs

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.keras_backend import TENSORFLOW, current_backend
from keras_recompute.report.output import Output
from keras_recompute.startup_lines import load_tensorflow

from .arguments import Options
from .saves import last_save


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
    from .network import sample_bytes

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
