"""The comparison compares like with like, and says so when it does not. Nothing is timed here."""

import importlib
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import compare
import one_peer
import pytest
import tensorflow as tf
from comparison import Comparison
from peers import (
    ON_DEVICE,
    PEERS,
    DeviceMemory,
    Peer,
    keras_models,
    ours,
    planned,
    tensorflow_step,
)
from test_comparison import row
from workloads import WORKLOADS, data, named_weights

from keras_recompute.engine.passes import leaving_out
from tests.oracle import loss_and_gradients, mean_square


def test_floating_point_operations_of_the_published_sizes():
    lstm = WORKLOADS["lstm"]
    # 16 x 2048 rows; 512 features and 256 units to 1024 gates: 34.4 and 17.2 GFLOP. Twice and three
    # times, then once more each.
    assert 2 * 16 * 2048 * 512 * 1024 == 34_359_738_368
    assert lstm.matrix_flops(0) == 2 * 34_359_738_368 + 3 * 17_179_869_184
    assert lstm.matrix_flops(7) == 3 * 34_359_738_368 + 4 * 17_179_869_184


def test_sections_are_equal():
    # Of a product that replaces a convolution, with 3 * 3 * 64 columns. The first needs no input
    # gradient.
    rows = 32 * 64 * 64
    assert WORKLOADS["residual"].matrix_flops(7) == 2 * rows * 9 * 64 * 64 * (16 * 2 * 4 - 1)
    assert WORKLOADS["transformer"].sections(3) == [(0, 3), (3, 6), (6, 9), (9, 12)]
    with pytest.raises(ValueError, match="12 cannot be split into 5 equal sections"):
        WORKLOADS["transformer"].sections(4)


def test_of_causal_attention_half_is_needed():
    decoder, tokens = WORKLOADS["decoder"], 2 * 1024
    products = (
        2 * tokens * (4 * 256 * 256 + 2 * 256 * 1024 + 2 * 512 * 256)
    )  # 512 of 1024 tokens on average
    assert decoder.matrix_flops(0) == 12 * products * 3


@pytest.mark.parametrize(("name", "published"), [("resnet50", 3.86e9), ("mobilenet-v2", 0.300e9)])
def test_networks_have_the_published_number_of_multiplications(name, published):
    # At 224 x 224: 3.8 G of He et al. (2015), table 1; 300 M of Sandler et al. (2018), table 4.
    # Flops count additions too.
    workload = replace(WORKLOADS[name], batch=1, length=224)
    first = math.prod(workload.network.stem[0].path[0].kernel_shape) * 112**2
    assert (workload.matrix_flops(0) / 2 + first) / 3 == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", ["tiny-resnet50", "tiny-mobilenet-v2"])
def test_the_description_of_a_network_has_the_weights_of_keras(name):
    workload = WORKLOADS[name]
    model = keras_models.network(workload)
    described = {path: array.shape for path, array in named_weights(workload).items()}
    assert described == {v.path: tuple(v.shape) for v in model.trainable_variables}
    assert all(model.get_layer(block.result) for block in workload.network.blocks)


def two_steps(peer, workload):
    """Return loss and gradient norm of two steps; the second starts where the first ended."""
    build = importlib.import_module(f"peers.{PEERS[peer].module}").build
    step = build(peer, WORKLOADS[workload], checkpoints=0 if peer == "keras" else 1).step
    return [*step(), *step()]


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["lstm", "gru", "transformer", "decoder", "vit", "dense", "residual"]
)
def test_peers_on_tensorflow_do_the_same_work(kind):
    results = {
        peer: two_steps(peer, f"tiny-{kind}") for peer in ("keras", "recompute-grad", "ours")
    }
    assert results["recompute-grad"] == pytest.approx(results["keras"], rel=1e-5)
    assert results["ours"] == pytest.approx(results["keras"], rel=1e-5)


