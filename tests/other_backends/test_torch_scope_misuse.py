"""What a scope on PyTorch cannot make again, and scopes, hooks and modes that are left wrongly.

Each is an error that says what to do, or PyTorch's own; a gradient is never a wrong one.
"""

import gc
import threading

import numpy as np
import pytest
import torch
from torch_storages import Operations, tensors_alive

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, ReplayError
from keras_recompute.keras_backend import torch_scopes
from keras_recompute.seams.torch.saved_tensors import top_hooks


def leaf(*size):
    return torch.linspace(0.1, 1, int(np.prod(size))).reshape(size).requires_grad_()


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    gc.collect()
    torch.exp(torch.ones(1, requires_grad=True))  # a backward pass leaves it to the next saving
    assert top_hooks() is None
    assert torch_scopes.scope_kind() is None
    assert not torch_scopes._owners


CHANGED = r"float32\[4\].*was changed in place \(it is at version 1, expected 0\).*Change a copy"
OTHER = r"float32\[4\], made inside recompute_scope\(\), has other values in the replay"


def test_what_is_read_is_changed_in_place():
    x, scale = leaf(4), torch.ones(4)
    with kr.recompute_scope():
        y = torch.exp(x * scale)
    loss = torch.sin(y).sum()
    del y
    scale.add_(1)
    with pytest.raises(ReplayError, match=CHANGED):
        loss.backward()


def test_what_was_made_is_changed_in_place():
    x = leaf(4)
    with kr.recompute_scope():
        y = torch.exp(x)
    loss = torch.sin(y).sum()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(ReplayError, match=CHANGED):
        loss.backward()


def test_what_was_made_outside_is_changed_in_place():
    """PyTorch itself looks after it only where there are no hooks."""
    x, scale = leaf(4), torch.ones(4)
    with kr.recompute_scope():
        y = x * scale
    scale.add_(1)
    with pytest.raises(ReplayError, match=CHANGED):
        y.sum().backward()


def by_data(scale):
    scale.data.add_(1)


def by_numpy(scale):
    scale.numpy()[:] = 2


def by_a_new_value(scale):
    scale.data = torch.full((4,), 2.0)


@pytest.mark.parametrize("change", [by_data, by_numpy])
def test_what_is_read_is_changed_without_a_trace(change):
    x, scale = leaf(4), torch.ones(4)
    with kr.recompute_scope():
        y = torch.exp(x * scale)
    loss = torch.sin(y).sum()
    del y
    change(scale)
    with pytest.raises(ReplayError, match=OTHER):
        loss.backward()


def test_a_new_value_is_no_change_of_the_old_one():
    x, scale = leaf(4), torch.ones(4)
    with kr.recompute_scope():
        y = torch.exp(x * scale)
    loss = torch.sin(y).sum()
    del y
    by_a_new_value(scale)
    loss.backward()
    expected = torch.cos(torch.exp(x)) * torch.exp(x)
    torch.testing.assert_close(x.grad, expected.detach())


def test_what_is_read_is_changed_inside_the_scope():
    """It is copied before, since PyTorch would save none of it."""

    def gradient(scope):
        x, state = leaf(4), torch.ones(4)
        with scope():
            y = torch.exp(x + state)
            state.mul_(2)
            z = torch.exp(y / 9 + state)
            state.zero_()
        loss = torch.sin(z).sum()
        del y, z
        return [*torch.autograd.grad(loss, x), state]

    for ours, plain in zip(gradient(kr.recompute_scope), gradient(torch.enable_grad)):
        assert torch.equal(ours, plain)


def test_a_tensor_that_is_written_past_pytorch():
    x = leaf(4)
    with kr.recompute_scope():
        mask = torch.exp(torch.zeros(4) + 1)
        mask.numpy()[:2] = 0
        y = torch.sin(x * mask)
    loss = (y * y).sum()
    del mask, y
    with pytest.raises(ReplayError, match=OTHER):
        loss.backward()


def test_a_kernel_that_fills_an_empty_tensor_is_kept():
    def gradient(scope):
        x = leaf(4)
        with scope():
            mask = torch.empty(4)
            mask.numpy()[:] = [0, 1, 0, 1]
            y = torch.sin(x * mask)
        return torch.autograd.grad((y * y).sum(), x)[0]

    assert torch.equal(gradient(kr.recompute_scope), gradient(torch.enable_grad))


CALLS = []


