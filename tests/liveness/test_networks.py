"""Training steps of real networks: every byte accounted for, and named after the layer that it
comes from.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from networks import EACH, compiled  # noqa: E402

from keras_recompute.liveness import capture_fit, profile, reconcile  # noqa: E402
from keras_recompute.liveness.reconcile import UNEXPLAINED  # noqa: E402
from keras_recompute.report.exports import category_sums  # noqa: E402

each_network = pytest.mark.parametrize("name", EACH)


@each_network
def test_the_categories_add_up_to_the_total_at_every_step(name):
    program = compiled(name).program()
    sums = category_sums(program)
    assert "unexplained" not in sums
    assert tuple(map(sum, zip(*sums.values()))) == program.timeline.total_bytes
    assert UNEXPLAINED not in [row.explanation for row in reconcile(program)]


@each_network
def test_the_peak_is_named_after_layers(name):
    program, layers = compiled(name).program(), set(compiled(name).layers)

    def share_named(buffers):
        named = [b.size_bytes for b in buffers if b.layer and set(b.layer.split("/")) <= layers]
        return sum(named) / sum(b.size_bytes for b in buffers)

    assert share_named(program.live_at(program.peak_step)) >= 0.95
    assert share_named(program.top_buffers(10)) >= 0.99
    unknown = {
        b.layer for b in program.buffers if b.layer and not set(b.layer.split("/")) <= layers
    }
    assert not unknown


@pytest.mark.parametrize(
    "name",
    [each for each in EACH if "checkpoint" in each.values[0] and ", 0" not in each.values[0]],
)
def test_what_a_section_makes_is_of_that_section(name):
    """Sections run as branches or loops, with branches inside: no buffer in them is of no section,
    or of another phase.
    """
    program = compiled(name).program()
    assert {b.phase for b in program.buffers if b.section} == {"forward", "recompute", "backward"}
    sections = {s.section for s in program.steps if s.section}
    assert len(sections) >= 2
    for section in sections - {"end"}:
        assert {s.phase for s in program.steps if s.section == section} == {
            "forward",
            "recompute",
            "backward",
        }
    # outside the sections are the loss, and sums of what several sections give back
    largest = max(b.size_bytes for b in program.buffers if b.lifetime == "temporary" and b.section)
    outside = [
        b
        for b in program.buffers
        if b.lifetime == "temporary" and not b.section and b.size_bytes > largest / 64
    ]
    backward = [b for b in outside if b.phase in ("recompute", "backward")]
    assert [b for b in backward if b.layer != "compile_loss" and b.op_name != "AddN"] == []


@pytest.mark.long
@each_network
def test_a_source_is_a_file(name):
    sources = {b.source.rpartition(":")[0] for b in compiled(name).program().buffers if b.source}
    assert all(map(os.path.exists, sources))


def test_layers_that_keras_numbers_are_told_apart():
    """Keras opens a scope twice per call, so that ``dense`` computes in a scope called ``dense_1``:
    sizes tell who is who.
    """
    keras.utils.clear_session()
    widths = {"dense": 24, "dense_1": 40, "dense_2": 56}
    inputs = x = keras.Input((8,), batch_size=16)
    for width in widths.values():
        x = keras.layers.Dense(width, activation="tanh")(x)
    model = keras.Model(inputs, x)
    assert [layer.name for layer in model.layers[1:]] == list(widths)
    model.compile("adam", "mse", jit_compile=True)
    program = profile(model, keras.ops.zeros((16, 8)), keras.ops.zeros((16, 56)))
    forward = [s for s in program.steps if s.phase == "forward" and s.op_name]
    for operation in ("MatMul", "Tanh"):
        assert [s.layer for s in forward if s.op_name.endswith(f"/{operation}")] == list(widths)

    # A layer hands on the gradient of its input, as large as the output of the layer before it.
    # XLA may put the last output into storage that another value has left: it has no row then.
    behind = dict(zip(widths, [*list(widths)[1:], None]))
    for name, width in widths.items():
        of_size = [b for b in program.buffers if b.size_bytes == 16 * width * 4]
        activations = {b.layer for b in of_size if b.category == "activation"}
        gradients = {b.layer for b in of_size if b.category == "gradient"}
        assert activations <= {name}
        assert gradients <= {name, behind[name], "compile_loss"}
        assert name == "dense_2" or (activations and gradients)

    # XLA copies weights whose storage it uses meanwhile.
    copied = [b for b in program.buffers if b.op_name in ("dense_1/kernel", "dense_2/kernel")]
    for copy in copied:
        assert (copy.layer, copy.category) == (copy.op_name.split("/")[0], "other")
    bytes_of = {
        b.name: (b.layer, b.size_bytes)
        for b in program.buffers
        if b.category in ("weight", "optimiser")
    }
    for name in ("dense_1/kernel", "adam/dense_1_kernel_momentum", "adam/dense_1_kernel_velocity"):
        assert bytes_of[name] == ("dense_1", 24 * 40 * 4)


@pytest.mark.long
def test_the_program_of_fit_is_named_as_that_of_profile():
    keras.utils.clear_session()
    inputs = keras.Input((8,))
    model = keras.Model(
        inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(keras.layers.Dense(32)(inputs)))
    )
    model.compile("sgd", "mse", jit_compile=True)
    data = keras.ops.zeros((4, 8)), keras.ops.zeros((4, 1))
    capture = capture_fit()
    model.fit(*data, batch_size=4, verbose=0, callbacks=[capture])
    layers = {b.layer for b in capture.program.buffers}
    assert layers == {b.layer for b in profile(model, *data).buffers}
    assert {"dense", "dense_1"} <= layers <= {"dense", "dense_1", "dropout", "compile_loss", None}
