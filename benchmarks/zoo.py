"""Models that nobody here wrote: ``python3 benchmarks/zoo.py`` trains one of every family and writes ``docs/zoo.md``.

Each model runs in a process of its own, with random weights; nothing is downloaded. One step is a loss (the mean square of
all outputs) and the gradients of all weights, of the plain Keras model, of ``checkpointed(model, every=round(sqrt(layers)))``
or, where its blocks stand inside one layer, of these blocks by name, and of the leanest plan of ``kr.plan``: with and without
jit in float32, and without jit in float64. Compared are loss and gradients (beside them stands how far those of the plain
model with jit are from its own in float64, unless it draws random numbers), temporaries of the compiled program (without the
gradients that it hands back), the least seconds per step of some that take turns, and those of the first one, which traces
and compiles. KerasHub's models need ``pip install keras-hub``;
without it their rows say so. ``--only NAME`` runs one model and keeps the other rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "zoo.json", ROOT / "docs" / "zoo.md"
MIB = 2**20
STEPS = 6

IMAGES = {  # of keras.applications: sides of the images, batch
    "VGG16": (64, 8),
    "ResNet50": (64, 8),
    "ResNet50V2": (64, 8),
    "InceptionV3": (96, 8),
    "InceptionResNetV2": (96, 4),
    "Xception": (96, 8),
    "DenseNet121": (64, 8),
    "MobileNet": (64, 8),
    "MobileNetV2": (64, 8),
    "MobileNetV3Small": (64, 8),
    "NASNetMobile": (64, 4),
    "EfficientNetB0": (64, 8),
    "EfficientNetV2B0": (64, 8),
    "ConvNeXtTiny": (64, 8),
}
SMALL = {"num_layers": 6, "hidden_dim": 64, "intermediate_dim": 128, "dropout": 0.0}
ROTARY = {"num_query_heads": 4, "num_key_value_heads": 2}


class Part(NamedTuple):
    """A class of KerasHub's and what it is given, which may be parts in turn."""

    name: str
    options: dict[str, Any]

    def made(self) -> Any:
        import keras_hub

        options = {key: value.made() if isinstance(value, Part) else value for key, value in self.options.items()}
        return getattr(keras_hub.models, self.name)(**options)


