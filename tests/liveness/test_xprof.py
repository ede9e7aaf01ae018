"""An independent reading of the same program: XProf's memory viewer, value by value."""

from __future__ import annotations

import json

import pytest
from small_programs import scan, serialized

from keras_recompute.liveness import read_hlo_proto
from keras_recompute.liveness.timeline import held_per_step

tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize("length", [8, 32])
def test_the_timeline_is_that_of_the_memory_viewer(tmp_path, length):
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    from tensorflow.compiler.xla.service import hlo_pb2

    data = serialized(scan(length), tf.TensorSpec((64, 32)))
    (tmp_path / "host.xplane.pb").write_bytes(b"")
    (tmp_path / "scan.hlo_proto.pb").write_bytes(data)
    options = {"module_name": "scan", "memory_space": "0", "host": "host", "hosts": ["host"]}
    answer, _ = convert.xspace_to_tool_data([str(tmp_path / "host.xplane.pb")], "memory_viewer", options)
    viewer = [round(mib * 2**20) for mib in json.loads(answer)["heapSizes"]]

    program = read_hlo_proto(data)
    # The viewer counts parameters, constants and results as held throughout, and has a value before each event and at
    # the end; the peak of a step stands after its last allocation, before anything is freed.
    floor = program.always_live_bytes + sum(
        b.size_bytes for b in program.live_at(program.program_steps - 1) if b.lifetime == "result"
    )
    ours = held_per_step(program.buffers, ("temporary",), program.program_steps)
    proto = hlo_pb2.HloProto.FromString(data)
    (trace,) = proto.buffer_assignment.heap_simulator_traces
    step_of = {step.instruction: number for number, step in enumerate(program.steps)}
    at_step = {}
    for event, after in zip(trace.events, viewer[1:]):
        if event.kind != 1 and event.instruction_name in step_of:
            at_step[step_of[event.instruction_name]] = after
    assert len(viewer) == len(trace.events) + 1
    assert len(at_step) > 5
    assert {step: floor + ours[step] for step in at_step} == at_step
    assert floor + max(ours) == max(viewer)
