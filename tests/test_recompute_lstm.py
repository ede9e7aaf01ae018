"""The example: what it computes does not depend on the checkpoints, what it needs does, and bad
input is told plainly.
"""

import json
from pathlib import Path

import pytest

import recompute_lstm
from lstm_example.arguments import parse_arguments
from lstm_example.memory_check import needed_bytes, predicted_bytes
from lstm_example.progress import Progress
from lstm_example.run_record import RunRecord
from lstm_example.run_report import figures_of
from lstm_example.sequence_plans import SequencePlan, named_plans, plans_for
from lstm_example.training import load_builder
from lstm_example.worker_processes import WorkerShare

ROOT = Path(__file__).parent.parent
MIB = 2**20
SMALL = (
    "--seq-len 48 --units 8 --features 12 --batch-size 4 --gradient-accumulation 2 "
    "--steps-per-epoch 6 --quiet"
).split()


def run(folder, *arguments, name="out"):
    path = folder / f"{name}.json"
    assert recompute_lstm.main([*SMALL, *arguments, "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def plain_runs():
    return {}


@pytest.fixture(
    scope="module", params=["lstm-text", pytest.param("gru-constant", marks=pytest.mark.long)]
)
def plain(request, folder, plain_runs):
    """The run that the others must equal: no checkpoints, nothing recomputed. Made once, in
    whatever order tests come.
    """
    cell, data = request.param.split("-")
    options = ["--cell", cell, "--data", data]
    if cell not in plain_runs:
        plain_runs[cell] = run(
            folder, *options, "--checkpoints", "0", "--no-recompute", name=f"plain-{cell}"
        )
    return options, plain_runs[cell]


# 48 steps: 8 sections of 6; 7 do not divide them: 6 of 7 and 1 of 6; 16 of 3 as 4 groups of 4, or 4
# of 2 of 2.
@pytest.mark.parametrize(
    ("plain", "checkpoints", "levels"),
    [
        ("lstm-text", 7, 1),
        *(
            pytest.param("lstm-text", *plan, marks=pytest.mark.long)
            for plan in [(0, 1), (6, 1), (15, 2), (15, 3)]
        ),
        *(
            pytest.param("gru-constant", *plan, marks=pytest.mark.long)
            for plan in [(7, 1), (15, 2)]
        ),
    ],
    indirect=["plain"],
    scope="module",
)
def test_checkpoints_and_levels_never_change_what_is_computed(
    plain, folder, checkpoints, levels, capfd
):
    options, expected = plain
    plan = ["--checkpoints", str(checkpoints), "--levels", str(levels)]
    result = run(folder, *options, *plan, name=f"{options[1]}-{checkpoints}-{levels}")
    assert (result["checkpoints"], result["levels"]) == (checkpoints, levels)
    assert len(result["losses"]) == len(expected["losses"]) == 3
    assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert result["gradient_norms"] == pytest.approx(expected["gradient_norms"], rel=1e-5)
    warning = capfd.readouterr().err
    if checkpoints == 6:
        assert result["sections"] == [7] * 6 + [6]
        assert "can't be evenly divided" in warning
        assert "6 of 7 steps and 1 of 6" in warning
        assert "outlined program" in warning
    else:
        assert len(set(result["sections"])) == 1
        assert "divided" not in warning


def test_the_json_holds_every_figure(plain):
    options, result = plain
    assert set(result) >= set(
        "target cell seq_len checkpoints sections recompute losses gradient_norms parameters "
        "always_live_bytes not_always_live_peak_bytes peak_bytes input_feed_bytes "
        "allocated_temporary_bytes measured_peak_bytes program_steps program_instructions "
        "compile_seconds step_seconds capacity_bytes versions "
        "predicted_peak_bytes".split()
    )
    if "text" in options:
        # embedding 256 x 12, LSTM (12 + 8 + 1) x 32, dense 9 x 256
        assert result["parameters"] == 256 * 12 + 21 * 32 + 9 * 256
        # two microbatches of 4 sequences of 48 symbols and their successors, int32
        assert result["input_feed_bytes"] == 2 * 2 * 4 * 48 * 4
    else:
        # GRU (12 + 8 + 2) x 24, dense 9 x 1; features of 12 and one target, float32
        assert result["parameters"] == 22 * 24 + 9
        assert result["input_feed_bytes"] == 2 * 4 * 48 * (12 + 1) * 4
    assert (
        result["peak_bytes"] == result["always_live_bytes"] + result["not_always_live_peak_bytes"]
    )
    assert result["capacity_bytes"] == 1472 * 624 * 1024
    assert result["completed"] is True


@pytest.mark.long
def test_the_loss_falls(folder):
    result = run(folder, "--checkpoints", "1", "--epochs", "6", name="learns")
    assert result["losses"][0] == pytest.approx(5.545, abs=0.02)  # the logarithm of 256 symbols
    assert result["losses"][-1] < 5.2


def compiled(*arguments):
    """Return the record of a run whose training program is compiled and not run."""
    from keras_recompute.ipu import uninstall

    arguments = parse_arguments(
        ["--data", "constant", "--quiet", *arguments], recompute_lstm.__doc__
    )
    record = RunRecord(WorkerShare(arguments))
    builder = load_builder(record, recompute_lstm.build_model, Progress(quiet=True))
    try:
        builder.compile(*named_plans(arguments))
    finally:
        from tensorflow.python import ipu

        ipu.config.reset_ipu_configuration()
        uninstall()
    return record


@pytest.fixture(scope="module")
def published():
    return {k: compiled("--checkpoints", str(k)).program for k in (0, 1, 3, 7, 15, 31)}


@pytest.mark.long
def test_memory_falls_with_every_checkpoint(published):
    allocated = [published[k].allocated_temporary_bytes for k in (0, 1, 3, 7, 15)]
    assert allocated == sorted(allocated, reverse=True)
    assert len(set(allocated)) == len(allocated)


@pytest.mark.long
def test_memory_stays_within_its_bounds(published):
    # 144 MiB is the temporary memory of a JAX scan of jax.checkpoint(scan) for the same work.
    assert published[7].allocated_temporary_bytes <= 0.9 * 144 * MIB
    assert published[31].allocated_temporary_bytes <= 80 * MIB
    without = compiled("--checkpoints", "7", "--no-recompute").program
    assert published[7].allocated_temporary_bytes <= without.allocated_temporary_bytes / 4


@pytest.mark.long
def test_the_program_does_not_grow_with_the_sections(published):
    assert published[31].program_instructions <= 1.3 * published[7].program_instructions


@pytest.mark.long
def test_two_levels_need_less_than_any_single_one(published):
    nested = compiled("--checkpoints", "127", "--levels", "2")
    # One level is flat from 63 checkpoints on, where states begin to outweigh sections.
    single = [compiled("--checkpoints", "63").program, *published.values()]
    assert nested.program.allocated_temporary_bytes < 0.6 * min(
        p.allocated_temporary_bytes for p in single
    )
    predicted = figures_of(nested)["predicted_peak_bytes"]
    assert predicted == pytest.approx(nested.program.peak_bytes, rel=0.03)


@pytest.mark.long
def test_the_prediction_is_near_what_is_compiled(published):
    for checkpoints, program in published.items():
        arguments = parse_arguments(["--data", "constant"], recompute_lstm.__doc__)
        predicted = predicted_bytes(arguments, SequencePlan(checkpoints))
        assert predicted == pytest.approx(program.peak_bytes, rel=0.1), f"{checkpoints} checkpoints"


@pytest.mark.long
@pytest.mark.parametrize(
    "shapes",
    [
        (
            "--cell lstm --data text --seq-len 96 --units 24 --features 40 --batch-size 3 "
            "--checkpoints 5"
        ),
        (
            "--cell gru --data text --seq-len 64 --units 200 --features 16 --batch-size 2 "
            "--checkpoints 15 --levels 2"
        ),
        (
            "--cell gru --data constant --seq-len 256 --units 16 --features 96 --batch-size 8 "
            "--checkpoints 31 --levels 2"
        ),
    ],
)
def test_the_prediction_follows_the_shapes(shapes):
    record = compiled(*shapes.split())
    assert figures_of(record)["predicted_peak_bytes"] == pytest.approx(
        record.program.peak_bytes, rel=0.1
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    ["--data constant --checkpoints 31", "--data text --checkpoints 63 --levels 2"],
)
def test_65536_steps_train_within_256_mib(plan):
    record = compiled("--seq-len", "65536", "--batch-size", "1", *plan.split())
    assert record.program.allocated_temporary_bytes <= 256 * MIB
    assert record.program.peak_bytes == pytest.approx(
        figures_of(record)["predicted_peak_bytes"], rel=0.1
    )


AUTO = [*SMALL, "--data", "constant", "--checkpoints", "auto"]


@pytest.mark.long
def test_auto_takes_the_fastest_plan_that_fits_when_compiled(folder, capsys):
    path = folder / "auto.json"
    expected = run(folder, "--data", "constant", "--checkpoints", "1", name="fixed")
    budget = expected["always_live_bytes"] + expected["allocated_temporary_bytes"]
    assert recompute_lstm.main([*AUTO, "--memory-budget", str(budget), "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert (result["checkpoints"], result["levels"], result["recompute"]) == (1, 1, True)
    assert result["needed_bytes"] == result["memory_budget_bytes"] == budget
    assert result["plans_compiled"][-1]["needed_bytes"] == budget
    assert all(plan["needed_bytes"] > budget for plan in result["plans_compiled"][:-1])
    assert (result["next_faster"]["recompute"], result["next_cheaper"]["checkpoints"]) == (False, 2)
    assert result["losses"] == expected["losses"], (
        "other plans were built before, and the seed must not notice"
    )
    said = capsys.readouterr().out
    assert "plan: 1 checkpoint (2 sections of 24 steps; every step runs forward 2 times)" in said
    assert "why: the fastest of" in said
    assert "next cheaper: 2 checkpoints" in said


@pytest.mark.long
def test_auto_says_the_smallest_budget_that_would_do(folder, capsys):
    path = folder / "refused.json"
    only = [*AUTO, "--seq-len", "8", "--levels", "2", "--compile-only"]
    assert recompute_lstm.main([*only, "--memory-budget", "1KiB", "--json", str(path)]) == 2
    out, err = capsys.readouterr()
    smallest = json.loads(path.read_text())["smallest_budget_bytes"]
    assert out == ""
    assert err.count("\n") == 1, err
    assert "--memory-budget 1.00 KiB: no plan fits" in err
    assert f" {smallest} bytes" in err
    again = folder / "granted.json"
    assert recompute_lstm.main([*only, "--memory-budget", str(smallest), "--json", str(again)]) == 0
    result = json.loads(again.read_text())
    assert result["needed_bytes"] == smallest
    assert result["levels"] == 2
    assert result["losses"] == []


@pytest.mark.long
def test_a_sweep_compares_plans_and_finds_the_largest_batch(folder, capsys):
    path, report = folder / "sweep.json", folder / "sweep"
    command = [
        *SMALL,
        "--data",
        "constant",
        "--sweep",
        "1",
        "--compile-only",
        "--memory-budget",
        "256KiB",
    ]
    assert recompute_lstm.main([*command, "--json", str(path), "--report", str(report)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["plan"] for row in rows] == ["no recomputation", "1 checkpoint"]
    assert [row["step_seconds"] for row in rows] == [None, None]
    assert rows[0]["peak_bytes"] > rows[1]["peak_bytes"]
    assert 4 < rows[0]["largest_batch"] < rows[1]["largest_batch"]
    record = compiled(
        *SMALL, "--checkpoints", "1", "--batch-size", str(rows[1]["largest_batch"] + 1)
    )
    assert needed_bytes(record.program, record.options) > 256 * 1024
    assert json.loads((report / "sweep.json").read_text())["rows"] == rows
    assert sorted(p.name for p in report.iterdir()) == ["sweep.json", "sweep.png", "sweep.txt"]
    assert "| 1 checkpoint " in capsys.readouterr().out


def test_the_plans_to_choose_from_come_fastest_first():
    plans = [(c.checkpoints, c.levels, c.recompute) for c in plans_for(12)]
    # Divisors of 12; 8 and its like are not needed, a divisor is within a factor of two. 2 and 3
    # are prime: no groups.
    one = [(n - 1, 1, True) for n in (2, 3, 4, 6, 12)]
    assert plans == [(0, 1, False), *one, (3, 2, True), (5, 2, True), (11, 2, True), (11, 3, True)]
    assert plans_for(12, levels=2) == [SequencePlan(3, 2), SequencePlan(5, 2), SequencePlan(11, 2)]
    # 13 is prime: sections of two lengths, as many as powers of two; 4 of them are 1 of 4 steps and
    # 3 of 3: no groups.
    assert [c.checkpoints + 1 for c in plans_for(13, levels=1)] == [1, 2, 4, 13]
    assert max(c.checkpoints + 1 for c in plans_for(65536)) == 1024
    assert plans_for(2) == [SequencePlan(0, recompute=False), SequencePlan(1)]
    assert plans_for(1) == [SequencePlan(0, recompute=False)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            "--checkpoints 6 --levels 2",
            [
                "7 sections of 7 steps can't be grouped in 2 levels",
                "7 is a prime number",
                "such as 15",
            ],
        ),
        (
            "--checkpoints 5 --levels 3",
            ["6 sections of 8 steps can't be grouped in 3 levels", "6 is 3 x 2", "such as 63"],
        ),
        ("--checkpoints 11 --levels 3", []),
        (
            "--checkpoints 12",
            ["49 steps can't be evenly divided into 13 sections: 10 have 4 steps and 3 have 3"],
        ),
    ],
)
def test_numbers_that_cannot_be_grouped_are_told(arguments, says):
    steps = {6: 49, 12: 49}.get(int(arguments.split()[1]), 48)
    (plan,) = named_plans(parse_arguments(["--seq-len", str(steps), *arguments.split()], ""))
    assert len(plan.warnings(steps)) == (1 if says else 0)
    assert all(word in "".join(plan.warnings(steps)) for word in says)


@pytest.mark.long
def test_a_report_is_written_and_never_over_another(folder, capsys):
    report = folder / "report"
    run(folder, "--checkpoints", "1", "--report", str(report), name="reported")
    assert sorted(p.name for p in report.iterdir()) == ["liveness.json", "liveness.png"]
    before = (report / "liveness.json").read_bytes()
    assert recompute_lstm.main([*SMALL, "--report", str(report)]) == 2
    assert (report / "liveness.json").read_bytes() == before
    assert "--force" in capsys.readouterr().err
