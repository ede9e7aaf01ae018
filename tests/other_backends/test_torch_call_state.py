"""What a call finds besides its arguments, on PyTorch: a replay finds it, or raises an error."""

import functools
import types

import keras
import numpy as np
import pytest
import torch

import keras_recompute as kr
from keras_recompute.errors import ReplayError

L, nn = keras.layers, torch.nn
X = torch.tensor(np.random.default_rng(0).normal(size=(16, 8)).astype("float32"))


def plain(function):
    return function


def gradients_of(loss, values):
    return torch.autograd.grad(loss, list(values))


def assert_equal(found, wanted):
    assert len(found) == len(wanted)
    for ours, expected in zip(found, wanted):
        assert torch.equal(ours, expected)


# Functions of a batch norm, and what a checkpoint is put around.


class Trainer:
    def __init__(self, norm):
        self.norm = norm

    def forward(self, x):
        return torch.tanh(self.norm(x))


def of_an_object(norm):
    trainer = Trainer(norm)
    return lambda x: torch.tanh(trainer.norm(x))


def of_a_method(norm):
    return Trainer(norm).forward


def of_a_partial(norm):
    return functools.partial(Trainer.forward, Trainer(norm))


def of_a_namespace(norm):
    names = types.SimpleNamespace(norm=norm)
    return lambda x: torch.tanh(names.norm(x))


def of_a_helper(norm):
    def helper(x):
        return norm(x)

    return lambda x: torch.tanh(helper(x))


def of_a_default(norm):
    return lambda x, norm=norm: torch.tanh(norm(x))


class Hides(nn.Module):
    """Holds a module where PyTorch does not see it."""

    def __init__(self, norm):
        super().__init__()
        self.hidden = [norm]

    def forward(self, x):
        return torch.tanh(self.hidden[0](x))


FUNCTIONS = [
    of_an_object, of_a_method, of_a_partial, of_a_namespace, of_a_helper, of_a_default, Hides,
]  # fmt: skip


@pytest.mark.parametrize("made", FUNCTIONS)
def test_statistics_of_modules_that_a_function_reaches(made):
    found = []
    for around in (plain, kr.checkpoint):
        norm = nn.BatchNorm1d(8)
        around(made(norm))(X).sum().backward()
        found.append([norm.running_mean, norm.num_batches_tracked, norm.weight.grad])
    assert found[0][1] == 1
    assert_equal(*found)


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
def test_statistics_of_a_compiled_module():
    """Its compiler also traces what finds modules."""
    found = []
    for around in (plain, kr.checkpoint):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8)
        block = torch.compile(nn.Sequential(norm, nn.Tanh()), backend="eager", fullgraph=True)
        function = around(lambda x, block=block: block(x))
        for _ in range(2):
            function(X).sum().backward()
        found.append([norm.running_mean, norm.num_batches_tracked, norm.weight.grad])
    assert found[0][1] == 2
    assert_equal(*found)


class Holds(L.Layer):
    def __init__(self, holder, **kwargs):
        super().__init__(**kwargs)
        self.holder = holder

    def call(self, x):
        return torch.tanh(self.holder.norm(x))


@pytest.mark.parametrize("place", [{"every": 1}, {"layers": "holds"}])
def test_statistics_of_modules_in_objects_of_layers(place):
    found = []
    for change in (plain, functools.partial(kr.checkpointed, **place)):
        keras.utils.set_random_seed(0)
        holder = types.SimpleNamespace(norm=nn.BatchNorm1d(8))
        inputs = keras.Input((8,))
        x = Holds(holder, name="holds")(L.Dense(8)(inputs))
        model = change(keras.Model(inputs, L.Dense(8)(x)))
        # The construction of a model calls its layers.
        holder.norm.reset_running_stats()
        model(X, training=True).sum().backward()
        found.append([holder.norm.running_mean, holder.norm.num_batches_tracked])
    assert found[0][1] == 1
    assert_equal(*found)


