"""``profile.pop``: ours there and back, and reports of the SDK's shape as the same records."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import popvision
import pytest

from keras_recompute.errors import InvalidArgumentError, ReportError
from keras_recompute.liveness import (
    Buffer,
    IpuTarget,
    Program,
    Step,
    is_profile_pop,
    read_popvision,
    read_profile_pop,
    write_profile_pop,
)
from keras_recompute.report.exports import category_sums

SMALL = Program(
    name="small",
    compiled_by="hand",
    steps=(Step("a", 7, "lstm/a", "lstm", "forward", "section-0"), Step("b", 3)),
    buffers=(
        Buffer("w", 10, 0, 1, "always-live", "weight"),
        Buffer("t", 7, 0, 0, "temporary", "activation", layer="lstm"),
    ),
    capacity_bytes=100,
)


def test_there_and_back(tmp_path, scan_program):
    path = tmp_path / "tf_report__2024__1" / "profile.pop"
    write_profile_pop(
        scan_program, path, target=IpuTarget(ipus=2, tiles_per_ipu=1216, bytes_per_tile=256 * 1024)
    )
    profile = read_profile_pop(path)
    assert profile.program == scan_program
    assert (profile.target.tiles, profile.target.memory_bytes) == (2 * 1216, 2 * 1216 * 256 * 1024)
    assert (
        read_popvision(path)
        == read_popvision(path.parent)
        == read_popvision(str(path))
        == scan_program
    )
    assert [p.name for p in path.parent.iterdir()] == ["profile.pop"]


def test_the_file_says_what_it_is(tmp_path):
    write_profile_pop(SMALL, tmp_path / "profile.pop")
    first, second = (tmp_path / "profile.pop").read_text().splitlines()
    head = json.loads(first)
    assert "not a file of the Poplar SDK" in head["note"]
    assert head["target"] == {
        "ipus": 1,
        "tiles_per_ipu": 1472,
        "bytes_per_tile": 638_976,
        "replicas": 1,
    }
    assert Program.from_json(second) == SMALL
    assert is_profile_pop(tmp_path / "profile.pop")


@pytest.mark.parametrize(
    "change", [{"ipus": 0}, {"tiles_per_ipu": -1}, {"bytes_per_tile": 1.5}, {"replicas": True}]
)
def test_a_target_that_cannot_be_is_refused(change):
    with pytest.raises(InvalidArgumentError, match=next(iter(change))):
        IpuTarget(**change)


def changed(**changes) -> bytes:
    head = {
        "format": "keras-recompute profile.pop",
        "note": "",
        "schema_version": 1,
        "target": {**vars(IpuTarget()), **changes},
    }
    return json.dumps(head).encode() + b"\n" + SMALL.to_json().encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "by its first line"),
        (b"CapnProto\x00\xff" * 900, "with the SDK's pva"),
        (SMALL.to_json().encode(), "by its first line"),
        (
            b'{"format": "keras-recompute profile.pop", "schema_version": 2}\n{}',
            "upgrade keras-recompute",
        ),
        (
            b'{"format": "keras-recompute profile.pop", "schema_version": "1"}\n{}',
            "schema_version '1'",
        ),
        (b'{"format": "keras-recompute profile.pop", "schema_version": 1}\n{}', "target None"),
        (changed().split(b"\n")[0], "by its first line"),
        (changed().split(b"\n")[0] + b"\n", "not JSON"),
        (changed(ipus=0), "ipus is 0"),
        (changed(colour=0), "instead of the numbers of an IpuTarget"),
        (changed()[:-20], "not JSON"),
    ],
)
def test_what_is_no_profile_of_ours_is_refused(tmp_path, data, message):
    (tmp_path / "profile.pop").write_bytes(data)
    with pytest.raises(ReportError, match=message):
        read_profile_pop(tmp_path / "profile.pop")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert not is_profile_pop(tmp_path / "profile.pop")
    for read in (read_profile_pop, read_popvision):
        with pytest.raises(ReportError, match="No such file"):
            read(tmp_path / "profile.pop")


def test_figures_of_a_report_of_the_sdk():
    steps = [
        popvision.step("net/lstm/Fwd", 30, [("net/lstm/out", 20), ("net/lstm/tmp", 10)]),
        popvision.step("net/lstm/Fwd", 45, [("net/lstm/out", 20)]),
        popvision.step("gradient_tape/net/lstm/Bwd", 12, [("net/lstm/tmp", 10)]),
    ]
    program = read_popvision(
        popvision.report(steps, always=[("net/lstm/kernel", 12)]), name="published"
    )
    # PopVision's peak: what its tiles always hold, 5 + 5 + 6 + 4, and the largest step
    assert (program.always_live_bytes, program.peak_bytes, program.peak_step) == (20, 20 + 45, 1)
    assert program.timeline.not_always_live_bytes == (30, 45, 12)
    assert (program.capacity_bytes, program.input_feed_bytes, program.compiled_by) == (
        4 * 1000,
        0,
        "Poplar 3.4.0",
    )
    assert [s.phase for s in program.steps] == [None, None, "backward"]
    assert {s.layer for s in program.steps} == {"net/lstm"}
    assert program.steps[0].instruction == "net/lstm/Fwd (OnTileExecute)"
    lives = {(b.name, b.size_bytes, b.first_step, b.last_step, b.lifetime) for b in program.buffers}
    assert lives == {
        ("net/lstm/kernel", 12, 0, 2, "always-live"),
        ("always live, in no variable of the report", 8, 0, 2, "always-live"),
        ("net/lstm/out", 20, 0, 1, "temporary"),
        ("net/lstm/tmp", 10, 0, 0, "temporary"),
        ("net/lstm/tmp", 10, 2, 2, "temporary"),  # of the same name, but not the same
    }


def test_variables_of_one_name_are_told_apart_by_their_number():
    listed = [2, 1, 3, 0, 1]
    steps = [popvision.step("p", 8 * count, [("v", 8)] * count) for count in listed]
    program = read_popvision(popvision.report(steps))
    alive = [
        sum(b.is_live_at(n) for b in program.buffers if b.name == "v") for n in range(len(steps))
    ]
    assert alive == listed
    # One is let go after each rise
    assert len([b for b in program.buffers if b.name == "v"]) == 2 + 2 + 1


def test_more_variables_than_the_tiles_hold_are_not_believed():
    program = read_popvision(popvision.report([popvision.step("p", 1)], always=[("w", 21)]))
    assert program.always_live_bytes == 20
    assert program.compiler_totals == {"always_live_variables_bytes": 21}


def test_a_file_of_the_sdk_is_opened_by_its_pva(tmp_path, monkeypatch):
    opened = []

    def open_report(path):
        opened.append(path)
        return popvision.report([popvision.step("p", 3)])

    monkeypatch.setitem(sys.modules, "pva", SimpleNamespace(openReport=open_report))
    folder = tmp_path / "tf_report__2022"
    folder.mkdir()
    (folder / "profile.pop").write_bytes(b"\x00\x01")
    assert read_popvision(folder).name == "tf_report__2022"
    assert read_popvision(folder / "profile.pop", name="mine").peak_bytes == 20 + 3
    assert opened == [str(folder / "profile.pop")] * 2


def test_a_file_of_the_sdk_without_its_pva_is_refused(tmp_path, monkeypatch):
    (tmp_path / "profile.pop").write_bytes(b"\x00\x01")
    monkeypatch.setitem(sys.modules, "pva", None)
    with pytest.raises(ReportError, match="pva may read it, and is not installed"):
        read_popvision(tmp_path)


def test_what_pva_refuses_is_one_error_of_ours(tmp_path, monkeypatch):
    def refuse(path):
        raise RuntimeError(f"no report in {path}")

    (tmp_path / "profile.pop").write_bytes(b"\x00\x01")
    monkeypatch.setitem(sys.modules, "pva", SimpleNamespace(openReport=refuse))
    with pytest.raises(ReportError, match="could not be read by pva: RuntimeError: no report"):
        read_popvision(tmp_path)


@pytest.mark.parametrize("source", [None, 3, SimpleNamespace(), popvision.report([])])
def test_objects_without_liveness_are_refused(source):
    with pytest.raises(ReportError):
        read_popvision(source)


def test_the_stand_ins_pva_gives_the_same_curve(scan_program, tmp_path):
    """The record, through the attributes of ``pva`` and back: nothing of the curve may be lost
    between the two.
    """
    pva = pytest.importorskip("keras_recompute.ipu.reports.pva")
    write_profile_pop(scan_program, tmp_path / "profile.pop")
    program = read_popvision(pva.openReport(str(tmp_path / "profile.pop")))
    assert program.timeline.not_always_live_bytes == scan_program.timeline.not_always_live_bytes
    assert (program.peak_bytes, program.peak_step) == (
        scan_program.peak_bytes,
        scan_program.peak_step,
    )
    assert program.always_live_bytes == scan_program.always_live_bytes
    assert "unexplained" not in category_sums(program)
