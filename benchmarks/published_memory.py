"""Draw the memory of the example under the Grouped schedule, as the two images of Graphcore's
published example show it.

    python3 benchmarks/published_memory.py            compile four programs, print the table
    python3 benchmarks/published_memory.py --figures  also write the figures and docs/ipu.md

The programs are compiled and not run. Two are the example's, ``--data constant``. Two are of the
network that the published script trains: its sections hand on their last outputs alone (see "What
differs from the published example" in docs/example.md).
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from readme_table import replace_table  # noqa: E402

from keras_recompute.liveness import compile_program  # noqa: E402
from keras_recompute.report import comparison_figure  # noqa: E402
from keras_recompute.sizes import format_bytes  # noqa: E402
from lstm_example.arguments import parse_arguments  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "published_memory.json"
CHECKPOINTS = 0, 7
MICROBATCHES = 4
CAPACITY_BYTES = 1472 * 624 * 1024  # a Mk2 IPU: tiles x KiB per tile
WHOLE, LAST = "sections return sequences", "sections return their last outputs"
OF_PROGRAM = "peak_bytes", "always_live_bytes", "input_feed_bytes", "program_steps"
STEPS = "program steps (each turn of the pipeline; other loops once)"
FIGURES = {WHOLE: "LSTM_grouped.png", LAST: "LSTM_grouped_last_outputs.png"}


def example(tf, options):
    """Return the example's model."""
    import recompute_lstm

    return recompute_lstm.build_model(tf, options, options.checkpoints)


def with_last_outputs(tf, options):
    """Return the model of the published script's network, in the example's layers."""
    import ipu_tensorflow_addons.keras.layers as ipu_layers

    import recompute_lstm
    from keras_recompute import TimeSlice

    inputs = tf.keras.Input((options.seq_len, options.features), batch_size=options.batch_size)
    with tf.keras.ipu.PipelineStage(0):
        recurrent = ipu_layers.PopnnLSTM(options.units, return_state=True)
        state, outputs = None, []
        for begin, end in recompute_lstm.sections_of(options.seq_len, options.checkpoints):
            output, *state = recurrent(TimeSlice(begin, end)(inputs), initial_state=state)
            outputs.append(output)
            if end < options.seq_len:
                state = ipu_layers.RecomputationCheckpoint()(state)
        x = tf.keras.layers.Concatenate(axis=1)(outputs) if len(outputs) > 1 else outputs[0]
    with tf.keras.ipu.PipelineStage(1):
        x = tf.keras.layers.Dense(1)(x)
    model = tf.keras.Model(inputs, x)
    model.compile("sgd", "mse", steps_per_execution=MICROBATCHES)
    return model


def compiled(build, checkpoints, arguments=()):
    """Compile the training program of ``build`` under Grouped; return its record, the turns of the
    pipeline in a row.

    ``arguments`` are further ones of the example's command line, such as other sizes.
    """
    from keras_recompute.ipu import install
    from keras_recompute.ipu.models.unfolded import unfolded

    install()
    import tensorflow as tf
    from tensorflow.python import ipu

    options = parse_arguments(
        ["--data", "constant", "--checkpoints", str(checkpoints), *arguments], __doc__
    )
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.allow_recompute = True
    config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = build(tf, options)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=MICROBATCHES,
            device_mapping=[0, 0],
            pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Grouped,
            recomputation_mode=ipu.ops.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
        )
        batch, steps = options.batch_size, options.seq_len
        targets = (batch, steps, 1) if build is example else (batch, steps)
        feed = model.feed_signature(
            (tf.TensorSpec((batch, steps, options.features)), tf.TensorSpec(targets))
        )
        program = compile_program(model.execution, feed, input_feed=["feed"], layers_of=model)
        return unfolded(model, program, capacity_bytes=CAPACITY_BYTES)


def table(rows):
    """Return the table of docs/ipu.md, in Markdown; the published figures are read off the images,
    whose MB are MiB.
    """
    lines = [
        "| | 0 checkpoints | 7 checkpoints | ratio of the peaks | always-live |",
        "|---|---|---|---|---|",
    ]
    for name, (plain, seven) in rows.items():
        peaks = [format_bytes(row["peak_bytes"]) for row in (plain, seven)]
        ratio = seven["peak_bytes"] / plain["peak_bytes"]
        always = " and ".join(format_bytes(row["always_live_bytes"]) for row in (plain, seven))
        lines.append(f"| {name} | {' | '.join(peaks)} | {ratio:.2f} | {always} |")
    lines.append("| the published images | 1109 MiB | 634 MiB | 0.57 | 91 MiB and 93 MiB |")
    return "\n".join(lines)


def main():
    """Compile, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--figures",
        action="store_true",
        help="write static/LSTM_grouped*.png and the table of docs/ipu.md",
    )
    arguments = parser.parse_args()
    rows = {}
    for name, build in ((WHOLE, example), (LAST, with_last_outputs)):
        programs = [compiled(build, checkpoints) for checkpoints in CHECKPOINTS]
        rows[name] = [
            {"checkpoints": checkpoints, **{key: getattr(program, key) for key in OF_PROGRAM}}
            for checkpoints, program in zip(CHECKPOINTS, programs)
        ]
        if arguments.figures:
            labels = [f"{checkpoints} checkpoints" for checkpoints in CHECKPOINTS]
            title = f"LSTM, 2048 steps, Grouped schedule: {name}"
            comparison_figure(
                list(zip(labels, programs)),
                ROOT / "static" / FIGURES[name],
                title=title,
                steps=STEPS,
            )
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
    if arguments.figures:
        replace_table(ROOT / "docs" / "ipu.md", "grouped", table(rows))


if __name__ == "__main__":
    main()
