"""Parts of Graphcore's API that are recognised but not emulated.

This list raises the errors and writes the docs.
"""

from __future__ import annotations

from ...errors import UnsupportedError

UNSUPPORTED = {
    "offload_weight_update_variables": "there is no streaming memory here; leave it out",
    "offload_activations": "there is no streaming memory here; leave it out",
    "gradient_accumulation_dtype": (
        "gradients are accumulated in the type of their variable; leave it out"
    ),
    "device_connection.type": (
        "programs always run here, and without a device the results would be zeros; leave it out"
    ),
    "replication over processes": (
        "only the replicas of one process are emulated; configure all IPUs in it"
    ),
    "replicas of a function": (
        "IPUStrategy.run runs it once; use fit, evaluate and predict of a Keras model"
    ),
    "sums over replicas inside a model": (
        "replicas run one after the other; fit sums their gradients and metrics, so leave it out"
    ),
    "experimental_identical_replicas": (
        "replicas with common statistics share their random numbers; leave out this or the "
        "common statistics"
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
