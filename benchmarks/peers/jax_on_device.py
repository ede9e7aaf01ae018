"""Compile JAX's training steps with Adam for a device that is not here.

    python jax_on_device.py REQUEST WORKLOAD CHECKPOINTS...

REQUEST is JSON, what ``keras_recompute``'s own worker is told of the device. Printed is a line of
JSON for each number of checkpoints, with the temporaries that the compiler states. Needs JAX with
the device's compiler, and NumPy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(request: dict, workload_name: str, counts: list[int]) -> None:
    """Compile the workload with each number of checkpoints."""
    os.environ.update(request["environment"])  # read while the plugins load
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding
    from peers.jax_peer import adam_step, arguments
    from workloads import WORKLOADS

    jax.config.update("jax_platforms", "cpu")
    topology = topologies.get_topology_desc(
        platform=request["platform"], topology_name=request["topology"], **request["options"]
    )
    there = SingleDeviceSharding(topology.devices[0])
    workload = WORKLOADS[workload_name]
    weights, x, y = arguments(workload)
    state = weights, weights, weights, np.float32(0)  # of the moments the shapes count
    described = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype, sharding=there), (state, x, y)
    )
    for checkpoints in counts:
        step = adam_step(workload, checkpoints)
        jax.config.update("jax_default_matmul_precision", None)  # as TensorFlow's programs ask for
        start = time.perf_counter()
        compiled = step.lower(*described).compile(compiler_options=request["xla"])
        found = {
            "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
            "seconds": time.perf_counter() - start,
        }
        print(json.dumps({"checkpoints": checkpoints, **found}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], [int(count) for count in sys.argv[3:]])
