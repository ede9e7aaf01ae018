"""Published models of full size, compiled for devices that are not here.

    python3 benchmarks/full_size.py --device h100            all that is missing; writes the page
    python3 benchmarks/full_size.py --only "GPT-2 XL" --device h100    one of them, again
    python3 benchmarks/full_size.py --page                   the page alone

Each is built without values of its weights, on Keras's JAX backend, with AdamW in mixed_bfloat16.
The whole training step is compiled: plain, under ``keras.RematScope(mode="full")``, with a
checkpoint behind every block, and with the cheapest plan that fits. Then the largest batch is
looked for. Each question runs in a process of its own, whose resident memory is noted, and answers
are kept in ``results/full_size.json``. Needs KerasHub, JAX, and the compilers of the devices, here
or in the environment of KERAS_RECOMPUTE_DEVICES_PYTHON.
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
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from readme_table import replace_table  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "full_size.json", ROOT / "docs" / "full-size.md"
CONFIGS = ROOT / "benchmarks" / "published_models"
DEVICES = ("h100", "a100-80", "v5p")
STEPS = ("plain", "RematScope", "every block")
PLAN, LARGEST = "plan", "largest"
GIB = 2**30
SECONDS = 1800  # of one compilation


class Published(NamedTuple):
    """A class of KerasHub's with the sizes of a published model, and what is asked of it."""

    backbone: str
    config: str
    batch: int
    length: int | None
    blocks: str  # names of the equal layers, as a pattern
    lora: int | None = None
    lengths: tuple[tuple[str, int], ...] = ()
    long: int | None = None  # another length, of which the largest batch is looked for

    @property
    def source(self) -> str:
        """What ``fits`` calls the model."""
        return f"{self.backbone}:{CONFIGS / self.config}.json"

    @property
    def size(self) -> str:
        """The batch and the length of its sequences, as tables show them."""
        return f"{self.batch}" if self.length is None else f"{self.batch} x {self.length:,}"


_BLOCKS, _DECODERS = "transformer_layer_*", "decoder_block_*"
_LLAMA = "Llama3Backbone", "llama3_8b", 1, 2048, _BLOCKS
_FRAMES = (("encoder_features", 3000),)  # 30 seconds of sound
MODELS = {
    "BERT-large": Published("BertBackbone", "bert_large", 64, 512, _BLOCKS),
    "GPT-2 XL": Published("GPT2Backbone", "gpt2_xl", 8, 1024, _BLOCKS),
    "Gemma 2B": Published("GemmaBackbone", "gemma_2b", 2, 2048, _DECODERS, long=8192),
    "Llama 3 8B": Published(*_LLAMA, long=8192),
    "Llama 3 8B, LoRA 8": Published(*_LLAMA, lora=8, long=8192),
    "ViT-H/14": Published("ViTBackbone", "vit_h", 64, None, "transformer_block_*"),
    "Whisper large": Published(
        "WhisperBackbone", "whisper_large", 8, 448, "transformer_*coder_layer_*", lengths=_FRAMES
    ),
    "FLUX.1, LoRA 8": Published("FluxBackbone", "flux_dev", 1, None, "*_stream_block*", lora=8),
}


def questions_of(name: str) -> list[str]:
    """Return what is asked of a model on each device."""
    of = MODELS[name]
    lengths = [of.length, of.long] if of.long else [of.length]
    return [*STEPS, PLAN, *(f"{LARGEST} {length}" for length in lengths)]


def answered(name: str, device: str, how: str) -> dict[str, Any]:
    """Return the figures of one question, in a process that has compiled nothing else."""
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    import keras

    from keras_recompute.fits.answer import Size
    from keras_recompute.fits.model_sources import build
    from keras_recompute.liveness.device_compilers.limits import CompileLimits, compile_limits

    of = MODELS[name]
    scope = keras.RematScope(mode="full") if how == "RematScope" else nullcontext()
    with scope:
        model = build(of.source, dtype="mixed_bfloat16", lora=of.lora).model
    size = Size(of.batch, of.length, of.lengths)
    begin = time.perf_counter()
    with compile_limits(CompileLimits(SECONDS, None)):
        if how in STEPS:
            found = step_needs(model, size, device, of.blocks if how == STEPS[-1] else None)
        else:
            found = searched(model, size, device, how)
    return {**found, **costs_since(begin), "weights": model.count_params()}


