"""The zoo on JAX and PyTorch: its page, its order, and that it goes on where it stopped."""

import json

import zoo_backends
from zoo_backends_page import DEVICES, MODELS, jax_line, of_each_layer, page

MIB = 2**20


def on_jax(temporaries, *, losses=(1.0, 0.5), step=1.0):
    return {"losses": list(losses), "first": 2.0, "step": step, "temporaries": temporaries}


def on_torch(share, *, differences=(0.0, 0.0), seconds=1.0):
    held = {"saved": 8 * share * MIB, "peak": 10 * share * MIB}
    return {"differences": differences, "sgd": held, "adam": held, "seconds": seconds}


FAILS = {"error": "Unable to build. Please build it"}
JAX = {
    "MobileNet": {
        "plain": on_jax({"cpu": 8 * MIB, "h100": 80 * MIB}),
        "remat": FAILS,
        "every": on_jax({"cpu": 4 * MIB, "h100": 60 * MIB}, losses=(1.0, 0.505), step=1.25),
        "leanest": on_jax({"cpu": 2 * MIB, "h100": "the compiler refused"}, step=1.5),
        "half": {"refused": True, "holds": True, "budget": 0.625, "peak": 0.5},
    },
    "VGG16": {"error": "ended with -9"},
}
TORCH = {
    "MobileNet": {
        "plain": {**on_torch(4), "forward": 0.5},
        "remat": on_torch(1, differences=(0.0, 0.25), seconds=2.0),
        "hand": {"error": "not a chain"},
        "every": on_torch(3, seconds=1.25),
    }
}


def test_the_page_has_every_figure_and_says_what_misses_a_bar():
    text = page({b: {"processor": "a CPU", "rows": r} for b, r in (("jax", JAX), ("torch", TORCH))})
    assert (
        "| MobileNet | fails, 0 / 1e-02, 0 / 0 | 8.0, fails, 4.0, 2.0 | 80.0, fails, 60.0, fails | "
        "not compiled | 2.0, fails, 2.0, 2.0 | fails, 1.25, 1.50 |\n"
    ) in text
    assert "| MobileNet | 0.62, the floor of a refusal | 0.50 | yes |" in text
    assert (
        "| MobileNet | 0 / 2e-01, 0 / 0 | 32.0, 8.0, 24.0 | 40.0, 10.0, 30.0 | "
        "40.0, 30.0 | 1.50, 2.00, 1.25 |\n"
    ) in text
    assert "* seconds of later steps, leanest plan: 1.50 in the median, 1.50 at most; above" in text
    # 60 / 80, and the plan failed there
    assert "* `every=`, H100: 0.75 in the median, 0.75 at most; above 0.6: MobileNet 0.75\n" in text
    assert "leanest plan, H100" not in text
    assert "RematScope fails on 1: of MobileNet: “Unable to build”." in text
    assert "* peak with SGD, ours: 0.75 in the median, 0.75 at most; above 0.5" in text
    assert "* seconds, ours: 1.25 in the median, 1.25 at most\n" in text
    assert "* seconds, plain and one forward pass more: 1.50 in the median" in text
    assert "* equal to the bit, RematScope: 0 of 1\n" in text
    assert "| VGG16 |" not in text


def test_every_model_of_the_zoo_runs_once():
    names = zoo_backends.in_order()
    assert len(names) == len(set(names)) == MODELS


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(zoo_backends, "RESULTS", tmp_path)
    monkeypatch.setattr(zoo_backends, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(zoo_backends, "in_order", lambda: ["VGG16", "MobileNet"])
    ran = []

    def run_alone(name, options):
        ran.append((name, *options))
        return JAX[name]

    monkeypatch.setattr(zoo_backends, "run_alone", run_alone)
    monkeypatch.setattr(zoo_backends, "page", lambda found: json.dumps(found["jax"]["rows"]))
    monkeypatch.setattr(zoo_backends, "processor", lambda: "a CPU")
    assert zoo_backends.main(["--only", "MobileNet"]) == 0
    monkeypatch.setattr(zoo_backends, "processor", lambda: "another CPU")
    assert zoo_backends.main(["--devices", "h100", "--no-plan"]) == 0
    everything = "--devices", "cpu,h100,v5e"
    assert ran == [("MobileNet", *everything), ("VGG16", "--devices", "h100", "--no-plan")]
    # The second run measured nothing on the CPU.
    assert json.loads((tmp_path / "zoo-jax.json").read_text())["processor"] == "a CPU"
    assert zoo_backends.main([]) == 0  # what failed is tried again
    assert ran[2:] == [("VGG16", *everything)]
    assert json.loads((tmp_path / "page.md").read_text()).keys() == JAX.keys()


def test_devices_of_an_earlier_run_stay_in_a_row():
    earlier = {
        "plain": {"losses": [1.0], "first": 2.0, "temporaries": {"cpu": 8, "h100": 9}},
        "remat": {"error": "Unable to build"},
    }
    failed = {"temporaries": {"v5e": {"error": "Unable to build"}}}
    row = {"plain": {"temporaries": {"h100": 7, "v5e": 6}}, "remat": failed}
    whole = zoo_backends.with_earlier(row, earlier)
    sizes = {"cpu": 8, "h100": 7, "v5e": 6}
    assert whole["plain"] == {"losses": [1.0], "first": 2.0, "temporaries": sizes}
    assert whole["remat"] == earlier["remat"]
    failed_run = {"error": "ended with 1"}
    assert zoo_backends.with_earlier(row, failed_run) == row
    assert zoo_backends.with_earlier(failed_run, earlier) == earlier
    assert zoo_backends.with_earlier(failed_run, {}) == failed_run


def test_a_row_without_a_plan_for_a_device_says_so():
    sizes = {"v5e": 8 * MIB}
    row = {**JAX["MobileNet"], "plain": on_jax(sizes), "every": on_jax(sizes)}
    line = jax_line("MobileNet", row)
    assert "| 8.0, fails, 8.0, not searched |" in line, line


def test_checkpoints_behind_all_layers_are_compared_with_rematscope():
    ours, theirs = (on_jax(dict.fromkeys(DEVICES, size * MIB)) for size in (6, 8))
    row = {"plain": on_jax({}), "remat": theirs, "each": ours}
    fails = {"plain": on_jax({}), "remat": {"error": "Unable to build"}}
    said = of_each_layer({"MobileNet": row, "VGG16": fails})
    assert said == "MobileNet 0.75 (CPU), 0.75 (H100), 0.75 (v5e)"
    ours["temporaries"] = {"cpu": MIB, "h100": {"error": "the compiler refused"}}
    assert of_each_layer({"MobileNet": row}) == "MobileNet 0.12 (CPU)"
