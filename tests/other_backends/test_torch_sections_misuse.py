"""What must not go wrong in sections on PyTorch: changes in place, chance, freed graphs."""

import random

import keras
import numpy as np
import pytest
import torch

import keras_recompute as kr
from keras_recompute.errors import ReplayError

L = keras.layers
X = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")


class Shift(L.Layer):
    """Changes what it is given in place."""

    def call(self, x):
        return x.add_(1.0)


class Chance(L.Layer):
    """Draws from a generator that Keras knows nothing of."""

    def __init__(self, generator, draw):
        super().__init__()
        self.generator, self.draw = generator, draw

    def call(self, x):
        return keras.ops.tanh(x * float(self.draw()))


def network(*layers):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8,))
    for number, layer in enumerate(layers):
        x = layer(x)
        x = L.Dense(8, "tanh", name=f"end_{number}")(x)
    return keras.Model(inputs, L.Dense(1)(x))


def placed(model):
    return kr.checkpointed(model, at=["end_0", "end_1"])


def gradients(model, x):
    model.zero_grad()
    (model(x, training=True) ** 2).sum().backward()
    return [variable.value.grad.clone() for variable in model.trainable_variables]


def test_a_section_that_changes_a_checkpoint():
    """Plain, PyTorch's backward pass refuses it, since tanh needs its result."""
    plain = network(L.Dense(8, "tanh"), Shift(), L.Dense(8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(plain, torch.tensor(X))
    with pytest.raises(ReplayError, match=r"changes its argument float32\[4,8\] in place"):
        gradients(placed(plain), torch.tensor(X))


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_function_that_changes_its_argument(needs_gradient):
    """Plain it trains, since nothing behind it needs what it changed."""
    first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    block = torch.nn.Sequential(torch.nn.SiLU(inplace=True), last)

    def given():
        return first(torch.tensor(X)) if needs_gradient else torch.tensor(X)

    block(given()).sum().backward()
    with pytest.raises(ReplayError, match=r"'Sequential' changes its argument float32\[4,8\]"):
        kr.checkpoint(block)(given())
    # From a copy it is computed again.
    wanted = last.weight.grad.clone()
    last.weight.grad = None
    kr.checkpoint(lambda x: block(x.clone()))(given()).sum().backward()
    assert torch.equal(last.weight.grad, wanted)


def test_the_inputs_of_a_model_are_changed_in_place():
    given = torch.tensor(X)
    model = placed(network(L.Dense(8), L.Dense(8), L.Dense(8)))
    loss = (model(given, training=True) ** 2).sum()
    given.add_(1.0)
    with pytest.raises(RuntimeError, match=r"modified by an inplace"):
        loss.backward()


def seeded(seed):
    """Return ways to draw a number, each from a generator of its own or a global one."""
    np.random.seed(seed)
    random.seed(seed)
    of_torch = torch.Generator().manual_seed(seed)
    return {
        "numpy": (None, np.random.random),
        "python": (None, random.random),
        "generator of numpy": (generator := np.random.default_rng(seed), generator.random),
        "generator of python": (generator := random.Random(seed), generator.random),
        "generator of torch": (of_torch, lambda: torch.rand((), generator=of_torch)),
    }


@pytest.mark.parametrize("name", seeded(0))
def test_other_random_numbers_of_a_replay_are_those_of_the_forward_pass(name):
    found = []
    for place in (lambda model: model, placed):
        generator, draw = seeded(3)[name]
        model = place(network(L.Dense(8), Chance(generator, draw), L.Dense(8)))
        generator, draw = seeded(3)[name]
        for layer in model.layers:
            if isinstance(layer, Chance):
                layer.generator, layer.draw = generator, draw
        found.append([*gradients(model, torch.tensor(X)), torch.tensor(float(draw()))])
    for ours, wanted in zip(*found, strict=True):
        assert torch.equal(ours, wanted)


def test_a_graph_that_was_freed():
    model = placed(network(L.Dense(8), L.Dense(8), L.Dense(8)))
    loss = (model(torch.tensor(X), training=True) ** 2).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_graph_that_is_kept_gives_the_same_again():
    model = placed(network(L.Dropout(0.5), L.Dropout(0.5), L.Dense(8)))
    loss = (model(torch.tensor(X), training=True) ** 2).sum()
    variables = [variable.value for variable in model.trainable_variables]
    first = torch.autograd.grad(loss, variables, retain_graph=True)
    for found, wanted in zip(torch.autograd.grad(loss, variables), first):
        assert torch.equal(found, wanted)


def test_autocast_and_what_it_casts():
    """Sections are replayed in the context of the forward pass, behind which it was left."""
    plain, found = network(L.Dense(8), L.Dropout(0.2), L.Dense(8)), []
    for model in (plain, placed(plain)):
        torch.manual_seed(0)  # by which unseeded dropout draws
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(torch.tensor(X), training=True)
        model.zero_grad()
        (out**2).sum().backward()
        found.append([variable.value.grad.clone() for variable in model.trainable_variables])
    assert not torch.equal(found[0][0], gradients(model, torch.tensor(X))[0])
    for plain, ours in zip(*found, strict=True):
        assert torch.equal(ours, plain)


def test_hooks_around_a_model_see_its_checkpoints_alone():
    """``save_on_cpu`` moves what a section was given, and nothing of what it makes, to the host."""
    model = placed(network(L.Dense(8), L.Dense(8), L.Dense(8)))
    wanted = gradients(model, torch.tensor(X))
    seen = []

    def pack(tensor):
        seen.append(tuple(tensor.shape))
        return tensor.detach().clone()

    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = (model(torch.tensor(X), training=True) ** 2).sum()
    # Two sections of four layers would save 4 x 8 numbers each time.
    inside_the_end = 5
    assert seen.count((4, 8)) <= 2 + inside_the_end
    loss.backward()
    for variable, gradient in zip(model.trainable_variables, wanted, strict=True):
        assert torch.equal(variable.value.grad, gradient)
    with torch.autograd.graph.save_on_cpu():
        found = gradients(model, torch.tensor(X))
    for ours, plain in zip(found, wanted):
        assert torch.equal(ours, plain)
