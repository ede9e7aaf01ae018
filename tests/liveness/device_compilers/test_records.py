"""Programs that the compilers of an H100 and of a TPU v5e made of one small network, read again.

The network: four dense layers of 8 units on a batch of 64, a checkpoint after the second, mean
squared error, SGD. They were compiled by JAX 0.10.2 with its CUDA 12 plugin, and with libtpu
0.0.52, and stored as the compilers wrote them.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from keras_recompute.liveness import Parameter, Program, read_hlo_proto, reconcile

WEIGHTS = [
    (f"dense_{n}/{what}", size)
    for n in range(4)
    for what, size in (("kernel", 8 * 8 * 4), ("bias", 8 * 4))
]
BATCH = 64 * 8 * 4


def read(device: str) -> Program:
    """Read the stored program; TensorFlow's inputs are the batch, then the variables in the order
    of their creation.
    """
    path = Path(__file__).with_name(f"mlp_{device}.hlo_proto.pb.gz")
    given = [
        Parameter("x", "input", fed=True, size_bytes=BATCH),
        Parameter("y", "input", fed=True, size_bytes=BATCH),
    ]
    given += [
        Parameter(name, "weight", size_bytes=size, layer=name.split("/")[0])
        for name, size in WEIGHTS
    ]
    given += [Parameter(name, size_bytes=4) for name in ("loss/total", "loss/count")]
    given += [
        Parameter("sgd/learning_rate", "optimiser", size_bytes=4),
        Parameter("sgd/iteration", "optimiser", size_bytes=8),
    ]
    return read_hlo_proto(
        gzip.decompress(path.read_bytes()),
        parameters=given,
        layers=[f"dense_{n}" for n in range(4)],
    )


def test_every_byte_of_a_gpu_program_has_its_place():
    program = read("h100")
    # 4 * (256 + 32) + 20 = 1172
    assert program.always_live_bytes == sum(size for _, size in WEIGHTS) + 3 * 4 + 8
    assert program.input_feed_bytes == 2 * BATCH
    assert program.compiler_totals["heap_trace_peak_bytes"] == 10533
    assert program.not_always_live_peak_bytes == 10533 + 4  # the loss, in storage of its own
    # As the compiler stated, the loss, and the tuple of results
    assert program.allocated_temporary_bytes == 12848 + 4 + 96
    # The fence before the replay of the first two layers
    assert program.compiler_totals["branches_taken"] == 1
    assert [row.name for row in reconcile(program) if row.explanation == "unexplained"] == []


def test_a_tpu_pads_parameters_and_holds_some_on_the_chip():
    program = read("v5e")
    bytes_of_parameters = 1172 + 2 * BATCH
    padding = program.compiler_totals["parameter_padding_bytes"]
    fed = program.input_feed_bytes
    constants = program.compiler_totals["constants_bytes"]
    assert program.always_live_bytes + fed - constants == bytes_of_parameters + padding
    assert program.compiler_totals["other_memory_bytes"] == 68116
    # What the chip holds is in no figure of the device's memory
    assert program.not_always_live_peak_bytes < 68116
    assert [row.name for row in reconcile(program) if row.explanation == "unexplained"] == []


@pytest.mark.parametrize("device", ["h100", "v5e"])
def test_layers_phases_and_sections_have_their_names(device):
    program = read(device)
    assert {"forward", "recompute", "backward", "update"} <= {step.phase for step in program.steps}
    assert {"section-0", "end"} <= {step.section for step in program.steps}
    assert {f"dense_{n}" for n in range(4)} <= {step.layer for step in program.steps}
    replays = [number for number, step in enumerate(program.steps) if step.phase == "recompute"]
    backwards = [number for number, step in enumerate(program.steps) if step.phase == "backward"]
    assert backwards[0] < replays[0] < backwards[-1]
