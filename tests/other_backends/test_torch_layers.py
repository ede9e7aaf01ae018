"""Recurrent and attention layers on PyTorch against Keras's: results, every gradient, memory."""

import keras
import numpy as np
import pytest
import torch

import keras_recompute as kr
from keras_recompute.layers.torch_attention import attention

BATCH, TIME, FEATURES, UNITS = 3, 6, 5, 4
CELLS = {
    "lstm": ("LSTM", {}),
    "gru-after": ("GRU", {"reset_after": True}),
    "gru-before": ("GRU", {"reset_after": False}),
}
CELL = pytest.mark.parametrize("cell", CELLS)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X = numbers(BATCH, TIME, FEATURES)


def pair(name, *arguments, shapes=(X.shape,), **options):
    """Return our layer and Keras's with the same weights, not even the bias zero."""
    layers = [getattr(home, name)(*arguments, **options) for home in (kr, keras.layers)]
    for layer in layers:
        layer.build(*shapes)
        for number, variable in enumerate(layer.trainable_variables):
            variable.assign(numbers(*variable.shape, seed=1 + number) / 2)
    return layers


def recurrent(cell, **options):
    name, extra = CELLS[cell]
    return pair(name, UNITS, **{"return_sequences": True, "return_state": True, **extra, **options})


def states_for(cell):
    return [numbers(BATCH, UNITS, seed=20 + n) for n in range(2 if cell == "lstm" else 1)]


def results(layer, *given, around=lambda call: call, passes=1, **options):
    """Return results and the gradients of weights and inputs; ``passes`` add up."""
    given = [torch.tensor(each, requires_grad=True) for each in given]

    def call(*given):
        x, *states = given
        state = {"initial_state": list(states)} if states else {}
        return keras.tree.flatten(layer(x, **state, **options))

    made = around(call)(*given)
    loss = sum((torch.sin(each) * torch.tensor(numbers(*each.shape))).sum() for each in made)
    layer.zero_grad()
    for number in range(passes):
        loss.backward(retain_graph=number + 1 < passes)
    variables = [variable.value for variable in layer.trainable_variables]
    return [each.detach() for each in made] + [each.grad for each in (*variables, *given)]


def assert_near(found, wanted, tolerance=1e-6):
    for ours, plain in zip(found, wanted, strict=True):
        scale = max(1.0, float(plain.abs().max()))
        np.testing.assert_allclose(ours, plain, rtol=0, atol=tolerance * scale)


@CELL
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_sequences": False},
        {"go_backwards": True, "return_state": False},
        {"use_bias": False},
    ],
    ids=str,
)
def test_results_and_gradients(cell, options):
    ours, plain = recurrent(cell, **options)
    assert_near(*(results(layer, X, *states_for(cell)) for layer in (ours, plain)))


@CELL
def test_a_second_backward_pass_adds_the_same(cell):
    """The backward loop writes over what was saved, unless another pass may come."""
    ours, plain = recurrent(cell)
    assert_near(*(results(layer, X, passes=2) for layer in (ours, plain)))


@CELL
def test_in_a_checkpoint(cell):
    ours, plain = recurrent(cell)

    def around(call):
        return lambda *given: torch.utils.checkpoint.checkpoint(call, *given, use_reentrant=False)

    assert_near(results(ours, X, around=around), results(plain, X))
    assert_near(results(ours, X, around=kr.checkpoint), results(plain, X))


def test_half_precision_and_inference():
    ours, plain = recurrent("lstm", dtype="mixed_bfloat16")
    with torch.no_grad():
        found, wanted = (keras.tree.flatten(layer(X)) for layer in (ours, plain))
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype is torch.bfloat16
        np.testing.assert_allclose(a.float(), b.float(), atol=0.02)


def saved_bytes(layer, x):
    """Return what a call saves for its gradient beside its weights and input."""
    sizes = {}

    def pack(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    for known in (x, *(variable.value for variable in layer.variables)):
        sizes.pop(known.untyped_storage().data_ptr(), None)
    return sum(size for size, _ in sizes.values())


def test_an_lstm_saves_gates_cells_and_outputs():
    """Of each unit and step: four gates, the cell and the output. Keras's keeps more."""
    x = torch.ones((2, 32, 64))
    ours, plain = pair("LSTM", 64, shapes=((2, 32, 64),), return_sequences=True)
    sequence = 2 * 32 * 64 * 4
    assert saved_bytes(ours, x) <= 6.1 * sequence
    assert saved_bytes(plain, x) > 7.9 * sequence


QUERIES = (2, 5, 6)


class SelfAttention(keras.layers.Layer):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer(x, x, use_causal_mask=True)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, {}),
        ({"use_bias": False}, {"use_causal_mask": True}),
        ({}, {"attention_mask": np.tri(5, dtype=bool)[::-1][None].copy()}),
        ({}, {"attention_mask": np.array([[0, 0, 0, 0, 0]] + 4 * [[1, 0, 1, 1, 0]], bool)[None]}),
        ({"sliding_window": 2}, {"use_causal_mask": True}),
        ({"dropout": 0.5, "seed": 3}, {"training": True}),
        ({}, {"return_attention_scores": True, "use_causal_mask": True}),
    ],
    ids=str,
)
def test_attention_is_that_of_keras(arguments, options):
    layers = pair("MultiHeadAttention", 3, 4, shapes=(QUERIES, QUERIES), **arguments)
    x = torch.tensor(numbers(*QUERIES))
    assert_near(*(results(layer, numbers(*QUERIES), value=x, **options) for layer in layers))


def test_attention_of_one_sequence_to_itself():
    layers = pair("MultiHeadAttention", 3, 4, shapes=(QUERIES, QUERIES))
    assert_near(*(results(SelfAttention(layer), numbers(*QUERIES)) for layer in layers))


def test_attention_keeps_no_probabilities():
    """Of 512 queries and keys and 2 heads they would take 2 MiB; queries to results 256 KiB."""
    query, key, value = (torch.ones((1, 512, 2, 64), requires_grad=True) for _ in range(3))
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with hooks:
        attention(query, key, value, None, scale=0.1)
    assert max(each.numel() for each in kept) == 512 * 2 * 64
