"""``recompute_scope`` and ``keep_scope`` on PyTorch: values to the bit, and what is not stored.

The first three are RETURNN's own tests of its scope, in their meaning.
"""

import contextlib

import keras
import numpy as np
import pytest
import torch
from scope_oracle import assert_nothing_is_left, assert_same
from torch.nn import functional as F
from torch_storages import Operations, tensors_alive

import keras_recompute as kr
from keras_recompute.keras_backend import torch_scopes

torch.set_num_threads(1)
SIZE = (101, 103)
BYTES = 101 * 103 * 4


class Noisy(torch.nn.Module):
    """A weight with noise, times the input; RETURNN's example."""

    def __init__(self, scope):
        super().__init__()
        self.scope = scope
        self.weight = torch.nn.Parameter(torch.randn(SIZE))
        self.input = torch.nn.Parameter(torch.randn(SIZE))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def noisy(self, value):
        with self.scope():
            return value + torch.randn(SIZE)

    def forward(self, x):
        return self.noisy(self.weight) * x

    def update(self, x):
        loss = self(x).sum()
        del x
        loss.backward()
        del loss
        self.optimizer.step()
        self.optimizer.zero_grad()


def trained(scope, updates, with_noisy_input=False):
    torch.manual_seed(0)
    model = Noisy(scope)
    for _ in range(updates):
        model.update(model.noisy(model.input) if with_noisy_input else model.input)
    return [parameter.detach() for parameter in model.parameters()], torch.get_rng_state()


def test_a_noisy_weight_is_freed_before_the_backward_pass_and_made_again_in_it():
    live, peaks = [], []
    for scope in (contextlib.nullcontext, kr.recompute_scope):
        torch.manual_seed(0)
        model = Noisy(scope)
        with Operations() as forward:
            loss = model(model.input).sum()
        live.append(forward.live_bytes - 4)  # without the loss
        with Operations() as backward:
            loss.backward()
        peaks.append(backward.peak_bytes)
        assert (backward.counts["randn"], backward.counts["add"]) == (len(live) - 1,) * 2
    assert live == [BYTES, 0]
    # Noise and sum; then the sum, and the gradients of both factors.
    assert peaks[1] <= peaks[0] + BYTES + 4
    assert_nothing_is_left()


def test_updates_with_noise_are_the_plain_ones():
    (weights, state), (plain, plain_state) = (
        trained(scope, 3) for scope in (kr.recompute_scope, contextlib.nullcontext)
    )
    assert_same([*weights, state], [*plain, plain_state])


def test_two_scopes_whose_values_are_alive_at_once():
    (weights, state), (plain, plain_state) = (
        trained(scope, 2, with_noisy_input=True)
        for scope in (kr.recompute_scope, contextlib.nullcontext)
    )
    assert_same([*weights, state], [*plain, plain_state])
    assert_nothing_is_left()


def test_the_last_value_goes_while_hooks_run():
    weight = torch.nn.Parameter(torch.randn(SIZE))
    for _ in range(10):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            with kr.recompute_scope():
                x = weight * torch.randn(SIZE)
            y = torch.exp(x)
            del x
            y.sum().backward()
            del y
    assert_nothing_is_left()


def test_200_updates_leave_no_tensor_behind():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5), torch.nn.Tanh()
    )
    head = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    counts = []
    for number in range(201):
        with kr.recompute_scope():
            hidden = model(torch.randn(4, 8))
        head(hidden).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del hidden
        if number in (0, 200):
            counts.append(tensors_alive())
    assert counts[0] == counts[1]
    assert_nothing_is_left()


def layers(x, weights, scope):
    for weight in weights:
        with scope():
            x = F.dropout(torch.tanh(x @ weight), 0.1)
    return x.sum()


def test_what_is_stored_of_a_small_network():
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(8)]
    x, live = torch.randn(256, 64), {}
    for name, scope in {"plain": contextlib.nullcontext, "scope": kr.recompute_scope}.items():
        with Operations() as forward:
            loss = layers(x, weights, scope)
        live[name] = forward.live_bytes
        del loss
    # Of each layer tanh, the mask and their product; in scopes the product alone, which the next
    # scope reads. And the loss.
    assert live["plain"] == (8 * 3 - 1) * 256 * 64 * 4 + 4
    assert live["scope"] == 7 * 256 * 64 * 4 + 4


