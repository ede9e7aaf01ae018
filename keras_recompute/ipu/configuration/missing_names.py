"""Graphcore's names that are not provided, with replacements.

This list raises the errors and writes the docs. In it ``ipu`` stands for ``tensorflow.python.ipu``
and its ``ops``, ``addons`` for ``ipu_tensorflow_addons``, ``keras.ipu`` for all modules of that
name, and ``keras.Model`` for models made in an IPUStrategy's scope. An entry covers every missing
name below it.
"""

from __future__ import annotations

from ...errors import UnsupportedError

_ESTIMATORS = "TensorFlow no longer has estimators: use fit of a Keras model"
_TRAINING_LOOPS = (
    "it belongs to TensorFlow 1: use fit of a Keras model, or a tf.function with IPUStrategy.run"
)
_PROCESSES = (
    "replicas in several processes are not emulated: use python3 -m keras_recompute.distribute"
)
_EXCHANGE = "replicas run one after the other and exchange only gradients and metrics: leave it out"
_CODELETS = "code for an IPU's processors cannot run here: use TensorFlow's own operations"
_EIGHT_BITS = "8-bit floating point is not emulated: use float16"
_SERVING = "there is no Poplar executable to serve: use model.export or tf.saved_model.save"
_STAGES = (
    "models are divided by stages here: use keras.ipu.PipelineStage and set_pipelining_options"
)
_OLD_CONFIGURATION = "it configures SDK 1: use ipu.config.IPUConfig"
_PLAIN = "use TensorFlow's own operations, which have the same results"

MISSING = {
    "ipu.all_to_all_op": _EXCHANGE,
    "ipu.application_compile_op": _SERVING,
    "ipu.autoshard": _STAGES,
    "ipu.control_flow_ops": "use tf.cond, or Python's if and for in a tf.function",
    "ipu.custom_ops": _CODELETS,
    "ipu.data": "use tf.data",
    "ipu.dataset_benchmark": (
        "it measures an IPU's streams: time an iteration over the dataset instead"
    ),
    "ipu.distributed": _PROCESSES,
    "ipu.embedded_runtime": _SERVING,
    "ipu.embedding_ops": "use ipu_tensorflow_addons.keras.layers.Embedding, or tf.gather",
    "ipu.f8_ops": _EIGHT_BITS,
    "ipu.functional_ops": "equal sections always share one program: call the function itself",
    "ipu.horovod": _PROCESSES,
    "ipu.image_ops": _PLAIN,
    "ipu.internal_ops": "use tf.print, and tf.function to compile",
    "ipu.ipu_compiler": _TRAINING_LOOPS,
    "ipu.ipu_estimator": _ESTIMATORS,
    "ipu.ipu_multi_worker_strategy": _PROCESSES,
    "ipu.ipu_pipeline_estimator": _ESTIMATORS,
    "ipu.ipu_run_config": _ESTIMATORS,
    "ipu.ipu_session_run_hooks": _ESTIMATORS,
    "ipu.layers": "use ipu_tensorflow_addons.keras.layers",
    "ipu.loops": _TRAINING_LOOPS,
    "ipu.losses": "use keras.losses",
    "ipu.math_ops": (
        "use tf.matmul, or ipu_tensorflow_addons.keras.layers.SerialDense for a serialized product"
    ),
    "ipu.nn_ops": _PLAIN,
    "ipu.normalization_ops": "use the normalisations of ipu_tensorflow_addons.keras.layers",
    "ipu.optimizers": (
        "they are TensorFlow 1's: use Keras's optimizers, and set_gradient_accumulation_options "
        "of the model"
    ),
    "ipu.outlined_function": "equal sections always share one program: call the function itself",
    "ipu.pipelining_ops": _STAGES,
    "ipu.rand_ops": "use ipu_tensorflow_addons.keras.layers.Dropout, or tf.random",
    "ipu.reduce_scatter_op": _EXCHANGE,
    "ipu.replication_ops": ("replicas run one after the other in one program: leave it out"),
    "ipu.scopes": "they are TensorFlow 1's: use IPUStrategy().scope()",
    "ipu.serving": _SERVING,
    "ipu.sharding": _STAGES,
    "ipu.slicing_ops": _PLAIN,
    "ipu.statistics_ops": _PLAIN,
    "ipu.test_utils": "it reads Poplar's logs: use ReportHelper and pva",
    "ipu.utils.create_ipu_config": _OLD_CONFIGURATION,
    "ipu.utils.auto_select_ipus": _OLD_CONFIGURATION,
    "ipu.utils.select_ipus": _OLD_CONFIGURATION,
    "ipu.utils.set_ipu_model_options": _OLD_CONFIGURATION,
    "ipu.vertex_edsl": _CODELETS,
    "ipu.within_replica_ops": _PLAIN,
    "keras.Model.export_for_ipu_serving": _SERVING,
    "keras.ipu.layers": "layers do not capture gradients here: use tf.GradientTape",
    "keras.ipu.optimizers": (
        "use Keras's optimizers, keras.optimizers.LossScaleOptimizer, and "
        "set_gradient_accumulation_options"
    ),
    "addons.keras.layers.CTCInferenceLayer": "use keras.ops.ctc_decode",
    "addons.keras.layers.CTCLoss": "use tf.nn.ctc_loss or keras.losses.CTC",
    "addons.keras.layers.CTCPredictionsLayer": "use keras.ops.ctc_decode",
    "addons.keras.layers.ConvertFromF8": _EIGHT_BITS,
    "addons.keras.layers.ConvertToF8": _EIGHT_BITS,
    "addons.keras.layers.EffectiveTransformer": "use keras.layers.MultiHeadAttention",
    "addons.keras.experimental": "stages are not found automatically: use keras.ipu.PipelineStage",
    "addons.v1": "it is TensorFlow 1's: use ipu_tensorflow_addons.keras.layers",
    "horovod": _PROCESSES,
    "popdist": _PROCESSES,
}
_SHORT = (
    ("tensorflow.python.ipu.ops.", "ipu."),
    ("tensorflow.python.ipu.", "ipu."),
    ("tensorflow.python.keras.ipu.", "keras.ipu."),
    ("tensorflow.keras.ipu.", "keras.ipu."),
    ("ipu_tensorflow_addons.", "addons."),
)


class AbsentModuleError(UnsupportedError, ImportError):
    """A module that Graphcore's TensorFlow has and stock TensorFlow lacks."""


class AbsentNameError(UnsupportedError, AttributeError):
    """A name that Graphcore's module has and ours does not provide."""


def why_missing(name: str) -> str:
    """Return a line saying that ``name`` is not provided, and what to use instead.

    ``name`` is given with its module.
    """
    short = name
    for prefix, to in _SHORT:
        if name.startswith(prefix):
            short = to + name[len(prefix) :]
            break
    parts = short.split(".")
    instead = None
    # The longest matching entry applies, as it is the most specific.
    for end in range(len(parts), 0, -1):
        instead = instead or MISSING.get(".".join(parts[:end]))
    return f"{name} is not provided on stock TensorFlow: {instead or 'docs/ipu.md lists what is'}"
