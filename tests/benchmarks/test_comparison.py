"""The tables and figures of a comparison."""

from comparison import Comparison, disagreements, table
from peers import (
    ON_DEVICE,
    PEERS,
    takes_part,
)
from plot import STYLES, plot
from workloads import WORKLOADS


def row(
    peer,
    checkpoints,
    *,
    seconds=1.0,
    loss=2.0,
    norm=3.0,
    temporaries=None,
    measured=2**20,
    method="VmHWM",
    **more,
):
    return {
        "peer": peer,
        "workload": "tiny-lstm",
        "checkpoints": checkpoints,
        "loss": loss,
        "gradient_norm": norm,
        "step_seconds": seconds,
        "step_seconds_of_rounds": [seconds, 2 * seconds],
        "first_step_seconds": 7.25,
        "temporary_bytes": temporaries,
        "measured_bytes": measured,
        "measured_by": method,
        **more,
    }


def test_a_table_has_a_row_for_every_run():
    rows = [row("keras", 0), row("ours", 1, seconds=0.5, temporaries=3 * 2**20, measured=None)]
    lines = table(Comparison("tiny-lstm", [1e9, 2e9], rows)).splitlines()
    assert lines[2].startswith("| 0 | keras | 1.00 (1.00 to 2.00) | 7.2 |")
    assert lines[2].endswith("|  | 1.00 MiB |")
    assert lines[3].startswith("| 1 | keras_recompute | 0.50 (0.50 to 1.00) |")
    assert lines[3].endswith("| 3.00 MiB |  |")


def test_a_table_names_plans_and_failures_and_can_leave_out_who_is_there_for_completeness():
    rows = [
        row("torch", 1),
        row("ours-planned", 1, plan="7 checkpoints", step_seconds_of_rounds=[1.0]),
    ]
    comparison = Comparison(
        "tiny-lstm",
        [1e9],
        rows,
        failures=["jax, 1 checkpoints failed: it took more than 900 seconds"],
    )
    text = table(comparison)
    assert "| 1 | keras_recompute, planned: 7 checkpoints | 1.00 | " in text
    assert text.endswith("\n\njax, 1 checkpoints failed: it took more than 900 seconds")
    assert len(table(comparison, main_only=True).splitlines()) == 3


def test_the_fraction_is_of_the_best_rate():
    workload = WORKLOADS["tiny-lstm"]
    comparison = Comparison("tiny-lstm", [1e3, 2e3], [])
    assert (
        comparison.fraction_of_rate(row("ours", 0, seconds=4.0))
        == workload.matrix_flops(0) / 4.0 / 2e3
    )


def test_who_computes_something_else_is_named():
    rows = [
        row("keras", 0),
        row("jax", 0, loss=2.00001),
        row("torch", 0, loss=2.1),
        row("ours", 1, norm=float("nan")),
    ]
    assert disagreements(Comparison("tiny-lstm", [1.0], rows)) == [
        "torch, 0 checkpoints: loss is 2.1, others have 2.0",
        "ours, 1 checkpoints: gradient_norm is nan, others have 3.0",
    ]


def test_the_gradient_norm_of_a_deep_network_may_differ_by_more():
    rows = [
        row("keras", 0),
        row("torch", 0, norm=3.0006),
        row("ours", 0, norm=3.006),
        row("jax", 0, loss=2.001),
    ]
    named = [line.split(",")[0] for line in disagreements(Comparison("tiny-resnet50", [1.0], rows))]
    assert named == ["ours", "jax"]
    assert len(disagreements(Comparison("tiny-residual", [1.0], rows))) == 3


def test_who_ran_on_another_device_is_named():
    rows = [row("keras", 0, method=ON_DEVICE), row("jax", 0), row("ours", 0, method=ON_DEVICE)]
    assert disagreements(Comparison("tiny-lstm", [1.0], rows)) == [
        "jax, 0 checkpoints: it ran on a CPU, others on a GPU"
    ]


def test_who_takes_part_in_what():
    def of(checkpoints, kind):
        return {name for name in PEERS if takes_part(name, checkpoints, kind=kind)}

    always = {
        "recompute-grad",
        "recompute-grad-jit",
        "remat",
        "jax",
        "torch",
        "ours",
        "ours-on-jax",
        "ours-planned",
    }
    plain = {"keras", "keras-jit", "jax", "torch", "ours", "ours-on-jax"}
    assert of(0, "gru") == plain | {"jax-in-loop"}
    assert of(7, "decoder") == always
    assert of(3, "MobileNetV2") == always | {"ours-without-jit"}
    assert set(STYLES) == {name for name in PEERS if PEERS[name].main}


def test_figures_are_kept_and_drawn(tmp_path):
    comparison = Comparison(
        "tiny-lstm", [1.0], [row("keras", 0), row("ours", 1), row("ours", 3, measured=None)]
    )
    (tmp_path / "figures.json").write_text(comparison.to_json())
    assert Comparison.read(tmp_path / "figures.json") == comparison
    plot(comparison, tmp_path / "figures.png")
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")
