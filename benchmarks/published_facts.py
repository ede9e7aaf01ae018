"""What others report of large models on a device, beside what its compiler says here.

    python3 benchmarks/published_facts.py          what is missing; writes the page
    python3 benchmarks/published_facts.py --page   the page alone

Steps are built and compiled as in ``full_size.py``, which says what that needs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from full_size import CONFIGS, GIB, PAGE, SECONDS, ask, step_needs  # noqa: E402
from readme_table import replace_table  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "published_facts.json"


class Step(NamedTuple):
    """A training step with AdamW, on a device."""

    backbone: str
    config: str
    batch: int
    length: int
    device: str
    dtype: str = "mixed_bfloat16"
    lora: int | None = None


class Fact(NamedTuple):
    """What a source says of a step; ``blocks`` is a pattern of the names of its equal layers."""

    source: str
    says: str
    step: Step
    blocks: str


_GPT2 = Step("GPT2Backbone", "gpt2_xl", 32, 1024, "b200")
_LLAMA = "Llama3Backbone", "llama3_8b"
_LORA = "a100-80", "bfloat16", 8
_GEMMA = Step("GemmaBackbone", "gemma2_2b", 1, 8192, "v6e", "bfloat16", 8)
_ZERO = "[ZeRO](https://arxiv.org/abs/1910.02054), section 3"
_HUB = "[keras-hub 2158](https://github.com/keras-team/keras-hub/issues/2158)"
_TUNE = "[torchtune 979](https://github.com/pytorch/torchtune/issues/979)"
_README = "[torchtune's README](https://github.com/pytorch/torchtune)"
FACTS = {
    "gemma": Fact(
        _HUB,
        "Gemma 2 2B with LoRA, 8,192 tokens on each v6e: out of memory, about 41 GB needed",
        _GEMMA,
        "decoder_block_*",
    ),
    "llama-8k": Fact(
        _TUNE,
        "Llama 3 8B with LoRA, 8,192 tokens: fits on one A100 with 80 GB",
        Step(*_LLAMA, 1, 8192, *_LORA),
        "transformer_layer_*",
    ),
    "llama-2k": Fact(
        _README,
        "Llama 3.1 8B with LoRA, 2 x 2,048 tokens: 30.3 GiB on an A6000, 16.2 on a 4090",
        Step(*_LLAMA, 2, 2048, *_LORA),
        "transformer_layer_*",
    ),
    "gpt2": Fact(
        _ZERO,
        "GPT-2 with 1.5B weights, 32 x 1,024 tokens: activations of 60 GB, with checkpoints 8 GB",
        _GPT2,
        "transformer_layer_*",
    ),
}
WAYS = ("plain", "every block")


def answered(name: str, way: str) -> dict[str, Any]:
    """Return what the step of a fact needs."""
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    from keras_recompute.fits.answer import Size
    from keras_recompute.fits.model_sources import build
    from keras_recompute.liveness.device_compilers.limits import CompileLimits, compile_limits

    fact, step = FACTS[name], FACTS[name].step
    source = f"{step.backbone}:{CONFIGS / step.config}.json"
    model = build(source, dtype=step.dtype, lora=step.lora).model
    blocks = fact.blocks if way == WAYS[1] else None
    with compile_limits(CompileLimits(SECONDS, None)):
        return step_needs(model, Size(step.batch, step.length), step.device, blocks)


def table(results: dict[str, Any]) -> str:
    """Return the table of the facts that were asked."""
    lines = ["| source | it says | compiled here for | plain, GiB | a checkpoint per block, GiB |"]
    lines.append("|---|---|---|---|---|")
    for name, fact in FACTS.items():
        cells = [_said(results.get(f"{name}, {way}")) for way in WAYS]
        if any(cells):
            here = f"{fact.step.device}, {fact.step.dtype}"
            lines.append(f"| {fact.source} | {fact.says} | {here} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _said(found: dict[str, Any] | None) -> str:
    if not found or "error" in found:
        return found["error"] if found else ""
    needed = f"{found['needed'] / GIB:.1f}"
    if "held" not in found:
        return f"{needed}, does not fit"
    return f"{needed}, activations {found['held']['activations'] / GIB:.1f}"


def main() -> None:
    """Compile what is missing, and write the table."""
    asked = [(name, way) for name in FACTS for way in WAYS]

    def write(results: dict[str, Any]) -> None:
        replace_table(PAGE, "published-facts", table(results))

    ask(__file__, asked, answered, RESULTS, write)


if __name__ == "__main__":
    main()
