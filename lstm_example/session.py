"""One run of the example: compile, train, and collect its figures.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from dataclasses import asdict
from typing import Any, Callable, Iterator

from keras_recompute.liveness import Program
from keras_recompute.liveness.process import resident_bytes
from keras_recompute.report.output import print_error
from keras_recompute.sizes import format_bytes
from keras_recompute.startup_lines import load_tensorflow

from .arguments import Options
from .data import Text, element_spec, make_dataset, validation_dataset
from .divergence import require_finite
from .event_log import Log
from .memory_check import check_fits, predicted_bytes
from .plan_choice import Choice, choice_for
from .poplar_report import PoplarReports
from .program_needs import bytes_needed, capacity_of, needed_bytes
from .progress import Progress
from .resumption import check_versions, resume_settings
from .run_report import MeasuredMemory, bits_per_byte, print_run
from .saves import Save, write_save
from .sequence_plans import SequencePlan, named_plans
from .worker_processes import ALONE, WorkerShare

_OF_SAVES = ("losses", "gradient_norms", "validation", "trained_seconds", "versions")
_VALIDATED = 8  # microbatches of the text that is held back, at least
_OF_PROGRAM = (
    "always_live_bytes",
    "not_always_live_peak_bytes",
    "peak_bytes",
    "input_feed_bytes",
    "allocated_temporary_bytes",
    "program_steps",
    "program_instructions",
    "compile_seconds",
)
# Takes TensorFlow, the options and a number of checkpoints; returns a compiled model.
BuildModel = Callable[[Any, Options, int], Any]


class Session:
    """One run of the script: its options, its state and its figures so far."""

    def __init__(
        self,
        options: Options,
        build_model: BuildModel,
        share: WorkerShare = ALONE,
        *,
        resumed: Save | None = None,
    ) -> None:
        self.requested, self.options = options, share.options(options)
        self.build_model, self.share = build_model, share
        self.versions = {"python": platform.python_version()}
        self.choice: Choice | None = None
        self.plan: SequencePlan | None = None
        self.program: Program | None = None
        self.resumed = self.saved = resumed  # what the run goes on from, and its last save
        earlier: dict[str, Any] = (
            resumed.state
            if resumed
            else {"losses": [], "gradient_norms": [], "validation": [], "trained_seconds": 0.0}
        )
        # Seconds in updates, including those of earlier runs.
        self.trained_seconds: float = earlier["trained_seconds"]
        self.losses: list[float] = list(earlier["losses"])
        # None if gradient norms are unknown.
        self.gradient_norms: list[float] | None = list(earlier["gradient_norms"])
        self.progress = Progress(quiet=self.options.quiet)
        self.log: Log | None = None
        # Losses of the held-back text.
        self.validation: list[dict[str, float]] = list(earlier["validation"])
        self.seconds: list[float] = []  # per step, of each update
        self.measured: MeasuredMemory | None = None
        self.completed = False
        self.tf: Any = None
        self.model: Any = None
        self.poplar: PoplarReports | None = None

    def say(self, text: str) -> None:
        """Print progress, unless asked to be quiet."""
        self.progress.say(text)

    def train(self, text: Text | None) -> None:
        """Choose the plan if asked to, compile, and fit."""
        self.load()
        if self.options.checkpoints is None:
            choice = choice_for(self.options)
            try:
                choice.choose(lambda plan: bytes_needed(self.options, lambda: self.compile(plan)))
            finally:
                self.choice = choice
        else:
            (plan,) = named_plans(self.options)
            if self.options.target == "xla":
                self.compile(plan)
            else:
                self.build(plan)
        assert self.plan is not None
        for warning in self.plan.warnings(self.options.seq_len):
            print_error(f"warning: {warning}")
        if not self.options.compile_only:
            self.fit(text)
            if self.poplar:
                self.program = self.poplar.read()
        self.completed = True

    def load(self) -> None:
        """Load TensorFlow with Graphcore's API, the SDK's or the stand-in."""
        if self.options.target == "ipu-model":
            os.environ["TF_POPLAR_FLAGS"] = (
                os.environ.get("TF_POPLAR_FLAGS", "") + " --use_ipu_model"
            ).strip()
        if self.options.target != "xla" and self.options.report:
            self.poplar = PoplarReports(self.options.report / "poplar")
        self.say("loading TensorFlow")
        tf = load_tensorflow(list_devices=self.options.target == "xla")
        if self.options.target == "xla":
            from keras_recompute.ipu import install

            install()
        self.tf = tf
        self.versions.update(tensorflow=tf.__version__, keras=tf.keras.__version__)
        if self.resumed:
            check_versions(self.resumed, self.versions)

    def build(self, plan: SequencePlan) -> None:
        """Build the model for ``plan`` from the seed, independent of earlier builds."""
        from tensorflow.python import ipu

        tf, options = self.tf, self.options
        if options.target == "xla":  # another plan may have been built before
            tf.keras.backend.clear_session()
            ipu.config.reset_ipu_configuration()
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = 1
        config.allow_recompute = plan.recompute
        config.configure_ipu_system()
        tf.random.set_seed(options.seed)
        if hasattr(tf.keras.utils, "set_random_seed"):  # Keras 2.6 has no seed of its own
            tf.keras.utils.set_random_seed(options.seed)
        self.strategy = ipu.ipu_strategy.IPUStrategy()
        with self.strategy.scope():
            self.model = self.build_model(tf, options, plan.checkpoints)
            if self.share.strategy is not None:
                self.model.workers = self.share.strategy
            if plan.levels > 1:
                self.model.recomputation_levels = plan.levels
        self.plan, self.parameters = plan, self.model.count_params()

    def compile(self, plan: SequencePlan) -> Program:
        """Build the model for ``plan`` and compile its training program, without running it."""
        from keras_recompute.liveness import profile

        self.build(plan)
        self.say(f"compiling the training program: {plan}")
        with self.strategy.scope():
            feed = self.model.feed_signature(element_spec(self.tf, self.options))
            program = profile(
                self.model.execution,
                feed,
                input_feed=["feed"],
                capacity_bytes=capacity_of(self.options)[0],
                layers_of=self.model,
                device=self.options.device,
            )
        self.program = program
        self.say(
            f"compiled in {program.compile_seconds:.1f} s: the peak will be "
            f"{format_bytes(program.peak_bytes)}"
        )
        return program

    def fit(self, text: Text | None) -> None:
        """Train, with a line of progress per update.

        Raises InvalidArgumentError if this machine lacks the memory.
        """
        options, first = self.options, self.resumed.updates if self.resumed else 0
        if self.program:
            check_fits(needed_bytes(self.program, options), options)
        self.text = text
        if options.save:
            from .network import plain_network

            # Made outside of the strategy's scope, in which models become pipelines.
            self.network = plain_network(options)

        def end(_: int, logs: Any) -> None:
            self.end(logs)
            self.after_update()

        progress = self.tf.keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda *_, **__: self.begin(), on_train_batch_end=end
        )
        epochs, steps = options.epochs, options.steps_per_epoch
        if self.resumed:
            from .network import restore

            restore(self.model, self.resumed)
            self.say(f"going on from {self.resumed.path}")
            epochs, steps = 1, (options.updates - first) * options.gradient_accumulation
        self.model.around_execution = self.measuring
        if options.log:
            self.log = Log(self.tf, options.log)
            if self.program:
                self.log.add_program(first, self.program)
        self.progress.begin(options.updates, done=first)
        try:
            with self.strategy.scope():
                self.model.fit(
                    self.share.data(
                        make_dataset(
                            self.tf,
                            self.requested,
                            text,
                            first=first * self.requested.gradient_accumulation,
                        )
                    ),
                    epochs=epochs,
                    steps_per_epoch=steps,
                    shuffle=False,
                    verbose=0,
                    callbacks=[progress],
                )
        except self.tf.errors.OpError as error:
            if text and text.failures:
                raise text.failures[0] from error
            raise
        finally:
            self.progress.stop()

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure the memory of an execution that does not compile, or of the only one."""
        from keras_recompute.liveness.local_device import measure_host_and_device

        # The first execution compiles, which takes memory too.
        if self.measured or (not self.seconds and self.options.updates > 1):
            yield
            return
        reserved_bytes = (self.program and self.program.allocated_temporary_bytes) or 0
        with measure_host_and_device(reserved_bytes=reserved_bytes) as (on_device, memory):
            yield
        self.measured = MeasuredMemory(memory.over_idle_bytes, on_device.over_idle_bytes)

    def begin(self) -> None:
        """Record when an execution begins."""
        self.started = time.perf_counter()

    def end(self, logs: Any) -> None:
        """Record the figures of the execution that ended; raise an error if they are not finite."""
        options = self.options
        microbatches = options.gradient_accumulation
        elapsed = time.perf_counter() - self.started
        self.trained_seconds += elapsed
        self.seconds.append(elapsed / microbatches)
        # The stand-in records losses; Graphcore's API has running means only.
        record = getattr(self.model, "training_record", None)
        self.losses.append(record.losses[-1] if record else float(logs["loss"]))
        if record and self.gradient_norms is not None:
            self.gradient_norms.append(record.gradient_norms[-1])
        else:
            self.gradient_norms = None
        done, loss = len(self.losses), self.losses[-1]
        figures = {
            "loss": loss,
            "bits_per_byte": bits_per_byte(loss) if options.is_text else None,
            "step_seconds": self.seconds[-1],
            "tokens_per_second": options.batch_size * options.seq_len / self.seconds[-1]
            if options.is_text
            else None,
            "resident_bytes": resident_bytes(),
        }
        self.progress.update(done, options.updates, figures)
        if self.log:
            self.log.add(done, figures)
        norm = self.gradient_norms[-1] if self.gradient_norms else None
        require_finite(done, options, loss=loss, norm=norm)

    def after_update(self) -> None:
        """Validate and save after the updates at which they are due. Raises SaveError."""
        options, done = self.options, len(self.losses)
        if (
            options.validation
            and self.text
            and self._is_time(options.steps_per_epoch // options.gradient_accumulation)
        ):
            steps = -(-_VALIDATED // options.gradient_accumulation) * options.gradient_accumulation
            data = validation_dataset(self.tf, options, self.text)
            found = float(
                self.model.evaluate(data, steps=steps, verbose=0, return_dict=True)["loss"]
            )
            require_finite(done, options, validation_loss=found)
            self.validation.append(
                {"update": done, "loss": found, "trained_seconds": self.trained_seconds}
            )
            self.say(f"validation after update {done}: {bits_per_byte(found):.3f} bits per byte")
            if self.log:
                self.log.add(
                    done,
                    {"validation_loss": found, "validation_bits_per_byte": bits_per_byte(found)},
                )
        if options.save and not self.share.number and self._is_time(options.save_every):
            from .network import store

            figures = {name: getattr(self, name) for name in _OF_SAVES}
            state = {
                "updates": done,
                "settings": resume_settings(self.requested, self.text),
                **figures,
            }
            path = write_save(
                options.save,
                state,
                lambda folder: store(self.model, self.network, folder),
                keep=options.keep,
            )
            self.saved = Save(path, state)

    def _is_time(self, updates: int) -> bool:
        """Whether what is due every ``updates`` updates, and after the last one, is due now."""
        return len(self.losses) % updates == 0 or len(self.losses) == self.options.updates

    def report(self) -> None:
        """Print the figures and write the report that was asked for.

        Raises ReportError where it cannot be written.
        """
        # Of several workers, the first one reports.
        if self.share.number == 0:
            print_run(self)

    def fields(self) -> dict[str, Any]:
        """Return the figures so far for a JSON file."""
        options, plan = self.options, self.plan
        found = {name: getattr(options, name) for name in ("target", "cell", "seq_len")}
        found.update({name: getattr(self, name) for name in (*_OF_SAVES, "completed")})
        found.update(
            resumed_after=self.resumed.updates if self.resumed else 0,
            saved=self.saved and str(self.saved.path),
        )
        found.update(
            capacity_bytes=capacity_of(options)[0],
            device=options.device,
            workers=self.share.workers,
        )
        if plan:
            found.update(
                asdict(plan),
                sections=list(plan.counts(options.seq_len).elements()),
                parameters=self.parameters,
            )
            found["predicted_peak_bytes"] = predicted_bytes(options, plan)
        found.update(
            {name: getattr(self.program, name) for name in _OF_PROGRAM} if self.program else {}
        )
        found.update(self.choice.fields() if self.choice else {})
        found.update({"step_seconds": self.step_seconds} if self.seconds else {})
        found.update(asdict(self.measured) if self.measured else {})
        return found

    @property
    def step_seconds(self) -> float | None:
        """The median of the seconds per step, without the first execution, which compiles.

        If there is only one execution, it counts.
        """
        return statistics.median(self.seconds[1:] or self.seconds) if self.seconds else None
