"""An independent reading of the same programs: XProf's memory viewer, value by value."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from networks import EACH, compiled

from keras_recompute.liveness.program import RESULT

FREE = 1


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_the_timeline_is_that_of_the_memory_viewer(name, tmp_path):
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    from tensorflow.compiler.xla.service import hlo_pb2

    serialized, program = compiled(name).serialized, compiled(name).program()
    (tmp_path / "host.xplane.pb").write_bytes(b"")
    (tmp_path / "step.hlo_proto.pb").write_bytes(serialized)
    options = {"module_name": "step", "memory_space": "0", "host": "host", "hosts": ["host"]}
    answer, _ = convert.xspace_to_tool_data(
        [str(tmp_path / "host.xplane.pb")], "memory_viewer", options
    )
    viewer = [round(mib * 2**20) for mib in json.loads(answer)["heapSizes"]]
    (trace,) = hlo_pb2.HloProto.FromString(serialized).buffer_assignment.heap_simulator_traces
    assert len(viewer) == len(trace.events) + 1  # a value before the first event and after each

    # What the viewer shows at each step: the value after its last allocation, before anything is
    # freed. At the steps between nothing is allocated, and the value stays.
    step_of = {step.instruction: number for number, step in enumerate(program.steps)}
    shown, now, level = [], 0, viewer[0]
    for event, after in zip(trace.events, viewer[1:]):
        step = step_of.get(event.instruction_name, now)
        if event.kind != FREE and step >= now:
            shown += [level] * (step - now)
            now, level = step, after
    shown += [level] * (program.program_steps - now)

    # The viewer counts data and results as held throughout; the record counts data apart, and a
    # result from its first use.
    results = [b for b in program.buffers if b.lifetime == RESULT]
    early = program.input_feed_bytes + sum(
        b.size_bytes for b in results if b.is_live_at(program.program_steps - 1)
    )
    held = program.timeline.total_bytes
    ours = [
        held[n] + early - sum(b.size_bytes for b in results if b.is_live_at(n))
        for n in range(program.program_steps)
    ]
    # With XLA's own scheduler what a loop hands on may be counted a step apart.
    assert max(ours) == pytest.approx(max(shown), rel=0.03)
    assert len(ours) == len(shown)
    assert sum(a != b for a, b in zip(ours, shown)) <= 5
    assert len({*ours}) > 20