class Replaces(nn.Module):
    """Puts another tensor in the place of its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        self.scale = self.scale * 2
        return torch.sin(x * self.scale)


def test_a_buffer_that_a_call_replaces():
    found = []
    for around in (plain, kr.checkpoint):
        module, x = Replaces(), X.clone().requires_grad_()
        around(module)(x).sum().backward()
        found.append([x.grad, module.scale])
    assert found[0][1] == 2
    assert_equal(*found)


def test_parameters_of_a_functional_call():
    """A step of MAML: the second call differentiates through weights that the first one made."""
    found = []
    for around in (plain, kr.checkpoint):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

        class Outer(nn.Module):
            def __init__(self, body, around):
                super().__init__()
                self.body, self.around = body, around

            def forward(self, x):
                return self.around(self.body)(x)

        outer = Outer(body, around)
        slow = dict(outer.named_parameters())
        loss = torch.func.functional_call(outer, slow, (X,)).pow(2).mean()
        steps = torch.autograd.grad(loss, list(slow.values()), create_graph=True)
        fast = {name: value - 0.5 * step for (name, value), step in zip(slow.items(), steps)}
        loss = torch.func.functional_call(outer, fast, (X + 1,)).pow(2).mean()
        found.append(gradients_of(loss, slow.values()))
    assert_equal(*found)


def network(number=6):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((8,)), *(L.Dense(8, "gelu", name=f"d{n}") for n in range(number))]
    )


def test_a_bias_that_is_assigned_before_the_backward_pass():
    """Plain autograd needs no bias, and a replay does."""
    model = kr.checkpointed(network(), every=2)
    loss = model(X, training=True).sum()
    for layer in model.layers:
        if layer.name == "d1":
            layer.bias.assign(layer.bias + 1)
    with pytest.raises(ReplayError, match=r"a weight float32\[8\] was changed between"):
        loss.backward()


def test_a_large_frozen_weight_that_is_assigned_before_the_backward_pass():
    inputs = keras.Input((8,))
    x = L.Dense(300, "tanh")(inputs)
    frozen = L.Dense(300, "tanh", name="frozen", trainable=False)
    model = kr.checkpointed(keras.Model(inputs, L.Dense(1)(frozen(x))), at=["frozen"])
    loss = model(X, training=True).sum()
    frozen.kernel.assign(frozen.kernel * 2)
    with pytest.raises(ReplayError, match=r"a weight float32\[300,300\] was changed between"):
        loss.backward()


@pytest.mark.parametrize("where", ["in the module", "closed over"])
def test_a_table_that_is_changed_before_the_backward_pass(where):
    table, last = nn.Embedding(10, 8), nn.Linear(8, 8)
    rows = torch.arange(10)
    if where == "in the module":
        block = nn.Sequential(table, last, nn.Tanh())
    else:
        weight = table.weight

        def block(rows):
            return torch.tanh(last(nn.functional.embedding(rows, weight)))

    loss = kr.checkpoint(block)(rows).sum()
    with torch.no_grad():
        table.weight.mul_(2)
    with pytest.raises(ReplayError, match=r"a weight float32\[10,8\] was changed between"):
        loss.backward()


def test_a_weight_whose_values_are_swapped():
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    loss = kr.checkpoint(block)(X).sum()
    block[0].weight.data = block[0].weight.data * 2
    with pytest.raises(ReplayError, match=r"a weight float32\[8,8\] was changed between"):
        loss.backward()


def test_a_weight_that_the_call_did_not_read_may_change():
    """The method's object holds two networks, and one of them is trained in between."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def step(self, x):
            return torch.tanh(self.one(x))

    found = []
    for around in (plain, kr.checkpoint):
        torch.manual_seed(0)
        two = Two()
        loss = around(two.step)(X).sum()
        with torch.no_grad():
            two.other.weight.mul_(2)
        loss.backward()
        found.append([two.one.weight.grad])
    assert_equal(*found)


@pytest.mark.parametrize("first", [True, False])
def test_what_needs_gradients_may_change_before_the_backward_pass(first):
    """A GAN freezes its discriminator while the generator is trained."""
    found = []
    for around in (plain, kr.checkpoint):
        torch.manual_seed(0)
        generator = nn.Linear(8, 8)
        judge = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        judge.requires_grad_(first)
        loss = around(judge)(generator(X)).sum()
        judge.requires_grad_(not first)
        loss.backward()
        assert all(each.requires_grad is not first for each in judge.parameters())
        found.append([generator.weight.grad])
    assert_equal(*found)


@pytest.mark.parametrize("first", [True, False])
def test_a_model_may_be_frozen_before_the_backward_pass(first):
    """Frozen, a batch norm computes with other statistics."""
    found = []
    for change in (plain, functools.partial(kr.checkpointed, every=2)):
        keras.utils.set_random_seed(0)
        inputs = x = keras.Input((8,))
        for _ in range(4):
            x = L.BatchNormalization()(L.Dense(8, "gelu")(x))
        model = change(keras.Model(inputs, x))
        model.trainable = first
        x = X.clone().requires_grad_()
        loss = (model(x, training=True) ** 3).sum()
        model.trainable = not first
        loss.backward()
        assert all(layer.trainable is not first for layer in model.layers)
        found.append([x.grad])
    assert_equal(*found)
