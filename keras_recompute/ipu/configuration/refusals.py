"""Parts of Graphcore's API that are recognised but not emulated.

This list raises the errors and writes the docs.
"""

from __future__ import annotations

from ...errors import UnsupportedError

UNSUPPORTED = {
    "offload_weight_update_variables": "there is no streaming memory to move them to; leave it out",
    "offload_activations": "there is no streaming memory to move them to; leave it out",
    "gradient_accumulation_dtype": (
        "gradients are accumulated in the type of their variable; leave it out"
    ),
    "device_connection.type": (
        "programs always run: without a device there would be zeros for results"
    ),
    "replication over processes": (
        "the replicas of one process are emulated: configure all IPUs in it"
    ),
    "replicas of a function": (
        "IPUStrategy.run runs it once: use fit, evaluate and predict of a Keras model"
    ),
    "sums over replicas inside a model": (
        "its replicas run one after the other; gradients and metrics are put together without"
    ),
    "experimental_identical_replicas": (
        "replicas with common statistics draw together: leave this or the common statistics out"
    ),
    "optimizations.enable_graph_outlining": (
        "equal sections always share one program; leave it True"
    ),
}


def refuse(feature: str, value: object) -> UnsupportedError:
    """Return the error for ``feature``, a key of ``UNSUPPORTED``."""
    return UnsupportedError(
        f"{feature} ({value!r}) is not emulated on stock TensorFlow: {UNSUPPORTED[feature]}"
    )