@pytest.mark.long
def test_peers_do_the_same_work_on_networks_of_keras():
    name = "tiny-mobilenet-v2"
    results = {peer: two_steps(peer, name) for peer in ("keras", "recompute-grad", "ours")}
    plain, ours = results["keras"], results["ours"]
    assert results["recompute-grad"] == pytest.approx(plain, rel=1e-5)
    assert ours[:2] == pytest.approx(plain[:2], rel=1e-5)
    assert ours == pytest.approx(
        plain, rel=1e-3
    )  # XLA rounds otherwise; the last normalisations are over 8 numbers each


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*save next to nothing")  # of its few and small images
def test_without_jit_the_work_is_the_same_by_kernels_of_its_own():
    name = "tiny-residual"
    plain = two_steps("keras", name)
    for left_out in ((), ("normalization",)):
        with leaving_out(*left_out):
            mine = two_steps("ours-without-jit", name)
        assert mine[:3] == pytest.approx(plain[:3], rel=1e-5), left_out
        # The last normalisations are over 8 numbers each: of the second step, each of plain Keras's
        # own gradients is some 1e-2 from float64's, where those of the first are 1e-5 from it.
        assert mine[3] == pytest.approx(plain[3], rel=1e-3), left_out


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*save next to nothing")  # of its few and small images
def test_without_jit_every_gradient_is_the_plain_models():
    workload = WORKLOADS["tiny-resnet50"]
    x, y = map(tf.constant, data(workload))

    def gradients(model):
        keras_models.assign(workload, model.trainable_variables)
        _, *found = loss_and_gradients(model, x, loss=lambda outputs: mean_square(outputs - y))
        return dict(zip((v.path for v in model.trainable_variables), found))

    plain = gradients(keras_models.network(workload))
    largest = max(float(tf.norm(gradient)) for gradient in plain.values())
    for left_out in ((), ("normalization",)):
        with leaving_out(*left_out):
            mine = gradients(ours.model(workload, checkpoints=1))
        assert mine.keys() == plain.keys()
        # Of a bias before a normalisation the gradient is 0, and what is computed is rounding: the
        # largest gives it its size.
        for path, gradient in plain.items():
            difference = float(tf.norm(mine[path] - gradient))
            assert difference <= 1e-5 * max(float(tf.norm(gradient)), 1e-2 * largest), (
                path,
                left_out,
            )


@pytest.mark.long
def test_memory_of_a_gpu_is_that_of_its_allocator_after_the_first_step(monkeypatch):
    held, peak = 100, [100]
    # By the tiny model, the first step, the timed ones, and those whose memory is measured.
    taken = iter((0, 900, 40, 40, 50, 60))

    def step():
        peak[0] = max(peak[0], held + next(taken))
        return 2.0, 3.0

    peer = Peer(
        step,
        lambda: None,
        DeviceMemory(lambda: held, lambda: peak[0], lambda: peak.__setitem__(0, held)),
    )
    monkeypatch.setattr(
        importlib,
        "import_module",
        lambda _: SimpleNamespace(build=lambda *_: peer, __version__="1"),
    )
    measured = one_peer.measure("torch", "tiny-lstm", 0, steps=2)
    assert (measured["measured_bytes"], measured["measured_by"], measured["timed_steps"]) == (
        60,
        ON_DEVICE,
        2,
    )


def test_tensorflow_and_its_gpu(monkeypatch):
    asked = []

    class Statistics:
        def __getattr__(self, name):
            return lambda device: asked.append((name, device)) or {"current": 3, "peak": 8}

    devices = SimpleNamespace(list_logical_devices=lambda kind: [kind], experimental=Statistics())
    monkeypatch.setattr(tensorflow_step.tf, "config", devices)
    device = tensorflow_step.device_memory()
    assert (device.held_bytes(), device.peak_bytes()) == (3, 8)
    device.forget_peak()
    assert asked == [("get_memory_info", "GPU:0")] * 2 + [("reset_memory_stats", "GPU:0")]


def test_of_long_steps_fewer_are_taken(monkeypatch):
    clock = iter(range(0, 1000, 11))
    monkeypatch.setattr(one_peer.time, "perf_counter", lambda: next(clock))
    peer = Peer(lambda: (1.0, 1.0), lambda: 7)
    monkeypatch.setattr(
        importlib,
        "import_module",
        lambda _: SimpleNamespace(build=lambda *_: peer, __version__="1"),
    )
    measured = one_peer.measure("torch", "tiny-lstm", 0, steps=3)
    assert (measured["timed_steps"], measured["step_seconds"], measured["temporary_bytes"]) == (
        1,
        11,
        7,
    )


