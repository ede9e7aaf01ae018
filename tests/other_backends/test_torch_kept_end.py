"""Sections at the end that are kept on PyTorch, and kernels that are laid out again."""

import keras
import numpy as np
import pytest
import torch

import keras_recompute as kr
from keras_recompute.errors import ReplayError
from keras_recompute.keras_backend.torch_kernels import kernels_laid_out_again
from keras_recompute.models.execution import stateless_sections
from keras_recompute.models.keras_graph.kept_end import first_kept, sizes_of

L = keras.layers
STEPS = 3
SECTIONS = "keras_recompute.models.execution.stateless_sections."


def pyramid(side=32):
    """Four sections of two convolutions, each with a quarter of the pixels of the one before."""
    x = inputs = keras.Input((side, side, 8))
    for number in range(4):
        for _ in range(2):
            x = L.Conv2D(8, 3, padding="same", use_bias=False)(x)
            x = L.ReLU()(L.BatchNormalization(epsilon=0.1)(x))
        x = L.MaxPooling2D(name=f"end_{number}")(x)
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))


def blocks(count=4):
    """Equal sections, each a model inside, and an end of almost nothing."""
    x = inputs = keras.Input((None, 8))
    for number in range(count):
        inner = [L.Dense(32, "gelu"), L.Dense(8), L.LayerNormalization()]
        x = keras.Sequential([keras.Input((None, 8)), *inner], name=f"end_{number}")(x)
    return keras.Model(inputs, L.Dense(1)(x[:, 0]))


def placed(build, count=4):
    keras.utils.set_random_seed(0)
    return kr.checkpointed(build(), at=[f"end_{number}" for number in range(count)])


def kept(model, *shape):
    sizes = sizes_of(model._plan.graph, [np.zeros(shape, "float32")])
    return first_kept(model._plan.steps, sizes)


def test_the_first_section_decides_in_a_network_whose_images_shrink():
    """With the inputs, pixels of 8 numbers: 1024 + 6 * 1024 + 256 in the replay of the first.

    From the second on there are 1024 + 256 handed on, 6 * 256 + 64, 6 * 64 + 16 and 6 * 16 + 4 made
    and 2 at the end: less. The kernels, of 576 numbers, change nothing.
    """
    assert kept(placed(pyramid), 2, 32, 32, 8) == 1


def test_equal_sections_are_replayed_up_to_the_last_one():
    """That one holds no more than its replay would, where hardly anything stands behind it."""
    assert kept(placed(blocks), 2, 16, 8) == 3


def test_a_layer_that_tells_no_shapes_is_not_called():
    called = []

    class Own(L.Layer):
        def call(self, x):
            called.append(1)
            return x + 1

    x = inputs = keras.Input((4,))
    for number in range(3):
        x = Own(name=f"end_{number}")(L.Dense(4)(x))
    model = kr.checkpointed(keras.Model(inputs, L.Dense(1)(x)), at=["end_0", "end_1"])
    called.clear()
    assert sizes_of(model._plan.graph, [np.zeros((2, 4), "float32")]) is None
    assert not called


@pytest.mark.parametrize(("build", "shape"), [(pyramid, (2, 32, 32, 8)), (blocks, (2, 16, 8))])
def test_training_is_that_of_the_plain_model_to_the_bit(build, shape):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    y = np.ones((2, 1), "float32")
    found = []
    for make in (build, lambda: placed(build)):
        keras.utils.set_random_seed(0)
        model = make()
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        losses = [np.asarray(model.train_on_batch(x, y)) for _ in range(STEPS)]
        found.append([*losses, *model.get_weights()])
    for plain, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, plain)


def peak_bytes(model, x, y):
    model.compile("sgd", "mse", jit_compile=False)
    record = kr.liveness.profile(model, x, y)
    return record.peak_bytes - record.always_live_bytes


def test_what_is_kept_raises_no_peak(monkeypatch):
    x, y = np.zeros((8, 32, 32, 8), "float32"), np.zeros((8, 1), "float32")
    ours = peak_bytes(placed(pyramid), x, y)
    recomputing = SECTIONS + "first_kept"
    monkeypatch.setattr(recomputing, lambda sections, _: len(sections))
    assert ours <= 1.02 * peak_bytes(placed(pyramid), x, y)


def replays(monkeypatch, work):
    """Return how often sections run in ``work()``, forward and again."""
    runs, plain_run = [], stateless_sections.run_recomputed

    def run(function, *args, **options):
        return plain_run(lambda *given: (runs.append(1), function(*given))[1], *args, **options)

    monkeypatch.setattr(SECTIONS + "run_recomputed", run)
    work()
    return len(runs)


def test_a_loop_of_ones_own_replays_every_section(monkeypatch):
    model = placed(pyramid)
    x, y = torch.ones((2, 32, 32, 8)), torch.ones((2, 1))
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(x, y)

    def loop():
        ((model(x, training=True) - y) ** 2).mean().backward()

    assert replays(monkeypatch, loop) == 2 * 4
    monkeypatch.undo()
    assert replays(monkeypatch, lambda: model.train_on_batch(x, y)) == 2 * 1


def test_copies_of_kernels_are_not_kept():
    """A convolution keeps its input and, of its kernel of 3 x 3 x 64 x 64, nothing of its own."""
    layer = L.Conv2D(64, 3)
    x = torch.ones((1, 5, 5, 64), requires_grad=True)
    layer(x)
    with kernels_laid_out_again():
        ours = layer(x)
    plain = layer(x)
    kernel = layer.kernel.value
    wanted = torch.autograd.grad((plain**2).sum(), [x, kernel])
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        layer(x)
    assert sum(t.numel() == kernel.numel() and t.data_ptr() != kernel.data_ptr() for t in held) == 1
    found = torch.autograd.grad((ours**2).sum(), [x, kernel])
    for a, b in zip(found, wanted):
        assert torch.equal(a, b)


def test_a_kernel_that_was_changed_is_no_wrong_gradient():
    layer = L.Conv2D(4, 3)
    x = torch.ones((1, 5, 5, 2), requires_grad=True)
    layer(x)
    with kernels_laid_out_again():
        made = layer(x)
    layer.kernel.assign(layer.kernel * 2)
    with pytest.raises(ReplayError, match="was changed in place"):
        made.sum().backward()
