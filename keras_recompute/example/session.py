"""One run of the example: compile, train, and say what it took. Runs on Python 3.8 beside the Poplar SDK."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import time
from typing import Any, Callable, Iterator

from ..errors import RecomputeError
from ..planning import predicted_peak_bytes, section_lengths
from ..sizes import format_bytes
from .data import SYMBOLS, make_dataset

CAPACITY_BYTES = 1472 * 624 * 1024  # the memory of one Mk2 IPU: tiles x KiB per tile


class NonFiniteLossError(RecomputeError):
    """The loss is no number any more; to go on would train nothing."""


class Session:
    """One run of the script: what it found out so far, and how it says so."""

    def __init__(self, arguments: argparse.Namespace, build_model: Callable[[Any, argparse.Namespace], Any]) -> None:
        self.arguments, self.build_model = arguments, build_model
        lengths = section_lengths(arguments.seq_len, arguments.checkpoints + 1)
        self.results: dict[str, Any] = {
            "target": arguments.target,
            "cell": arguments.cell,
            "seq_len": arguments.seq_len,
            "checkpoints": arguments.checkpoints,
            "levels": arguments.levels,
            "sections": sorted(lengths, reverse=True),
            "recompute": not arguments.no_recompute,
            "losses": [],
            "gradient_norms": [],
            "capacity_bytes": CAPACITY_BYTES,
            "versions": {"python": platform.python_version()},
            "completed": False,
        }
        self.seconds: list[float] = []
        self.model: Any = None
        self.program: Any = None

    def say(self, text: str) -> None:
        """Print progress, unless asked to be quiet."""
        if not self.arguments.quiet:
            print(text, flush=True)

    def train(self, text: bytes | None) -> None:
        """Build, compile, fit and report."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if self.arguments.target == "ipu-model":
            os.environ["TF_POPLAR_FLAGS"] = (os.environ.get("TF_POPLAR_FLAGS", "") + " --use_ipu_model").strip()
        self.say("loading TensorFlow")
        import tensorflow as tf

        if self.arguments.target == "xla":
            from ..ipu import install

            install()
        from tensorflow.python import ipu

        self.results["versions"].update(tensorflow=tf.__version__, keras=tf.keras.__version__)
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = 1
        config.allow_recompute = not self.arguments.no_recompute
        config.configure_ipu_system()
        tf.random.set_seed(self.arguments.seed)
        if hasattr(tf.keras.utils, "set_random_seed"):  # Keras 2.6 has no seed of its own
            tf.keras.utils.set_random_seed(self.arguments.seed)
        with ipu.ipu_strategy.IPUStrategy().scope():
            self.model = self.build_model(tf, self.arguments)
            if self.arguments.levels > 1:
                self.model.recomputation_levels = self.arguments.levels
            self.results["parameters"] = self.model.count_params()
            dataset = make_dataset(tf, self.arguments, text)
            if self.arguments.target == "xla":
                self.compile(dataset)
            self.fit(tf, dataset)
        self.results["completed"] = True

    def compile(self, dataset: Any) -> None:
        """Compile the training program once before it runs, to learn its memory from it."""
        from ..liveness import profile

        self.say("compiling the training program")
        feed = self.model.feed_signature(dataset.element_spec)
        self.program = program = profile(self.model.execution, feed, input_feed=["feed"], capacity_bytes=CAPACITY_BYTES)
        for key in (
            "always_live_bytes",
            "not_always_live_peak_bytes",
            "peak_bytes",
            "input_feed_bytes",
            "allocated_temporary_bytes",
            "program_steps",
            "program_instructions",
            "compile_seconds",
        ):
            self.results[key] = getattr(program, key)
        self.say(f"compiled in {program.compile_seconds:.1f} s: the peak will be {format_bytes(program.peak_bytes)}")

    def fit(self, tf: Any, dataset: Any) -> None:
        """Train, with a line of progress per update."""
        arguments = self.arguments
        progress = tf.keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda *_, **__: self.begin(), on_train_batch_end=lambda _, logs: self.end(logs)
        )
        self.model.around_execution = self.measured
        self.model.fit(
            dataset.repeat(),
            epochs=arguments.epochs,
            steps_per_epoch=arguments.steps_per_epoch,
            shuffle=False,
            verbose=0,
            callbacks=[progress],
        )

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the process while the program runs for the first time; it keeps that memory for later runs."""
        from ..liveness import process_memory

        if "measured_peak_bytes" in self.results:
            yield
            return
        with process_memory() as memory:
            yield
        self.results["measured_peak_bytes"] = memory.over_idle_bytes

    def begin(self) -> None:
        """Note when an execution begins."""
        self.started = time.perf_counter()

    def end(self, logs: Any) -> None:
        """Take the figures of the execution that just ended, and stop if the loss is no number."""
        arguments, results = self.arguments, self.results
        microbatches = arguments.gradient_accumulation
        self.seconds.append((time.perf_counter() - self.started) / microbatches)
        record = getattr(self.model, "training_record", None)  # the stand-in's; Graphcore's API has running means only
        results["losses"] = list(record.losses) if record else [*results["losses"], float(logs["loss"])]
        results["gradient_norms"] = list(record.gradient_norms) if record else None
        # The first execution compiles.
        results["step_seconds"] = statistics.median(self.seconds[1:] or self.seconds)
        done, loss = len(self.seconds), results["losses"][-1]
        total = arguments.epochs * arguments.steps_per_epoch // microbatches
        self.say(f"update {done}/{total}  loss {loss:.4f}  {self.seconds[-1]:.2f} s per step")
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"the loss became {loss} at update {done} (step {done * microbatches}): lower --learning-rate "
                f"(it is {arguments.learning_rate:g})"
            )

    def report(self) -> None:
        """Print the figures and write the files that were asked for."""
        arguments, results = self.arguments, self.results
        if self.program:
            from ..report import memory_rows, print_liveness, print_memory, write_report

            results["predicted_peak_bytes"] = predicted_peak_bytes(**self.sizes())
            if not arguments.quiet:
                print_liveness(self.program)
                rows = memory_rows(
                    predicted=results["predicted_peak_bytes"],
                    compiled=results["peak_bytes"],
                    measured=results.get("measured_peak_bytes"),
                )
                print_memory(rows)
                print()
            if arguments.report:
                write_report(self.program, arguments.report, title=self.title())
        if results["losses"]:
            print(f"loss: {results['losses'][-1]:.4f} (at first {results['losses'][0]:.4f})")
            print(f"seconds per step: {results['step_seconds']:.3f}")
        if self.program:
            print(
                f"peak: {format_bytes(results['peak_bytes'])} of the {format_bytes(CAPACITY_BYTES)} of a Mk2 IPU, "
                f"always-live: {format_bytes(results['always_live_bytes'])}"
            )
        if arguments.report and self.program:
            print(f"report: {arguments.report / 'liveness.png'}")
        self.write_json()

    def write_json(self) -> None:
        """Write the figures, whole or not at all."""
        path = self.arguments.json
        if path is None:
            return
        from ..report.files import replacing

        with replacing(path) as temporary:
            temporary.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")

    def title(self) -> str:
        """Return what the report is about, for its picture."""
        arguments = self.arguments
        recomputes = "without recomputation" if arguments.no_recompute else f"{arguments.checkpoints} recomputation checkpoints"
        return f"{arguments.cell.upper()}, {arguments.seq_len} steps, {recomputes}"

    def sizes(self) -> dict[str, Any]:
        """Return what the planner's prediction depends on."""
        arguments = self.arguments
        return {
            "cell": arguments.cell,
            "steps": arguments.seq_len,
            "checkpoints": arguments.checkpoints,
            "recompute": not arguments.no_recompute,
            "batch": arguments.batch_size,
            "features": arguments.features,
            "units": arguments.units,
            "outputs": SYMBOLS if arguments.data == "text" else 1,
            "embedded_symbols": SYMBOLS if arguments.data == "text" else 0,
            "optimizer_slots": 2 if arguments.data == "text" else 0,  # Adam's moments
        }