def chain(*kinds):
    """Return how often the backward pass repeats each of sin, exp and tanh, one in each scope."""
    x = torch.randn(5, requires_grad=True)
    with contextlib.ExitStack() as scopes:
        for operation, kind in zip((torch.sin, torch.exp, torch.tanh), kinds):
            scopes.enter_context(kind())
            x = operation(x)
    loss = torch.sin(x).sum()
    del x
    with Operations() as backward:
        loss.backward()
    return [backward.counts[name] for name in ("sin", "exp", "tanh")]


def test_the_innermost_scope_decides():
    recompute, keep, none = kr.recompute_scope, kr.keep_scope, contextlib.nullcontext
    assert chain(none, none, none) == [0, 0, 0]
    assert chain(recompute, recompute, recompute) == [1, 1, 1]
    # The kept power needs no sine.
    assert chain(recompute, keep, recompute) == [0, 0, 1]
    assert chain(recompute, recompute, keep) == [1, 1, 0]
    assert chain(keep, none, recompute) == [0, 0, 1]


def test_what_is_alive_is_not_made_again():
    x = torch.randn(5, requires_grad=True)
    with kr.recompute_scope():
        y = torch.exp(x)
    with Operations() as backward:
        torch.sin(y).sum().backward()
    assert backward.counts["exp"] == 0
    del y
    assert_nothing_is_left()


def test_what_nothing_needs_is_freed_with_the_scope():
    x = torch.randn(1000, requires_grad=True)
    with Operations() as forward:
        with kr.recompute_scope():
            y = (torch.randn(1000) * 2.0) + x  # linear: no gradient reads them
        loss = y.sum()
        del y
        assert forward.live_bytes <= 4
    loss.backward()


def test_backward_twice_and_second_derivatives():
    def gradients(scope):
        torch.manual_seed(2)
        x = torch.randn(4, 4, requires_grad=True)
        with scope():
            y = torch.sin(F.dropout(x, 0.5) @ x)
        loss = (y * torch.exp(y)).sum()
        del y
        first = torch.autograd.grad(loss, x, retain_graph=True)
        second = torch.autograd.grad(loss, x, create_graph=True)
        with scope():
            penalty = (second[0] * second[0]).sum()
        return [*first, *second, *torch.autograd.grad(penalty, x)]

    assert_same(gradients(kr.recompute_scope), gradients(contextlib.nullcontext))


def test_a_graph_that_is_freed_is_pytorchs_own_error():
    x = torch.randn(4, requires_grad=True)
    with kr.recompute_scope():
        y = torch.exp(x)
    loss = torch.sin(y).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_no_grad_inside():
    def gradient(scope):
        x = torch.linspace(0, 1, 4).requires_grad_()
        with scope():
            with torch.no_grad():
                scale = torch.exp(x * 2)
            y = torch.sin(x) * scale
        return torch.autograd.grad((y * scale).sum(), x)

    assert_same(gradient(kr.recompute_scope), gradient(contextlib.nullcontext))
    with torch.no_grad(), kr.recompute_scope():
        torch.exp(torch.ones(3))
    with torch.inference_mode(), kr.recompute_scope():
        torch.exp(torch.ones(3))
    assert_nothing_is_left()


def test_a_scope_decorates_a_function_and_is_entered_again():
    calls = []

    @kr.recompute_scope()
    def twice(x, depth=2):
        calls.append(torch_scopes.scope_kind())
        return torch.exp(x) if depth == 1 else torch.sin(twice(x, depth - 1))

    x = torch.ones(3, requires_grad=True)
    loss = torch.sin(twice(x)).sum()
    with Operations() as backward:
        loss.backward()
    assert calls == ["recompute_scope"] * 2
    assert (backward.counts["exp"], backward.counts["sin"]) == (1, 1)
    assert torch_scopes.scope_kind() is None


def around_a_scope(x, scope):
    y = torch.sin(x * 2)
    with scope():
        z = torch.exp(y) * F.dropout(y, 0.5)
    return (z * torch.cos(z)).sum()


