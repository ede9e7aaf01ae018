"""The parts of Graphcore's API that are understood but not emulated. This list raises the errors and writes the docs."""

from __future__ import annotations

from ...errors import UnsupportedError

UNSUPPORTED = {
    "replication": "one replica is emulated; configure as many IPUs as one copy of the model uses",
    "offload_weight_update_variables": "there is no streaming memory to move them to; leave it out",
    "offload_activations": "there is no streaming memory to move them to; leave it out",
    "gradient_accumulation_dtype": "gradients are accumulated in the type of their variable; leave it out",
    "device_connection.type": "programs always run: without a device there would be zeros for results",
    "replication over processes": "one process and one replica are emulated",
    "batch norm over replicas": "one replica is emulated, so there are no statistics to put together",
    "optimizations.enable_graph_outlining": "equal sections always share one program; leave it True",
}


def refuse(feature: str, value: object) -> UnsupportedError:
    """Return the error for ``feature``, which must be on the list."""
    return UnsupportedError(f"{feature} ({value!r}) is not emulated on stock TensorFlow: {UNSUPPORTED[feature]}")
