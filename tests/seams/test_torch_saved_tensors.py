"""What PyTorch's stack of hooks for saved tensors must do; where PyTorch is installed."""

import pytest

torch = pytest.importorskip("torch")

from keras_recompute.seams.torch.saved_tensors import (  # noqa: E402
    hooks_are_allowed,
    keeps_graph,
    permuted_leaf,
    push_hooks,
    push_hooks_below,
    remove_hooks,
    top_hooks,
)


def hooks(name, seen):
    return (lambda tensor: seen.append(name) or tensor), (lambda tensor: tensor)


@pytest.fixture
def seen():
    assert top_hooks() is None
    yield []
    assert top_hooks() is None


def save():
    return torch.exp(torch.ones(2, requires_grad=True))


def test_where_hooks_are_allowed():
    seen = [hooks_are_allowed()]
    ones = torch.ones(2)
    torch.func.grad(lambda x: seen.append(hooks_are_allowed()) or x.sum())(ones)
    torch.func.vmap(lambda x: seen.append(hooks_are_allowed()) or x)(ones)
    assert seen == [True, False, True]


def test_the_uppermost_is_asked(seen):
    first, second = hooks("first", seen), hooks("second", seen)
    push_hooks(first)
    push_hooks(second)
    save()
    assert (seen, top_hooks()) == (["second"], second)
    remove_hooks(second)
    save()
    assert seen == ["second", "first"]
    remove_hooks(first)


def test_hooks_below_outlive_those_above(seen):
    below, above = hooks("below", seen), torch.autograd.graph.saved_tensors_hooks(*hooks("a", seen))
    with above:
        for _ in range(2):
            push_hooks_below(below)
        save()
    save()
    assert seen == ["a", "below"]
    remove_hooks(below)


def test_hooks_are_removed_from_below(seen):
    below, above = hooks("below", seen), hooks("above", seen)
    push_hooks(below)
    push_hooks(above)
    remove_hooks(below)
    assert top_hooks() == above
    remove_hooks(above)


@pytest.mark.usefixtures("seen")
def test_hooks_are_removed_while_they_run():
    kept = []

    def pack(tensor):
        remove_hooks(kept[0])
        return tensor

    kept.append((pack, lambda tensor: tensor))
    for _ in range(10):
        push_hooks(kept[0])
        save().sum().backward()


def test_transforms_refuse_hooks(seen):
    def function(x):
        push_hooks(hooks("first", seen))
        return x.sum()

    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(function)(torch.ones(2))


def test_a_copy_of_a_leaf_in_another_order_of_axes():
    leaf = torch.nn.Parameter(torch.ones(2, 3, 4))
    copy = leaf.permute(2, 0, 1).contiguous()
    found, order = permuted_leaf(copy)
    assert found is leaf
    assert order == (2, 0, 1)
    for other in (leaf, leaf.permute(2, 0, 1), leaf.clone(), (leaf + 1).permute(2, 0, 1).clone()):
        assert permuted_leaf(other) is None


def test_a_backward_pass_says_whether_it_keeps_the_graph():
    found = []
    x = torch.ones(3, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda _: found.append(keeps_graph()))
    y = x.sum()
    y.backward(retain_graph=True)
    y.backward()
    assert found == [True, False]
