"""Residuals and replays on PyTorch, beside what its checkpoints keep."""

import torch
from torch.utils.checkpoint import checkpoint

import keras_recompute as kr

X = torch.linspace(0, 1, 32).reshape(8, 4)


def two(x, weight):
    return torch.tanh(torch.tanh(x @ weight) @ weight)


def test_what_a_policy_keeps_is_seen():
    weight = torch.eye(4)
    rows = kr.saved_residuals(kr.checkpoint(two, policy=kr.policies.save_matmuls), X, weight)
    # Selective checkpointing keeps them itself, not autograd.
    assert [row.origin for row in rows] == ["x", "weight", "mm", "mm"]
    assert [row.bytes for row in rows[2:]] == [8 * 4 * 4] * 2
    assert kr.replay_count(kr.checkpoint(two, policy=kr.policies.save_matmuls), X, weight) == 2
    plain = kr.saved_residuals(two, X, weight)
    assert [row.origin for row in plain] == ["x", "weight", "tanh", "tanh"]


def test_pytorch_s_own_checkpoints_are_seen_too():
    def function(x):
        return checkpoint(lambda x: torch.sin(torch.sin(torch.sin(x))), x, use_reentrant=False)

    assert [row.origin for row in kr.saved_residuals(function, X)] == ["x"]
    assert kr.replay_count(function, X) == 2


def test_modules_and_their_weights_have_names():
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Sigmoid()
    )
    means = module[1].running_mean.clone()
    rows = kr.saved_residuals(module, X)
    made = [(row.origin, row.layer, row.bytes) for row in rows if row.kind == "operation"]
    assert made == [
        ("addmm", "0", 8 * 16 * 4),
        ("native_batch_norm", "1", 16 * 4),  # means
        ("native_batch_norm", "1", 16 * 4),  # and deviations
        ("sigmoid", "2", 8 * 16 * 4),
    ]
    variables = [row.origin for row in rows if row.kind == "variable"]
    assert variables[:2] == ["0.weight", "1.weight"]
    assert torch.equal(module[1].running_mean, means)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_random_numbers_go_on_as_without():
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    kr.saved_residuals(lambda x: torch.nn.functional.dropout(x, 0.5) * x, X)
    assert torch.equal(torch.rand(3), wanted)


def test_a_nested_checkpoint_keeps_nothing_of_the_outer_one_s_replay():
    inner = kr.checkpoint(lambda x: torch.exp(torch.exp(x)))
    outer = kr.checkpoint(lambda x: inner(torch.exp(x)))
    assert [row.origin for row in kr.saved_residuals(outer, X)] == ["x"]


def test_the_bytes_are_those_of_the_allocator_s_tensors():
    """Counted over all tensors that hooks of autograd see, inputs apart."""
    packed = {}

    def pack(tensor):
        packed[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weight = torch.eye(4)
    given = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = two(given, weight)
    inputs = {given.data_ptr(), weight.data_ptr()}
    saved = sum(size for place, size in packed.items() if place not in inputs)
    rows = kr.saved_residuals(two, X, weight)
    assert sum(row.bytes for row in rows if row.kind == "operation") == saved
    assert results.shape == (8, 4)
