"""The comparison compares like with like, and says so when it does not. Nothing is timed here."""

import importlib
import json

import compare
import pytest
from comparison import Comparison, disagreements, plot, table
from peers import PEERS
from workloads import WORKLOADS


def row(peer, checkpoints, *, seconds=1.0, loss=2.0, norm=3.0, temporaries=None, measured=2**20):
    return {
        "peer": peer,
        "workload": "tiny-lstm",
        "checkpoints": checkpoints,
        "loss": loss,
        "gradient_norm": norm,
        "step_seconds": seconds,
        "step_seconds_of_rounds": [seconds, 2 * seconds],
        "temporary_bytes": temporaries,
        "measured_bytes": measured,
    }


def test_floating_point_operations_of_the_published_sizes():
    lstm = WORKLOADS["lstm"]
    # 16 x 2048 rows; 512 features and 256 units to 1024 gates: 34.4 and 17.2 GFLOP. Twice and three times, then once more each.
    assert 2 * 16 * 2048 * 512 * 1024 == 34_359_738_368
    assert lstm.matrix_flops(0) == 2 * 34_359_738_368 + 3 * 17_179_869_184
    assert lstm.matrix_flops(7) == 3 * 34_359_738_368 + 4 * 17_179_869_184


def test_sections_are_equal():
    assert WORKLOADS["transformer"].sections(3) == [(0, 3), (3, 6), (6, 9), (9, 12)]
    with pytest.raises(ValueError, match="12 cannot be split into 5 equal sections"):
        WORKLOADS["transformer"].sections(4)


@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer"])
def test_peers_on_tensorflow_do_the_same_work(kind):
    workload = WORKLOADS[f"tiny-{kind}"]
    results = {}
    for name, checkpoints in (("keras", 0), ("recompute-grad", 1), ("ours", 1)):
        build = importlib.import_module(f"peers.{PEERS[name].module}").build
        step = build(name, workload, checkpoints).step
        results[name] = [*step(), *step()]  # the second step starts from what the first has learnt
    assert results["recompute-grad"] == pytest.approx(results["keras"], rel=1e-5)
    assert results["ours"] == pytest.approx(results["keras"], rel=1e-5)


def test_a_table_has_a_row_for_every_run():
    rows = [row("keras", 0), row("ours", 1, seconds=0.5, temporaries=3 * 2**20, measured=None)]
    lines = table(Comparison("tiny-lstm", [1e9, 2e9], rows)).splitlines()
    assert lines[2].startswith("| 0 | keras | 1.00 (1.00 to 2.00) |")
    assert lines[2].endswith("|  | 1.00 MiB |")
    assert lines[3].startswith("| 1 | keras_recompute | 0.50 (0.50 to 1.00) |")
    assert lines[3].endswith("| 3.00 MiB |  |")


def test_the_fraction_is_of_the_best_rate():
    workload = WORKLOADS["tiny-lstm"]
    comparison = Comparison("tiny-lstm", [1e3, 2e3], [])
    assert comparison.fraction_of_rate(row("ours", 0, seconds=4.0)) == workload.matrix_flops(0) / 4.0 / 2e3


def test_who_computes_something_else_is_named():
    rows = [row("keras", 0), row("jax", 0, loss=2.00001), row("torch", 0, loss=2.1), row("ours", 1, norm=float("nan"))]
    assert disagreements(Comparison("tiny-lstm", [1.0], rows)) == [
        "torch, 0 checkpoints: loss is 2.1, others have 2.0",
        "ours, 1 checkpoints: gradient_norm is nan, others have 3.0",
    ]


def test_figures_are_kept_and_drawn(tmp_path):
    comparison = Comparison("tiny-lstm", [1.0], [row("keras", 0), row("ours", 1), row("ours", 3, measured=None)])
    (tmp_path / "figures.json").write_text(comparison.to_json())
    assert Comparison.read(tmp_path / "figures.json") == comparison
    plot(comparison, tmp_path / "figures.png")
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["--peers", "ours,tinygrad"], "'tinygrad' is no peer"),
        (["--checkpoints", "6"], "2048 cannot be split into 7 equal sections"),
        (["--checkpoints", "few"], "'few' is not a list of whole numbers"),
        (["--rounds", "0"], "'0' is not a whole number from 1 on"),
        (["--workload", "all", "--json", "x"], "--json takes the figures of one workload"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_command_line(command, message, capsys):
    with pytest.raises(SystemExit) as stop:
        compare.main(command)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_from_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(PEERS, "absent", PEERS["keras"].__class__("keras_peers", ("no_such_package",), "absent"))
    command = "--workload tiny-gru --peers ours,absent --checkpoints 1 --rounds 1 --steps 1 --json".split()
    assert compare.main([*command, str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr()
    assert "skipped: absent (no_such_package not installed)" in shown.err
    (measured,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert measured["temporary_bytes"] > 0
    assert len(measured["step_seconds_of_rounds"]) == 1
    assert "| 1 | keras_recompute |" in shown.out