def as_arrays():
    """Hooks that hold what is saved as NumPy arrays."""
    pack, unpack = (lambda x: x.detach().numpy().copy()), torch.from_numpy
    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


@pytest.mark.parametrize("hooks", [torch.autograd.graph.save_on_cpu, as_arrays])
def test_hooks_around_a_scope(hooks):
    def gradient(scope):
        torch.manual_seed(4)
        x = torch.linspace(0, 1, 50).requires_grad_()
        with hooks():
            loss = around_a_scope(x, scope)
        return torch.autograd.grad(loss, x)

    assert_same(gradient(kr.recompute_scope), gradient(contextlib.nullcontext))
    assert_nothing_is_left()


def test_a_scope_inside_pytorchs_checkpoint():
    def gradient(scope):
        torch.manual_seed(4)
        x = torch.linspace(0, 1, 50).requires_grad_()
        checkpoint = torch.utils.checkpoint.checkpoint
        return torch.autograd.grad(checkpoint(around_a_scope, x, scope, use_reentrant=False), x)

    assert_same(gradient(kr.recompute_scope), gradient(contextlib.nullcontext))
    assert_nothing_is_left()


def test_a_keras_model_with_a_scope_in_a_layer():
    class Block(keras.layers.Layer):
        def __init__(self, scope):
            super().__init__()
            self.scope = scope
            self.inner = keras.layers.Dense(16, "gelu")
            self.norm, self.dropout = keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)

        def call(self, x, training=None):
            with self.scope():
                return self.dropout(self.norm(self.inner(x), training=training), training=training)

    found = []
    for scope in (contextlib.nullcontext, kr.recompute_scope):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([Block(scope), Block(scope), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        x, y = np.ones((8, 16), "float32"), np.ones((8, 1), "float32")
        losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
        found.append((losses, model.get_weights()))
    assert found[0][0] == found[1][0]
    for ours, plain in zip(found[1][1], found[0][1]):
        np.testing.assert_array_equal(ours, plain)
    assert_nothing_is_left()


def repeated_in_checkpoint(scope, policy):
    """Return how often the backward pass repeats the product, sin and exp of ``scope``."""

    def function(x, weight):
        with scope():
            x = torch.exp(torch.sin(x @ weight))
        return torch.tanh(x) * x

    gradients = []
    for call in (function, kr.checkpoint(function, policy=policy)):
        x = torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()
        loss = call(x, torch.eye(4) / 2).sum()
        with Operations() as backward:
            gradients.append(torch.autograd.grad(loss, x)[0])
    assert torch.equal(*gradients)
    counts = backward.counts
    return [counts["mm"] - 1, counts["sin"], counts["exp"]]


def test_scopes_decide_in_checkpointed_functions():
    policies, none = kr.policies, contextlib.nullcontext
    assert repeated_in_checkpoint(none, policies.save_nothing) == [1, 1, 1]
    assert repeated_in_checkpoint(kr.recompute_scope, policies.save_nothing) == [1, 1, 1]
    assert repeated_in_checkpoint(kr.keep_scope, policies.save_nothing) == [0, 0, 0]
    assert repeated_in_checkpoint(none, policies.save_matmuls) == [0, 1, 1]
    assert repeated_in_checkpoint(kr.recompute_scope, policies.save_matmuls) == [1, 1, 1]
    assert repeated_in_checkpoint(kr.keep_scope, policies.save_matmuls) == [0, 0, 0]
    # The sine is recomputed from the product that is kept on the way.
    assert repeated_in_checkpoint(kr.recompute_scope, policies.save_everything) == [1, 1, 1]
    assert_nothing_is_left()


def test_a_checkpointed_function_in_a_scope():
    function = kr.checkpoint(lambda x: F.dropout(torch.exp(torch.sin(x)), 0.5))

    def gradient(scope):
        torch.manual_seed(4)
        x = torch.linspace(0, 1, 50).requires_grad_()
        with scope():
            y = torch.tanh(function(torch.exp(x)))
        return torch.autograd.grad((y * y).sum(), x)

    assert_same(gradient(kr.recompute_scope), gradient(contextlib.nullcontext))
    assert_nothing_is_left()