def costs_since(begin: float) -> dict[str, Any]:
    """Return the seconds since ``begin``, and the most memory of this process and a compiler."""
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    there = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"all_seconds": time.perf_counter() - begin, "resident": (here + there) * 1024}


def step_needs(model: Any, size: Any, device: str, blocks: str | None) -> dict[str, Any]:
    """Return what a run of the step needs, and what makes that; with a checkpoint per block."""
    import keras

    import keras_recompute as kr
    from keras_recompute.errors import DoesNotFitError
    from keras_recompute.fits.answer import sample_of
    from keras_recompute.fits.held_bytes import held_bytes
    from keras_recompute.liveness import profile

    optimizer = model.optimizer.get_config()
    if model.loss is None:
        model.compile("adamw", "mse")
    sample = sample_of(model, size)
    if blocks is not None:
        loss = model.loss
        model = kr.checkpointed(model, layers=blocks)
        model.compile(keras.optimizers.AdamW.from_config(optimizer), loss)
    try:
        program = profile(model, *sample, device=device)
    except DoesNotFitError as error:
        return {"needed": error.needed_bytes}
    return {
        "needed": program.needed_bytes,
        "seconds": program.compile_seconds,
        "held": held_bytes(program),
    }


def searched(model: Any, size: Any, device: str, how: str) -> dict[str, Any]:
    """Return the cheapest plan that fits, or the largest batch of a length."""
    from dataclasses import replace

    from keras_recompute.fits.answer import Question
    from keras_recompute.liveness.device_compilers import find_device

    described = find_device(device)
    memory_bytes = described.memory_bytes
    if how == PLAN:
        answer = Question(model, size, device=described, budget_bytes=memory_bytes).answer()
        return {"fits": answer.fits, "line": answer.plan.line, "needed": answer.planned_bytes}
    length = how.partition(" ")[2]
    asked = replace(size, length=int(length) if length.isdigit() else None)
    question = Question(model, asked, device=described, budget_bytes=memory_bytes)
    return {"batch": question.largest_batch().fits}


