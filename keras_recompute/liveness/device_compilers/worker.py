"""Worker process that compiles one program for a device that is not here, with JAX alone.

    python worker.py REQUEST.json

It ends when its standard input closes, so that it does not outlive its parent.

JAX's plugins for CUDA and TPU can describe a device without having it (a topology), and give a
client that only compiles. A process can hold one such compiler, and some failures end the process;
hence one process per program. The request names the program, an ``xla.HloModuleProto`` or a text
of StableHLO, and the folder for the answer:

* ``answer.json``: the compiler's memory statistics and the seconds it took, or an ``error``;
* ``program.hlo_proto.pb``: the compiled ``xla.HloProto`` with its buffer assignment, if written.

Uses private names of JAX; seen with JAX 0.10.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys
import threading
import time

STATISTICS = ("temp", "argument", "output", "alias", "generated_code")


def main(path: str) -> None:
    """Carry out the request in the file at ``path``."""
    with open(path) as file:
        request = json.load(file)
    threading.Thread(target=_end_with_parent, args=(request["folder"],), daemon=True).start()
    try:
        answer = _compile(request)
    except ImportError as error:
        answer = {"error": "missing", "message": str(error)}
    except Exception as error:  # the compilers' error classes are many, and none is public
        answer = {"error": "refused", "message": f"{type(error).__name__}: {error}"}
    partial = os.path.join(request["folder"], "answer.partial")
    with open(partial, "w") as file:
        json.dump(answer, file)
    os.replace(partial, os.path.join(request["folder"], "answer.json"))


def _end_with_parent(folder: str) -> None:
    """End this process and remove its folder when standard input closes: the parent is gone."""
    # Not through sys.stdin, whose lock would block Python's shutdown.
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _compile(request: dict) -> dict:
    os.environ.update(request["environment"])  # read while the plugins load
    import jax

    # JAX must not open a device that happens to be here.
    jax.config.update("jax_platforms", "cpu")
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform=request["platform"], topology_name=request["topology"], **request["options"]
    )
    # A program for one device is compiled for the first one of the topology.
    count = request["devices"]
    devices = tuple(topology.devices[:count])
    with open(request["module"], "rb") as file:
        given = file.read()
    stablehlo = given if request["is_stablehlo"] else _jax.mlir.hlo_to_stablehlo(given)
    module = ir.Module.parse(stablehlo, mlir.make_ir_context())
    options = xla_client.CompileOptions()
    ids = [device.id for device in devices]
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([ids], np.int32))
    options.num_partitions = count
    options.executable_build_options.num_partitions = count
    options.executable_build_options.use_spmd_partitioning = count > 1
    options.executable_build_options.use_shardy_partitioner = count > 1
    # The compiled program's buffer assignment is only available from a dump.
    dump = os.path.join(request["folder"], "dump")
    options.env_option_overrides = [
        *request["xla"].items(),
        ("xla_dump_to", dump),
        ("xla_dump_hlo_as_proto", True),
    ]
    start = time.perf_counter()
    try:
        compiled = devices[0].client.compile(module, xla_client.DeviceList(devices), options)
        seconds = time.perf_counter() - start
        programs = glob.glob(os.path.join(dump, "*after_optimizations.hlo.pb"))
        if len(programs) != 1:
            free = shutil.disk_usage(request["folder"]).free
            raise OSError(
                f"the compiler wrote {len(programs)} programs to {dump} instead of one; its disk "
                f"has {free:,} free bytes"
            )
        os.replace(programs[0], os.path.join(request["folder"], "program.hlo_proto.pb"))
    finally:
        shutil.rmtree(dump, ignore_errors=True)
    statistics = compiled.get_compiled_memory_stats()
    return {
        "seconds": seconds,
        "statistics": {name: getattr(statistics, f"{name}_size_in_bytes") for name in STATISTICS},
    }


if __name__ == "__main__":
    main(sys.argv[1])
