"""Several plans side by side: the knee by hand, the table as text, the files, the picture."""

import json
from dataclasses import replace

import pytest

from keras_recompute.errors import InvalidArgumentError
from lstm_example.sweep_report import SweepRow, knee, sweep_figure, sweep_table, write_sweep

MIB = 2**20


def row(checkpoints, mib, *, recompute=True, seconds=None, batch=10):
    plan = f"{checkpoints} checkpoints" if recompute else "no recomputation"
    return SweepRow(
        plan,
        checkpoints,
        1,
        recompute,
        mib * MIB,
        mib * MIB + 1024,
        mib * MIB + 2048,
        seconds,
        batch,
    )


PLAIN = row(0, 391, recompute=False)
ROWS = [
    PLAIN,
    row(0, 390),
    row(1, 172),
    row(3, 108),
    row(7, 77),
    row(15, 61),
    row(31, 53),
    row(63, 51),
]


def test_the_knee_is_furthest_below_the_straight_line():
    # 390 to 51 over six doublings: 333.5, 277, 220.5 at the first three; below it by 161.5, 169,
    # 143.5.
    assert knee(ROWS).checkpoints == 3
    assert knee(list(reversed(ROWS))).checkpoints == 3


def test_few_or_straight_rows_have_no_knee():
    assert knee(ROWS[:3]) is None
    assert knee([row(0, 30), row(1, 20), row(3, 10)]) is None
    assert knee([]) is None
    # One number of checkpoints, in one to three levels
    assert knee([row(7, 30), row(7, 20), row(7, 10)]) is None


def test_the_table():
    assert sweep_table(
        [PLAIN, row(0, 390), row(1, 172), row(3, 108), row(7, 77)], 897 * MIB
    ).splitlines() == [
        "| plan                 | predicted peak | compiled peak | largest batch in 897 MiB |",
        "| -------------------- | -------------: | ------------: | -----------------------: |",
        "| no recomputation     |        391 MiB |       391 MiB |                       10 |",
        "| 0 checkpoints        |        390 MiB |       390 MiB |                       10 |",
        "| 1 checkpoints (knee) |        172 MiB |       172 MiB |                       10 |",
        "| 3 checkpoints        |        108 MiB |       108 MiB |                       10 |",
        "| 7 checkpoints        |       77.0 MiB |      77.0 MiB |                       10 |",
    ]


def test_seconds_have_a_column_where_any_were_taken():
    lines = sweep_table([replace(PLAIN, step_seconds=0.781), row(0, 390)], 897 * MIB).splitlines()
    assert "seconds per step" in lines[0]
    assert "0.781" in lines[2]
    assert "0.781" not in lines[3]


def test_the_files(tmp_path):
    paths = write_sweep(ROWS, tmp_path / "new", capacity_bytes=897 * MIB, title="LSTM")
    assert [p.name for p in paths] == ["sweep.json", "sweep.png", "sweep.txt"]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "sweep.json",
        "sweep.png",
        "sweep.txt",
    ]
    record = json.loads(paths[0].read_text())
    assert record["knee"] == "3 checkpoints"
    assert [r["peak_bytes"] for r in record["rows"]] == [r.peak_bytes for r in ROWS]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert paths[2].read_text().startswith("LSTM\n\n| plan ")


def test_the_picture_is_taller_with_seconds_and_the_same_each_time(tmp_path):
    import struct

    def drawn(rows, name):
        sweep_figure(rows, tmp_path / name, capacity_bytes=897 * MIB, title="LSTM")
        return (tmp_path / name).read_bytes()

    bare, again = drawn(ROWS, "a.png"), drawn(ROWS, "b.png")
    timed = drawn([replace(r, step_seconds=0.9) for r in ROWS], "c.png")
    assert bare == again
    (width, height), (_, taller) = (struct.unpack(">II", png[16:24]) for png in (bare, timed))
    assert width == 1800
    assert taller > height


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="at least one plan"):
        sweep_figure([], tmp_path / "none.png", capacity_bytes=1, title="")
