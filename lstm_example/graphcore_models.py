"""Models with Graphcore's API: the SDK's TensorFlow, or the stand-in on stock TensorFlow.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

import os
from typing import Any, ContextManager, Iterator

from keras_recompute.liveness import Program
from keras_recompute.startup_lines import load_tensorflow

from .data import batch_spec
from .memory_check import capacity_of
from .model_builder import BuildModel, ModelBuilder
from .poplar_report import PoplarReports
from .progress import Progress
from .run_record import RunRecord
from .sequence_plans import SequencePlan


class GraphcoreBuilder(ModelBuilder):
    """Builds pipelined models in the scope of an IPUStrategy."""

    _reports: PoplarReports | None = None

    def __init__(self, record: RunRecord, progress: Progress, build_model: BuildModel) -> None:
        super().__init__(record, progress)
        self._build_model = build_model

    def _load(self) -> dict[str, str]:
        options = self.options
        # Before TensorFlow, with which Poplar reads the environment.
        if options.is_for_ipu and options.report:
            self._reports = PoplarReports(options.report / "poplar")
        if options.target == "ipu-model":
            flags = os.environ.get("TF_POPLAR_FLAGS", "")
            os.environ["TF_POPLAR_FLAGS"] = f"{flags} --use_ipu_model".strip()
        self._tf = tf = load_tensorflow(list_devices=not options.is_for_ipu)
        if not options.is_for_ipu:
            from keras_recompute.ipu import install

            install()
        return {"tensorflow": tf.__version__, "keras": tf.keras.__version__}

    def _new_model(self, plan: SequencePlan) -> Any:
        from tensorflow.python import ipu

        tf, record, options = self._tf, self.record, self.options
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
        self._strategy = ipu.ipu_strategy.IPUStrategy()
        with self.scope():
            model = self._build_model(tf, options, plan.checkpoints)
            if record.share.strategy is not None:
                model.workers = record.share.strategy
            if plan.levels > 1:
                model.recomputation_levels = plan.levels
        model.around_execution = record.measure_execution
        return model

    def _profile(self) -> Program:
        from keras_recompute.liveness import profile

        specs = batch_spec(self.options, self._tf.TensorSpec)
        return profile(
            self.model.execution,
            self.model.feed_signature(specs),
            input_feed=["feed"],
            capacity_bytes=capacity_of(self.options)[0],
            layers_of=self.model,
            device=self.options.device,
        )

    def scope(self) -> ContextManager[Any]:
        """Return the strategy's scope."""
        scope: ContextManager[Any] = self._strategy.scope()
        return scope

    def data(self, microbatches: Iterator[Any]) -> Any:
        """Return a ``tf.data.Dataset``, whose shapes are known."""
        datasets, specs = self._tf.data.Dataset, batch_spec(self.options, self._tf.TensorSpec)
        if self.options.is_text:
            return datasets.from_generator(lambda: microbatches, output_signature=specs)
        # The same one is repeated, and a generator's would be copied each time.
        return datasets.from_tensors(next(microbatches)).repeat()

    def last_update(self, logs: dict[str, Any]) -> tuple[float, float | None]:
        """Return loss and norm as the stand-in records them; the SDK knows no norm."""
        of_model = getattr(self.model, "training_record", None)
        if of_model is None:
            return float(logs["loss"]), None
        return of_model.losses[-1], of_model.gradient_norms[-1]

    def read_report(self) -> None:
        """Record the program that Poplar reports, if it was asked to."""
        if self._reports:
            self.record.program = self._reports.read()
