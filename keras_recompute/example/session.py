"""One run of the example: compile, train, and say what it took. Runs on Python 3.8 beside the Poplar SDK."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import platform
import statistics
import time
from typing import Any, Callable, Iterator

from ..errors import RecomputeError
from ..liveness import Program
from ..report.output import complain
from ..sizes import format_bytes
from .arguments import AUTO
from .choosing import Choice, choose
from .cuts import Cut
from .data import Text, element_spec, make_dataset
from .json_file import write_figures
from .poplar_report import PoplarReports
from .room import check_fits, predicted_bytes

CAPACITY_BYTES = 1472 * 624 * 1024  # the memory of one Mk2 IPU: tiles x KiB per tile


class NonFiniteLossError(RecomputeError):
    """The loss is no number any more; to go on would train nothing."""


class Session:
    """One run of the script: what it found out so far, and how it says so."""

    def __init__(self, arguments: argparse.Namespace, build_model: Callable[[Any, argparse.Namespace], Any]) -> None:
        self.arguments, self.build_model = arguments, build_model
        self.results: dict[str, Any] = {
            "target": arguments.target,
            "cell": arguments.cell,
            "seq_len": arguments.seq_len,
            "losses": [],
            "gradient_norms": [],
            "capacity_bytes": CAPACITY_BYTES,
            "versions": {"python": platform.python_version()},
            "completed": False,
        }
        self.seconds: list[float] = []
        self.choice: Choice | None = None
        self.tf: Any = None
        self.model: Any = None
        self.program: Any = None
        self.poplar: PoplarReports | None = None

    @property
    def cut(self) -> Cut:
        """How the sequence is cut."""
        return Cut(self.arguments.checkpoints, self.arguments.levels, not self.arguments.no_recompute)

    def say(self, text: str) -> None:
        """Print progress, unless asked to be quiet."""
        if not self.arguments.quiet:
            print(text, flush=True)

    def train(self, text: Text | None) -> None:
        """Choose the plan if asked to, compile, and fit."""
        self.load()
        if self.arguments.checkpoints == AUTO:
            self.choice = choose(self)
        else:
            self.build(self.cut)
            if self.arguments.target == "xla":
                self.compile()
        for warning in self.cut.warnings(self.arguments.seq_len):
            complain(f"warning: {warning}")
        if not self.arguments.compile_only:
            self.fit(text)
            if self.poplar:
                self.take(self.poplar.read())
        self.results["completed"] = True

    def load(self) -> None:
        """Load TensorFlow with Graphcore's API, the SDK's or the stand-in."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if self.arguments.target == "ipu-model":
            os.environ["TF_POPLAR_FLAGS"] = (os.environ.get("TF_POPLAR_FLAGS", "") + " --use_ipu_model").strip()
        if self.arguments.target != "xla" and self.arguments.report:
            self.poplar = PoplarReports(self.arguments.report / "poplar")
        self.say("loading TensorFlow")
        import tensorflow as tf

        if self.arguments.target == "xla":
            from ..ipu import install

            install()
        self.tf = tf
        self.results["versions"].update(tensorflow=tf.__version__, keras=tf.keras.__version__)

    def build(self, cut: Cut, batch_size: int | None = None) -> None:
        """Build the model for ``cut``, from the same seed whichever other plans were built before."""
        from tensorflow.python import ipu

        tf, arguments = self.tf, argparse.Namespace(**vars(self.arguments))
        arguments.checkpoints, arguments.levels, arguments.no_recompute = cut.checkpoints, cut.levels, not cut.recompute
        arguments.batch_size = batch_size or arguments.batch_size
        self.arguments = arguments
        if arguments.target == "xla":  # another plan may have been built before
            tf.keras.backend.clear_session()
            ipu.config.reset_ipu_configuration()
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = 1
        config.allow_recompute = cut.recompute
        config.configure_ipu_system()
        tf.random.set_seed(arguments.seed)
        if hasattr(tf.keras.utils, "set_random_seed"):  # Keras 2.6 has no seed of its own
            tf.keras.utils.set_random_seed(arguments.seed)
        self.strategy = ipu.ipu_strategy.IPUStrategy()
        with self.strategy.scope():
            self.model = self.build_model(tf, arguments)
            if cut.levels > 1:
                self.model.recomputation_levels = cut.levels
        self.results.update(
            checkpoints=cut.checkpoints,
            levels=cut.levels,
            recompute=cut.recompute,
            sections=list(cut.counts(arguments.seq_len).elements()),
            parameters=self.model.count_params(),
            predicted_peak_bytes=self.predicted_bytes(cut),
        )

    def compile(self) -> None:
        """Compile the training program once before it runs, to learn its memory from it."""
        from ..liveness import profile

        self.say(f"compiling the training program: {self.cut}")
        with self.strategy.scope():
            feed = self.model.feed_signature(element_spec(self.tf, self.arguments))
            program = profile(
                self.model.execution, feed, input_feed=["feed"], capacity_bytes=CAPACITY_BYTES, layers_of=self.model
            )
        self.take(program)
        self.say(f"compiled in {program.compile_seconds:.1f} s: the peak will be {format_bytes(program.peak_bytes)}")

    def take(self, program: Program) -> None:
        """Take the figures of the training program, from the compiler or from Poplar's report."""
        self.program = program
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

    @property
    def needed_bytes(self) -> int:
        """What the compiled program needs: always-live bytes, and what the allocator reserves for all others."""
        return self.program.always_live_bytes + self.program.allocated_temporary_bytes

    def fit(self, text: Text | None) -> None:
        """Train, with a line of progress per update. Raises InvalidArgumentError where this machine has not the memory."""
        arguments = self.arguments
        if self.program:
            check_fits(self.needed_bytes, arguments)
        progress = self.tf.keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda *_, **__: self.begin(), on_train_batch_end=lambda _, logs: self.end(logs)
        )
        self.model.around_execution = self.measured
        with self.strategy.scope():
            self.model.fit(
                make_dataset(self.tf, arguments, text).repeat(),
                epochs=arguments.epochs,
                steps_per_epoch=arguments.steps_per_epoch,
                shuffle=False,
                verbose=0,
                callbacks=[progress],
            )

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the process while the program runs, but not when it is compiled too, unless it runs only once."""
        from ..liveness import device_memory, forget_free_memory, process_memory

        arguments = self.arguments
        runs = arguments.epochs * arguments.steps_per_epoch // arguments.gradient_accumulation
        if "measured_peak_bytes" in self.results or (not self.seconds and runs > 1):
            yield
            return
        if self.program:
            forget_free_memory(self.program.allocated_temporary_bytes or 0)
        with device_memory() as on_device, process_memory() as memory:
            yield
        self.results["measured_peak_bytes"] = memory.over_idle_bytes
        self.results["device_peak_bytes"] = on_device.over_idle_bytes  # None without a GPU

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
        """Print the figures and write the report that was asked for. Raises ReportError where it cannot be written."""
        arguments, results = self.arguments, self.results
        if self.program:
            from ..report import memory_rows, print_liveness, print_memory

            if not arguments.quiet:
                print_liveness(self.program)
                rows = memory_rows(
                    predicted=results["predicted_peak_bytes"],
                    compiled=results["peak_bytes"],
                    measured=results.get("measured_peak_bytes"),
                    on_device=results.get("device_peak_bytes"),
                )
                print_memory(rows)
                print()
        if results["losses"]:
            print(f"loss: {results['losses'][-1]:.4f} (at first {results['losses'][0]:.4f})")
            print(f"seconds per step: {results['step_seconds']:.3f}")
        if self.choice:
            print("\n".join(self.choice.lines()))
        if self.program:
            print(
                f"peak: {format_bytes(results['peak_bytes'])} of the {format_bytes(CAPACITY_BYTES)} of a Mk2 IPU, "
                f"always-live: {format_bytes(results['always_live_bytes'])}"
            )
        if arguments.report and self.program:
            from ..report import write_report

            write_report(self.program, arguments.report, title=self.title())
            print(f"report: {arguments.report / 'liveness.png'}")

    def write_json(self) -> None:
        """Write the figures so far to --json. Raises ReportError where that cannot be."""
        write_figures(self.results, self.arguments.json)

    def title(self) -> str:
        """Return what the report is about, for its picture."""
        arguments = self.arguments
        recomputes = str(self.cut) if self.cut.recompute else "without recomputation"
        return f"{arguments.cell.upper()}, {arguments.seq_len} steps, {recomputes}"

    def predicted_bytes(self, cut: Cut, batch_size: int | None = None) -> int:
        """Return the peak that is predicted for ``cut`` of this network."""
        return predicted_bytes(self.arguments, cut, batch_size)