@torch.library.custom_op("keras_recompute_tests::impure", mutates_args=())
def impure(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    return x * float(len(CALLS))


impure.register_autograd(lambda _, gradient: gradient * len(CALLS))


@torch.library.custom_op("keras_recompute_tests::counted", mutates_args=("count",))
def counted(count: torch.Tensor) -> None:
    CALLS.append(1)
    count += 1


def test_operations_from_outside_run_once():
    CALLS.clear()
    x = leaf(4)
    with kr.recompute_scope():
        y = torch.exp(impure(torch.sin(x)))
        count = torch.exp(x.detach() * 0)
        counted(count)
        z = torch.exp(y * count)
    loss = torch.sin(z).sum()
    del y, z, count
    with Operations() as backward:
        (found,) = torch.autograd.grad(loss, x)
    assert (len(CALLS), backward.counts["exp"]) == (2, 2)
    # d sin(exp(2 exp(sin x))) / dx, where the function above says 2 for the derivative of impure.
    y = torch.exp(torch.sin(x))
    z = torch.exp(2 * y)
    torch.testing.assert_close(found, (torch.cos(z) * z * 2 * y * 2 * torch.cos(x)).detach())


def test_hooks_that_are_left_inside_a_scope():
    x = leaf(4)
    theirs = torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)
    with kr.recompute_scope():
        y = torch.exp(x)
        theirs.__enter__()
    assert top_hooks() == (theirs.pack_hook, theirs.unpack_hook)
    loss = torch.sin(y).sum()
    theirs.__exit__()
    loss.backward()
    expected = torch.cos(torch.exp(x)) * torch.exp(x)
    torch.testing.assert_close(x.grad, expected.detach())


def test_hooks_around_a_scope_are_left_before_its_value_is_used():
    x, packed = leaf(4), []
    theirs = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t)
    with theirs, kr.recompute_scope():
        y = torch.exp(x)
    with Operations() as steps:
        loss = torch.sin(y).sum()
        del y
        loss.backward()
    assert (packed, steps.counts["exp"]) == ([], 1)


def test_a_scope_that_is_never_left():
    torch.set_num_threads(1)

    def weights(enter):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scope = kr.recompute_scope()
        if enter:
            scope.__enter__()
        counts = []
        for number in range(201):
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number in (100, 200):
                counts.append(tensors_alive())
        # Each update makes six tensors that a replay would read.
        assert counts[1] < counts[0] + 300
        if enter:
            scope.__exit__(None, None, None)
        return [parameter.detach() for parameter in model.parameters()]

    for ours, plain in zip(weights(True), weights(False)):
        assert torch.equal(ours, plain)


def test_scopes_are_left_in_the_reverse_order():
    outer, inner = kr.recompute_scope(), kr.keep_scope()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(InvalidArgumentError, match=r"left before keep_scope\(\) inside it.*with"):
        outer.__exit__(None, None, None)
    with pytest.raises(InvalidArgumentError, match=r"where it is not entered.*a second time"):
        inner.__exit__(None, None, None)


def test_a_scope_of_another_thread():
    scope, errors = kr.recompute_scope(), []

    def leave():
        try:
            scope.__exit__(None, None, None)
        except InvalidArgumentError as error:
            errors.append(str(error))

    with scope:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert "in another thread" in errors[0]


def test_a_value_whose_last_use_is_in_another_thread():
    x = leaf(4)
    with kr.recompute_scope():
        y = torch.exp(x)
    losses = []
    thread = threading.Thread(target=lambda y: losses.append(torch.sin(y).sum()), args=(y,))
    thread.start()
    thread.join()
    del y
    losses.pop().backward()
    expected = torch.cos(torch.exp(x)) * torch.exp(x)
    torch.testing.assert_close(x.grad, expected.detach())


def test_a_dispatch_mode_that_is_left_inside():
    mode = Operations()
    line = "before a TorchDispatchMode that was entered"
    with pytest.raises(InvalidArgumentError, match=line), kr.recompute_scope():
        mode.__enter__()
    mode.__exit__(None, None, None)
    # Ours is left behind, where it does nothing.
    ours = torch_scopes.current_mode()
    x = leaf(4)
    torch.exp(x).sum().backward()
    assert torch.equal(x.grad, torch.exp(x))
    ours.__exit__(None, None, None)


def test_an_error_inside_leaves_nothing():
    with pytest.raises(ZeroDivisionError), kr.recompute_scope():
        torch.exp(leaf(4) / (1 // 0))


def compiled(x):
    with kr.recompute_scope():
        y = torch.exp(x)
    return torch.sin(y).sum()


def test_a_program_of_torch_compile_runs_without_compilation():
    torch._dynamo.reset()
    x = leaf(4)
    (found,) = torch.autograd.grad(torch.compile(compiled, backend="eager")(x), x)
    (wanted,) = torch.autograd.grad(compiled(x), x)
    assert torch.equal(found, wanted)


def test_a_whole_program_of_torch_compile_is_refused_in_one_line():
    line = r"recompute_scope\(\) and keep_scope\(\) cannot be part of a program that torch.compile"
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=line):
        torch.compile(compiled, backend="eager", fullgraph=True)(leaf(4))


def test_transforms_that_allow_no_hooks_say_so_themselves():
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(compiled)(torch.ones(4))
