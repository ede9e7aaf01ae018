"""Models of the example's plans, and their training programs as compiled.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

from typing import Any, Callable

from keras_recompute.liveness import Program
from keras_recompute.sizes import format_bytes

from .arguments import Options
from .data import element_spec
from .program_needs import capacity_of
from .run_record import RunRecord
from .sequence_plans import SequencePlan

# Takes TensorFlow, the options and a number of checkpoints; returns a compiled model.
BuildModel = Callable[[Any, Options, int], Any]


class ModelBuilder:
    """Builds models from the seed, each independent of those before, and records plan and program.

    ``model`` is the one that was built last, ``strategy`` the one that it runs in. ``say`` prints
    progress.
    """

    model: Any
    strategy: Any

    def __init__(
        self, tf: Any, record: RunRecord, build_model: BuildModel, say: Callable[[str], None]
    ) -> None:
        self._tf, self._record, self._build_model, self._say = tf, record, build_model, say

    def build(self, plan: SequencePlan) -> None:
        """Build the model for ``plan``."""
        from tensorflow.python import ipu

        tf, record, options = self._tf, self._record, self._record.options
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
            self.model = self._build_model(tf, options, plan.checkpoints)
            if record.share.strategy is not None:
                self.model.workers = record.share.strategy
            if plan.levels > 1:
                self.model.recomputation_levels = plan.levels
        record.plan, record.parameters = plan, self.model.count_params()

    def compile(self, plan: SequencePlan) -> Program:
        """Build the model for ``plan`` and compile its training program, without running it."""
        from keras_recompute.liveness import profile

        options = self._record.options
        self.build(plan)
        self._say(f"compiling the training program: {plan}")
        with self.strategy.scope():
            program = profile(
                self.model.execution,
                self.model.feed_signature(element_spec(self._tf, options)),
                input_feed=["feed"],
                capacity_bytes=capacity_of(options)[0],
                layers_of=self.model,
                device=options.device,
            )
        self._record.program = program
        self._say(
            f"compiled in {program.compile_seconds:.1f} s: the peak will be "
            f"{format_bytes(program.peak_bytes)}"
        )
        return program
