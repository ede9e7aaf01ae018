"""A double of Graphcore's additions to Keras: pipeline stages, and methods of models."""

import contextlib
import datetime
import enum
import json
import os

import tensorflow as tf
from keras.engine import functional, node
from sdk_calls import record, wrong
from tensorflow.python.ipu import pipelining_ops
from tensorflow.python.ipu.config import in_force

KWARGS = {  # of set_pipelining_options, beyond its own arguments
    "pipeline_schedule": pipelining_ops.PipelineSchedule,
    "recomputation_mode": pipelining_ops.RecomputationMode,
    "offload_weight_update_variables": object,
    "gradient_accumulation_dtype": object,
    "forward_propagation_stages_poplar_options": list,
    "backward_propagation_stages_poplar_options": list,
    "offload_activations": object,
}
_in_scope = []


class PipelineStage:
    current = None

    def __init__(self, stage):
        if type(stage) is not int or stage < 0:
            raise ValueError(f"stage {stage!r}")
        self.stage = stage

    def __enter__(self):
        if not _in_scope or PipelineStage.current is not None:
            raise RuntimeError("a stage outside a strategy, or inside another")
        record("PipelineStage", stage=self.stage)
        PipelineStage.current = self.stage

    def __exit__(self, *_):
        PipelineStage.current = None


class IpuModel(functional.Functional):
    def __init__(self, inputs, outputs, name=None):
        record("Model")
        super().__init__(inputs=inputs, outputs=outputs, name=name)

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        metrics=None,
        steps_per_execution=None,
        run_eagerly=None,
        **kwargs,
    ):
        record(
            "compile", optimizer=type(optimizer).__name__, steps_per_execution=steps_per_execution
        )
        if run_eagerly or kwargs:
            wrong(f"compile(run_eagerly={run_eagerly}, **{kwargs})")
        super().compile(optimizer, loss, metrics, steps_per_execution=steps_per_execution)
        self.per_execution = steps_per_execution or 1

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica=None,
        device_mapping=None,
        accumulate_outfeed=None,
        gradient_accumulation_reduction_method="sum",
        **pipelining_kwargs,
    ):
        for name, value in pipelining_kwargs.items():
            if name not in KWARGS or not isinstance(value, KWARGS[name]):
                wrong(f"set_pipelining_options({name}={value!r})")
        self.options = {
            "gradient_accumulation_steps_per_replica": gradient_accumulation_steps_per_replica,
            "device_mapping": device_mapping,
            "gradient_accumulation_reduction_method": gradient_accumulation_reduction_method,
            **{
                name: value.name if isinstance(value, enum.Enum) else value
                for name, value in pipelining_kwargs.items()
            },
        }
        record("set_pipelining_options", accumulate_outfeed=accumulate_outfeed, **self.options)

    def fit(self, x=None, y=None, **kwargs):
        record(
            "fit",
            **{name: value for name, value in kwargs.items() if isinstance(value, (int, float))},
        )
        if not _in_scope:
            wrong("fit outside the strategy's scope")
        self._check_pipeline(kwargs)
        shapes = [spec.shape.as_list() for spec in tf.nest.flatten(x.element_spec)]
        if any(None in shape for shape in shapes):
            raise ValueError(f"microbatches of unknown shape {shapes}")
        write_reports()
        return super().fit(x, y, **kwargs)

    def _check_pipeline(self, kwargs):
        """Check what the SDK checks when the pipeline is built.

        Sources: Graphcore, IPUStrategy and stages, Keras models, fit.
        """
        nodes = [n for nodes in self._nodes_by_depth.values() for n in nodes if not n.is_input]
        stages = [getattr(n, "stage", None) for n in nodes]
        if None in stages:
            raise ValueError(
                "a call in no stage: " + str([n.layer.name for n in nodes if n.stage is None])
            )
        count = len(set(stages))
        accumulation, mapping = (
            self.options[name]
            for name in ("gradient_accumulation_steps_per_replica", "device_mapping")
        )
        if sorted(set(stages)) != list(range(count)) or count < 2 or len(mapping) != count:
            raise ValueError(f"stages {set(stages)} on devices {mapping}")
        if (
            type(accumulation) is not int
            or self.per_execution % accumulation
            or kwargs["steps_per_epoch"] % self.per_execution
        ):
            raise RuntimeError(
                f"{kwargs}, {self.per_execution} steps per execution, {accumulation} accumulated"
            )
        if (self.options["pipeline_schedule"], self.options["recomputation_mode"]) not in (
            ("Grouped", "RecomputeThenBackpropagate"),
            ("Interleaved", "RecomputeThenBackpropagate"),
            ("Grouped", "RecomputeAndBackpropagateInterleaved"),
            ("Sequential", "RecomputeAndBackpropagateInterleaved"),
        ):
            raise tf.errors.UnimplementedError(None, None, str(self.options))


@contextlib.contextmanager
def models_for_ipus():
    """Models made inside have Graphcore's methods; calls note their stage."""
    plain_model, plain_init = tf.keras.Model, node.Node.__init__

    def init(self, *args, **kwargs):
        plain_init(self, *args, **kwargs)
        self.stage = PipelineStage.current

    tf.keras.Model, node.Node.__init__ = IpuModel, init
    _in_scope.append(True)
    try:
        yield
    finally:
        _in_scope.pop()
        tf.keras.Model, node.Node.__init__ = plain_model, plain_init


def write_reports():
    """Write a profile as Poplar does, if the environment or configuration requests it."""
    options = {
        **in_force[0].compilation_poplar_options,
        **json.loads(os.environ.get("POPLAR_ENGINE_OPTIONS", "{}")),
    }
    if not all(isinstance(value, str) for value in options.values()):
        wrong(f"engine options {options}")
    if options.get("autoReport.all") != "true":
        return
    for program in ("small", "training"):
        when = datetime.datetime.now().isoformat().replace(":", "-")
        folder = os.path.join(options["autoReport.directory"], f"tf_report__{when}__{os.getpid()}")
        os.makedirs(folder)
        with open(os.path.join(folder, "profile.pop"), "w") as file:
            file.write(program)
