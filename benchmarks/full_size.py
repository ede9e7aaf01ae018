"""Published models of full size, compiled for devices that are not here.

    python3 benchmarks/full_size.py                          all that is missing; writes the page
    python3 benchmarks/full_size.py --only "GPT-2 XL" --device h100    one of them, again

Each is built without values of its weights, on Keras's JAX backend, with AdamW in mixed_bfloat16.
The whole training step is compiled: plain, under ``keras.RematScope(mode="full")``, and with a
checkpoint behind every block. Each question runs in a process of its own, whose resident memory is
noted, and answers are kept in ``results/full_size.json``. Needs KerasHub, JAX, and the compilers of
the devices, here or in the environment of KERAS_RECOMPUTE_DEVICES_PYTHON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from readme_table import replace_table  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "full_size.json", ROOT / "docs" / "full-size.md"
DEVICES = ("h100", "a100-80", "v5p")
HOWS = ("plain", "RematScope", "every block")
GIB = 2**30


class Published(NamedTuple):
    """A class of KerasHub's with the sizes of a published model, and the batch of a question."""

    backbone: str
    config: dict[str, Any]
    batch: int
    length: int | None
    blocks: str  # names of the equal layers, as a pattern


MODELS = {
    "BERT-large": Published(
        "BertBackbone",
        {
            "vocabulary_size": 30522,
            "num_layers": 24,
            "num_heads": 16,
            "hidden_dim": 1024,
            "intermediate_dim": 4096,
        },
        64,
        512,
        "transformer_layer_*",
    ),
    "GPT-2 XL": Published(
        "GPT2Backbone",
        {
            "vocabulary_size": 50257,
            "num_layers": 48,
            "num_heads": 25,
            "hidden_dim": 1600,
            "intermediate_dim": 6400,
        },
        8,
        1024,
        "transformer_layer_*",
    ),
    "Gemma 2B": Published(
        "GemmaBackbone",
        {
            "vocabulary_size": 256000,
            "num_layers": 18,
            "num_query_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "hidden_dim": 2048,
            "intermediate_dim": 32768,
        },
        2,
        2048,
        "decoder_block_*",
    ),
    "Llama 3 8B": Published(
        "Llama3Backbone",
        {
            "vocabulary_size": 128256,
            "num_layers": 32,
            "num_query_heads": 32,
            "num_key_value_heads": 8,
            "hidden_dim": 4096,
            "intermediate_dim": 14336,
            "rope_max_wavelength": 500000,
        },
        1,
        2048,
        "transformer_layer_*",
    ),
    "ViT-H/14": Published(
        "ViTBackbone",
        {
            "image_shape": [224, 224, 3],
            "patch_size": 14,
            "num_layers": 32,
            "num_heads": 16,
            "hidden_dim": 1280,
            "mlp_dim": 5120,
        },
        64,
        None,
        "transformer_block_*",
    ),
    "Whisper large": Published(
        "WhisperBackbone",
        {
            "vocabulary_size": 51865,
            "num_layers": 32,
            "num_heads": 20,
            "hidden_dim": 1280,
            "intermediate_dim": 5120,
        },
        8,
        448,
        "transformer_*coder_layer_*",
    ),
}


def answered(name: str, device: str, how: str) -> dict[str, Any]:
    """Return the figures of one step, in a process that has compiled nothing else."""
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    import keras
    import keras_hub

    import keras_recompute as kr
    from keras_recompute.errors import DoesNotFitError
    from keras_recompute.liveness import abstract, profile

    keras.config.set_dtype_policy("mixed_bfloat16")
    of = MODELS[name]
    scope = keras.RematScope(mode="full") if how == "RematScope" else nullcontext()
    with abstract(), scope:
        backbone = getattr(keras_hub.models, of.backbone)(**of.config)
        embedding = getattr(backbone, "token_embedding", None)
        outputs = backbone.output
        if isinstance(outputs, dict):
            outputs = outputs.get("sequence_output", outputs.get("decoder_sequence_output"))
        if embedding is not None:
            outputs = embedding(outputs, reverse=True)
        model = keras.Model(backbone.inputs, outputs)
    loss = "mse"
    if embedding is not None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if how == "every block":
        model = kr.checkpointed(model, layers=of.blocks)
    model.compile(keras.optimizers.AdamW(), loss)

    def sized(tensor: Any) -> Any:
        shape = [of.batch, *(of.length if s is None else s for s in tensor.shape[1:])]
        return keras.KerasTensor(shape, tensor.dtype)

    x = keras.tree.map_structure(sized, model.input)
    y = sized(model.output)
    if embedding is not None:
        y = keras.KerasTensor(y.shape[:-1], "int32")
    begin = time.perf_counter()
    found: dict[str, Any] = {"weights": model.count_params()}
    try:
        program = profile(model, x, y, device=device, timeout_seconds=1800)
        found["needed"], found["seconds"] = program.needed_bytes, program.compile_seconds
        found["always"] = program.always_live_bytes
    except DoesNotFitError as error:
        found["needed"] = error.needed_bytes
    found["all_seconds"] = time.perf_counter() - begin
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    there = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {**found, "resident": (here + there) * 1024}


def table(results: dict[str, Any]) -> str:
    """Return the table of all answers that are known."""
    titles = ["model, batch", "device", "weights", "a run needs, GiB: plain", *HOWS[1:]]
    titles += ["compile, s", "memory of the question, GiB"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, of in MODELS.items():
        for device in DEVICES:
            found = [results.get(f"{name}, {device}, {how}") for how in HOWS]
            known = [each for each in found if each and "weights" in each]
            if not known:
                continue
            cells = [_cell(each) for each in found]
            seconds = max((each.get("seconds") or 0) for each in known)
            resident = max(each["resident"] for each in known) / GIB
            size = f"{of.batch}" if of.length is None else f"{of.batch} x {of.length:,}"
            count = f"{known[0]['weights'] / 1e9:.2f}B"
            row = [f"{name}, {size}", device, count, *cells, f"{seconds:.0f}", f"{resident:.1f}"]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _cell(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    return found.get("error") or f"{found['needed'] / GIB:.1f}"


def reason_in(errors: str) -> str:
    """Return the first sentence of the error that ended a process."""
    found = re.findall(r"^[\w.]*Error: (.*)$", errors, re.MULTILINE)
    return (found or errors.strip().splitlines())[-1].split(". ")[0]


def main() -> None:
    """Answer what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--device", choices=DEVICES)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(answered(*options.one)))
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for device in [options.device] if options.device else DEVICES:
        for name in [options.only] if options.only else MODELS:
            for how in HOWS:
                key = f"{name}, {device}, {how}"
                if key in results and not options.only:
                    continue
                command = [sys.executable, __file__, "--one", name, device, how]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    results[key] = {"error": f"fails: {reason_in(done.stderr):.80}"}
                else:
                    results[key] = json.loads(done.stdout.splitlines()[-1])
                print(key, results[key], flush=True)
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                replace_table(PAGE, "full-size", table(results))


if __name__ == "__main__":
    main()