# Of KerasHub: what the class is given, and the shape of all its inputs or of each.
HUB: dict[str, tuple[dict[str, Any], Any]] = {
    "BertBackbone": ({"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL}, (8, 128)),
    "RobertaBackbone": ({"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL}, (8, 128)),
    "DistilBertBackbone": ({"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL}, (8, 128)),
    "AlbertBackbone": (
        {"vocabulary_size": 500, "num_heads": 4, "embedding_dim": 32, "max_sequence_length": 128, **SMALL},
        (8, 128),
    ),
    "DebertaV3Backbone": (
        {"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 64, "bucket_size": 32, **SMALL},
        (4, 64),
    ),
    "GPT2Backbone": ({"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL}, (8, 128)),
    "GPTNeoXBackbone": ({"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL}, (8, 128)),
    "OPTBackbone": ({"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL}, (8, 128)),
    "LlamaBackbone": ({"vocabulary_size": 500, **ROTARY, **SMALL}, (8, 128)),
    "MistralBackbone": ({"vocabulary_size": 500, **ROTARY, **SMALL}, (8, 128)),
    "GemmaBackbone": ({"vocabulary_size": 500, **ROTARY, "head_dim": 16, **SMALL}, (8, 128)),
    "FNetBackbone": ({"vocabulary_size": 500, "max_sequence_length": 128, **SMALL}, (8, 128)),
    "BartBackbone": ({"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 64, **SMALL}, (8, 64)),
    "ViTBackbone": (
        {"image_shape": (64, 64, 3), "patch_size": 8, "num_layers": 6, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128},
        (8, 64, 64, 3),
    ),
    "SegFormerBackbone": (
        {
            "image_encoder": Part(
                "MiTBackbone",
                {
                    "layerwise_depths": [2, 2, 2, 2],
                    "num_layers": 4,
                    "layerwise_num_heads": [1, 2, 4, 8],
                    "layerwise_sr_ratios": [8, 4, 2, 1],
                    "max_drop_path_rate": 0.0,
                    "layerwise_patch_sizes": [7, 3, 3, 3],
                    "layerwise_strides": [4, 2, 2, 2],
                    "image_shape": (64, 64, 3),
                    "hidden_dims": [16, 32, 48, 64],
                },
            ),
            "projection_filters": 64,
        },
        (8, 64, 64, 3),
    ),
    "WhisperBackbone": (
        {
            "vocabulary_size": 500,
            "num_heads": 4,
            "max_encoder_sequence_length": 200,
            "max_decoder_sequence_length": 64,
            **SMALL,
        },
        {"encoder_features": (4, 200, 80), "decoder_token_ids": (4, 64), "decoder_padding_mask": (4, 64)},
    ),
    "FluxBackbone": (
        {
            "input_channels": 16,
            "hidden_size": 64,
            "mlp_ratio": 2.0,
            "num_heads": 4,
            "depth": 3,
            "depth_single_blocks": 3,
            "axes_dim": [4, 6, 6],
            "theta": 10000,
            "use_bias": True,
            "guidance_embed": True,
            "image_shape": (32, 16),
            "text_shape": (16, 64),
            "image_ids_shape": (32, 3),
            "text_ids_shape": (16, 3),
            "y_shape": (32,),
        },
        {
            "image": (8, 32, 16),
            "image_ids": (8, 32, 3),
            "text": (8, 16, 64),
            "text_ids": (8, 16, 3),
            "y": (8, 32),
            "timesteps": (8,),
            "guidance": (8,),
        },
    ),
}
COLUMNS = (
    "model | layers, every | difference, float32 (plain's rounding) / float64 | temporaries, MiB: plain / every / leanest plan "
    "| s per step, jit: plain, every, ratio | without jit: plain, every, ratio | first step, jit: plain, every, ratio "
    "| predicted over compiled: plain / plan"
)


def build(name: str) -> tuple[Any, list[Any]]:
    """Return the model and a batch of its inputs, flat."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    if name in IMAGES:
        side, batch = IMAGES[name]
        model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=10)
        return model, [rng.normal(size=(batch, side, side, 3)).astype(keras.config.floatx())]
    options, shapes = HUB[name]
    options = {key: value for key, value in options.items() if not (name in WITHOUT_DROPOUT and key == "dropout")}
    model = Part(name, options).made()
    values = []
    for tensor in model.inputs:
        shape = shapes[tensor.name] if isinstance(shapes, dict) else shapes
        if tensor.dtype.startswith("int"):
            of_tokens = "token_ids" in tensor.name
            values.append(rng.integers(1, 500, shape) if of_tokens else np.full(shape, int("mask" in tensor.name)))
        else:
            values.append(rng.normal(size=shape))
    return model, [value.astype(tensor.dtype) for tensor, value in zip(model.inputs, values)]


# Whose blocks stand inside one layer: each of them is recomputed, and ``every`` is of no use.
BLOCKS = {"ViTBackbone": "transformer_block_*"}
WITHOUT_DROPOUT = ("LlamaBackbone", "MistralBackbone", "GemmaBackbone", "ViTBackbone")


class Steps:
    """The training step of a model that leaves everything but the compiled function as it was."""

    def __init__(self, model: Any, inputs: list[Any]) -> None:
        import keras
        import tensorflow as tf

        self._model, self._inputs = model, [tf.constant(value) for value in inputs]
        self._state = [(v.value, v.numpy()) for v in model.variables]
        variables = [v.value for v in model.trainable_variables]

        def step(*given: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                results = model(keras.tree.pack_sequence_as(model.input, given), training=True)
                loss = tf.add_n([tf.reduce_mean(tf.square(y)) for y in keras.tree.flatten(results)])
            return loss, [None if g is None else tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

        self._step = step
        self._functions: dict[bool, Any] = {}

    def __call__(self, *, jit: bool) -> tuple[float, list[Any]]:
        """Run one step; return its seconds, the first time with those to trace and compile, and what it returns."""
        import tensorflow as tf

        if jit not in self._functions:
            self._functions[jit] = tf.function(self._step, jit_compile=jit, autograph=False)
        for variable, value in self._state:
            variable.assign(value)
        start = time.perf_counter()
        loss, gradients = self._functions[jit](*self._inputs)
        found = [loss.numpy(), *(g.numpy() for g in gradients if g is not None)]
        return time.perf_counter() - start, found


def beside(plain: Steps, ours: Steps, *, jit: bool) -> dict[str, Any]:
    """Return the seconds of first steps and of later ones, of both, and how far apart their results are."""
    (first, wanted), (our_first, found) = plain(jit=jit), ours(jit=jit)
    seconds = [(plain(jit=jit)[0], ours(jit=jit)[0]) for _ in range(STEPS)]
    step = [min(each) for each in zip(*seconds)]
    return {"first": [first, our_first], "step": step, "difference": difference(found, wanted)}


def temporaries(record: Any) -> int:
    """Return the largest sum of temporaries over the compiled program."""
    from keras_recompute.liveness.program import held_per_step

    return max(held_per_step(record.buffers, ("temporary",), record.program_steps))


def difference(ours: list[Any], plain: list[Any]) -> float:
    """Return the largest difference, relative to the largest element of its tensor, or a thousandth of that of all."""
    import numpy as np

    floor = 1e-3 * max(float(np.abs(p).max(initial=0.0)) for p in plain)
    return max(float(np.abs(a - p).max(initial=0.0) / max(np.abs(p).max(initial=0.0), floor)) for a, p in zip(ours, plain))


def measure(name: str) -> dict[str, Any]:
    """Return the row of one model."""
    import keras
    import tensorflow as tf

    import keras_recompute as kr
    from keras_recompute.models.proof import compiled_pass
    from keras_recompute.planning import BudgetTooSmallError
    from keras_recompute.seams.keras.layers import layers_in

    warnings.simplefilter("ignore")
    model, inputs = build(name)
    weights = model.get_weights()
    layers = len(layers_in(model, include_self=False)) if name in HUB else len(model.layers)
    every = max(1, round(len(model.layers) ** 0.5))
    row: dict[str, Any] = {"layers": layers, "every": every}
    where: dict[str, Any] = {"layers": BLOCKS[name]} if name in BLOCKS else {"every": every}
    ours = kr.checkpointed(model, **where)
    steps = Steps(model, inputs), Steps(ours, inputs)
    row.update(jit=beside(*steps, jit=True), graph=beside(*steps, jit=False))
    in_float32 = steps[0](jit=True)[1]
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in inputs]
    records = [compiled_pass(model, specs), compiled_pass(ours, specs)]
    plain_peak_bytes = records[0].peak_bytes

    def needed_bytes(candidate: Any) -> int:
        records.append(compiled_pass(candidate, specs))
        return records[-1].peak_bytes

    how = {"sample": keras.tree.pack_sequence_as(model.input, inputs), "needed_bytes": needed_bytes}
    try:
        kr.plan(model, memory_budget=1, **how)
    except BudgetTooSmallError as refusal:
        plan = kr.plan(model, memory_budget=refusal.smallest_budget_bytes, **how)[1]
        row["predicted"] = [plan.plain_peak_bytes / plain_peak_bytes, plan.predicted_peak_bytes / plan.compiled_peak_bytes]
    except Exception as error:  # said in the table
        row["plan"] = f"{type(error).__name__}: {error}"
    row["temporaries"] = [temporaries(record) for record in records[:3]]
    keras.config.set_dtype_policy("float64")
    keras.config.set_floatx("float64")
    model = build(name)[0]
    model.set_weights(weights)
    inputs = [value.astype(tensor.dtype) for tensor, value in zip(model.inputs, inputs)]
    # Both before the first step, which draws random numbers: they begin with the same state.
    plain, ours = Steps(model, inputs), Steps(kr.checkpointed(model, **where), inputs)
    wanted = plain(jit=False)[1]
    row["float64"] = difference(ours(jit=False)[1], wanted)
    if not any("seed_generator" in v.path for v in model.variables):
        row["rounding"] = difference(in_float32, wanted)
    return row


def page(rows: dict[str, Any]) -> str:
    """Return the text of ``docs/zoo.md``."""
    lines = [
        "# The zoo",
        "",
        "Models that nobody here wrote, with random weights, small images and short sequences, on two x86-64 cores that did",
        "other work as well, so that seconds are good to a third or so. Made by `python3 benchmarks/zoo.py`, whose first lines",
        "say what is measured. Ratios are of the model with checkpoints to the plain Keras model in the same process.",
        "",
        f"| {COLUMNS} |",
        "|" + "---|" * (COLUMNS.count("|") + 1),
    ]
    for name, row in rows.items():
        lines.append(f"| {name} | {row['error']} |" + " |" * COLUMNS.count("|") if "error" in row else _line(name, row))
    return "\n".join(lines) + "\n"


def _line(name: str, row: dict[str, Any]) -> str:
    def pair(values: list[float]) -> str:
        return f"{values[0]:.2f}, {values[1]:.2f}, **{values[1] / values[0]:.2f}**"

    largest = max(row["jit"]["difference"], row["graph"]["difference"])
    rounding = f" ({row['rounding']:.0e})" if "rounding" in row else ""
    temporaries = " / ".join(f"{value / MIB:.1f}" for value in row["temporaries"])
    predicted = " / ".join(f"{value:.2f}" for value in row["predicted"]) if "predicted" in row else row.get("plan", "")[:80]
    cells: list[Callable[[], str] | str] = [
        name,
        f"{row['layers']}, {BLOCKS.get(name, row['every'])}",
        f"{largest:.0e}{rounding} / {row['float64']:.0e}",
        temporaries,
        pair(row["jit"]["step"]),
        pair(row["graph"]["step"]),
        pair(row["jit"]["first"]),
        predicted,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main(argv: list[str] | None = None) -> int:
    """Measure models and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a model to run; the other rows stay")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(measure(options.one)))
        return 0
    rows = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else {}
    for name in options.only or [*IMAGES, *HUB]:
        done = subprocess.run([sys.executable, __file__, "--one", name], check=False, capture_output=True, text=True)
        said = (done.stderr.strip().splitlines() or [""])[-1]
        rows[name] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": said[:300]}
        print(_line(name, rows[name]) if "error" not in rows[name] else f"{name}: {said}", flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
