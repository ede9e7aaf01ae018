"""Models of the example's plans, and their training programs as compiled.

Runs on Python 3.8 beside the Poplar SDK.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class BuiltModel:
    """The model of a plan, and the strategy that it was built in."""

    plan: SequencePlan
    model: Any
    strategy: Any


class ModelBuilder:
    """Builds models from the seed, each independent of those before, and records plan and program.

    ``workers`` is the strategy of several processes, None where there is one. ``say`` prints
    progress.
    """

    def __init__(
        self,
        tf: Any,
        record: RunRecord,
        build_model: BuildModel,
        *,
        workers: Any = None,
        say: Callable[[str], None],
    ) -> None:
        self._tf, self._record, self._build_model = tf, record, build_model
        self._workers, self._say = workers, say
        self._built: BuiltModel | None = None

    @property
    def built(self) -> BuiltModel:
        """The model that was built last."""
        assert self._built is not None
        return self._built

    def build(self, plan: SequencePlan) -> BuiltModel:
        """Build the model for ``plan``."""
        from tensorflow.python import ipu

        tf, options = self._tf, self._record.options
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
        strategy = ipu.ipu_strategy.IPUStrategy()
        with strategy.scope():
            model = self._build_model(tf, options, plan.checkpoints)
            if self._workers is not None:
                model.workers = self._workers
            if plan.levels > 1:
                model.recomputation_levels = plan.levels
        self._record.plan, self._record.parameters = plan, model.count_params()
        self._built = BuiltModel(plan, model, strategy)
        return self._built

    def compile(self, plan: SequencePlan) -> Program:
        """Build the model for ``plan`` and compile its training program, without running it."""
        from keras_recompute.liveness import profile

        options, built = self._record.options, self.build(plan)
        self._say(f"compiling the training program: {plan}")
        with built.strategy.scope():
            program = profile(
                built.model.execution,
                built.model.feed_signature(element_spec(self._tf, options)),
                input_feed=["feed"],
                capacity_bytes=capacity_of(options)[0],
                layers_of=built.model,
                device=options.device,
            )
        self._record.program = program
        self._say(
            f"compiled in {program.compile_seconds:.1f} s: the peak will be "
            f"{format_bytes(program.peak_bytes)}"
        )
        return program