def table(results: dict[str, Any]) -> str:
    """Return the table of all answers that are known."""
    titles = ["model, batch", "device", "weights", "plain", *STEPS[1:], "cheapest plan that fits"]
    titles += ["largest batch", "compile, s", "memory of the question, GiB"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, of in MODELS.items():
        for device in DEVICES:
            of_this = {how: results.get(f"{name}, {device}, {how}") for how in questions_of(name)}
            known = [each for each in of_this.values() if each and "weights" in each]
            if not known:
                continue
            cells = [_needed(of_this[how]) for how in STEPS]
            seconds = max((each.get("seconds") or 0) for each in known)
            resident = max(each["resident"] for each in known) / GIB
            count = f"{known[0]['weights'] / 1e9:.2f}B"
            row = [f"{name}, {of.size}", device, count, *cells, _plan(of_this[PLAN])]
            row += [_largest(of_this), f"{seconds:.0f}", f"{resident:.1f}"]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _needed(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    return found.get("error") or f"{found['needed'] / GIB:.1f}"


def _plan(found: dict[str, Any] | None) -> str:
    if not found or "error" in found:
        return found["error"] if found else ""
    needed = f"{found['needed'] / GIB:.1f}"
    if not found["fits"]:
        return f"none; the leanest needs {needed}"
    line = re.sub(r"kr\.checkpointed\(model, (.*)\)", r"\1", found["line"] or "no checkpoints")
    count = line.count("',") + 1
    return f"{count} checkpoints: {needed}" if line.startswith("at=") else f"{line}: {needed}"


def _largest(of_this: dict[str, dict[str, Any] | None]) -> str:
    """Return the largest batch of each length that was asked."""
    said = []
    for how, found in of_this.items():
        if how.startswith(LARGEST) and found:
            length = how.partition(" ")[2]
            batch = found.get("error") or (f"{found['batch']:,}" if found["batch"] else "none")
            said.append(f"{batch} x {int(length):,}" if length.isdigit() else f"{batch}")
    return "; ".join(said)


def cell(found: Iterable[dict[str, Any]], key: str, unit: float, digits: int = 1) -> str:
    """Return the figures under ``key`` of several ways; a dash for one that lacks it."""
    return ", ".join(f"{each[key] / unit:.{digits}f}" if key in each else "-" for each in found)


def held_table(results: dict[str, Any]) -> str:
    """Return what makes the bytes of the steps with a checkpoint per block."""
    from keras_recompute.fits.held_bytes import COLLECTIVES, HELD

    kinds = [kind for kind in HELD if kind != COLLECTIVES]  # of one device
    titles = ["model, device", *kinds]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name in MODELS:
        for device in DEVICES:
            found = results.get(f"{name}, {device}, {STEPS[-1]}") or {}
            if held := found.get("held"):
                cells = [f"{held[kind] / GIB:.1f}" for kind in kinds]
                lines.append(f"| {name}, {device} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(results: dict[str, Any]) -> None:
    """Write the tables into the page."""
    replace_table(PAGE, "full-size", table(results))
    replace_table(PAGE, "full-size-held", held_table(results))


def reason_in(errors: str) -> str:
    """Return the first sentence of the error that ended a process."""
    found = re.findall(r"^[\w.]*Error: (.*)$", errors, re.MULTILINE)
    reason = (found or errors.strip().splitlines())[-1].split(". ")[0]
    # Without the file that was asked for.
    return re.sub(r"^\w+:\S+\.json: ", "", reason)


def answer_missing(
    script: str,
    questions: Iterable[tuple[str, ...]],
    path: Path,
    *,
    again: bool = False,
    show: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the answers at ``path``, with those added that ``script --one QUESTION`` prints.

    ``show`` is given all of them after each. With ``again`` questions with an answer are asked too.
    """
    results = json.loads(path.read_text()) if path.exists() else {}
    for question in questions:
        key = ", ".join(question)
        if key in results and not again:
            continue
        command = [sys.executable, script, "--one", *question]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            results[key] = {"error": f"fails: {reason_in(done.stderr):.80}"}
        else:
            results[key] = json.loads(done.stdout.splitlines()[-1])
        print(key, results[key], flush=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
        show(results)
    return results


def ask(
    script: str,
    questions: Sequence[tuple[str, ...]],
    answer: Callable[..., dict[str, Any]],
    path: Path,
    write: Callable[[dict[str, Any]], None],
) -> None:
    """Run the command of a benchmark that keeps answers at ``path``.

    It asks what is missing and has the page written, with ``--page`` alone. ``--one QUESTION``
    prints the ``answer`` to one question.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument("--one", nargs=len(questions[0]), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(answer(*options.one)))
        return
    write(answer_missing(script, () if options.page else questions, path))


def main() -> None:
    """Answer what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=MODELS)
    parser.add_argument("--device", choices=DEVICES)
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(answered(*options.one)))
        return
    asked = [
        (name, device, how)
        for device in ([options.device] if options.device else DEVICES)
        for name in options.only or MODELS
        for how in questions_of(name)
    ]
    # The quick questions first, for all models.
    asked.sort(key=lambda question: questions_of(question[0]).index(question[2]))
    questions = () if options.page else asked
    again = options.only is not None
    write_page(answer_missing(__file__, questions, RESULTS, again=again, show=write_page))


if __name__ == "__main__":
    main()