def checkpoints_of(model):
    return len(model.plan.checkpoints)


@pytest.mark.long
def test_the_planner_takes_the_fastest_cut_that_needs_what_the_checkpoints_by_hand_do(monkeypatch):
    needed = {0: 900, 1: 500, 3: 300, 7: 200, 15: 190, 31: 180}
    monkeypatch.setattr(planned, "_needed_bytes", lambda _, model: needed[checkpoints_of(model)])
    monkeypatch.setattr(
        planned, "predicted_peak_bytes", lambda *, checkpoints, **_: needed[checkpoints]
    )
    workload = WORKLOADS["tiny-lstm"]
    assert planned.build("ours-planned", workload, 3).plan == "3 checkpoints"
    needed[1] = 300  # now fewer do
    chosen = planned.build("ours-planned", workload, 3)
    assert chosen.plan == "1 checkpoint"
    assert chosen.step() == pytest.approx(ours.build("ours", workload, 0).step(), rel=1e-5)


@pytest.mark.parametrize(
    ("workload", "levels"), [("tiny-transformer", ""), ("tiny-lstm", " in 2 levels")]
)
def test_the_leanest_plan_is_taken_where_none_fits(workload, levels, monkeypatch):
    asked = []

    def needed_bytes(_, model):
        asked.append(
            (1000 - checkpoints_of(model) if asked else 1, checkpoints_of(model))
        )  # first of all by hand
        return asked[-1][0]

    monkeypatch.setattr(planned, "_needed_bytes", needed_bytes)
    plan = planned.build("ours-planned", WORKLOADS[workload], 1).plan
    assert plan == f"{max(count for _, count in asked[1:])} checkpoints{levels}"


@pytest.fixture
def asked(monkeypatch):
    """Return what processes are asked for, in order; doubles answer, and ``keras`` fails."""
    asked = []

    def child(command):
        asked.append(command[0])
        if command == ["--rate"]:
            return {"flops_per_second": 1e9, "device": "a double"}
        if command[0] == "keras":
            raise RuntimeError("it was ended by signal 9")
        return row(command[0], int(command[2]))

    monkeypatch.setattr(compare, "_child", child)
    monkeypatch.setattr(
        compare, "PEERS", {name: PEERS[name] for name in ("keras", "keras-jit", "jax", "ours")}
    )
    monkeypatch.setattr(compare, "_missing", lambda _: [])
    return asked


def test_a_failure_is_named_and_not_tried_again(asked, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert (
        compare.main(
            ["--workload", "tiny-lstm", "--checkpoints", "0", "--rounds", "3", "--json", str(out)]
        )
        == 1
    )
    # keras-jit is no main peer: one round
    assert asked == ["--rate", "keras", "keras-jit", "jax", "ours", *["--rate", "jax", "ours"] * 2]
    assert Comparison.read(out).failures == [
        "keras, 0 checkpoints failed: it was ended by signal 9"
    ]
    assert "keras, 0 checkpoints failed: it was ended by signal 9" in capsys.readouterr().err


def test_who_runs_once(asked, tmp_path):
    command = [
        "--workload",
        "tiny-lstm",
        "--checkpoints",
        "1",
        "--rounds",
        "2",
        "--json",
        str(tmp_path / "out.json"),
    ]
    assert compare.main([*command, "--once", "jax"]) == 0
    assert asked == ["--rate", "jax", "ours", "--rate", "ours"]


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


@pytest.mark.long
def test_a_run_from_end_to_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(
        PEERS, "absent", PEERS["keras"].__class__("keras_peers", ("no_such_package",), "absent")
    )
    command = "--workload tiny-gru --peers ours,absent --checkpoints 1 --rounds 1 --steps 1".split()
    assert compare.main([*command, "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr()
    assert "skipped: absent (no_such_package not installed)" in shown.err
    (measured,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert measured["temporary_bytes"] > 0
    assert len(measured["step_seconds_of_rounds"]) == 1
    assert "| 1 | keras_recompute |" in shown.out
