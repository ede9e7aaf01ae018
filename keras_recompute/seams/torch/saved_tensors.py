"""The stack of hooks that see what autograd saves for the backward pass.

PyTorch asks the uppermost pair alone. A backward pass has a stack of its own: what it changes there
is as before when it ends. ``torch.autograd.graph.saved_tensors_hooks`` enters and
leaves only there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C import _autograd

# What packs a tensor when it is saved, and what gives it back.
Hooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def hooks_are_allowed() -> bool:
    """Whether hooks can be set: ``torch.func.grad`` and its relatives allow none inside."""
    return bool(_autograd._saved_tensors_hooks_is_enabled())


def top_hooks() -> Hooks | None:
    """Return the hooks that PyTorch asks now."""
    hooks = _autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else (hooks[0], hooks[1])


def push_hooks(hooks: Hooks) -> None:
    """Put ``hooks`` on top.

    Raises:
        RuntimeError: From PyTorch, where a transform such as ``torch.func.grad`` allows none.
    """
    _autograd._push_saved_tensors_default_hooks(*hooks)


def push_hooks_below(hooks: Hooks) -> None:
    """Put ``hooks`` under all others, which they outlive, unless they are there already."""
    above = [each for each in _pop_all() if each != hooks]
    for each in (hooks, *reversed(above)):
        push_hooks(each)


def remove_hooks(hooks: Hooks) -> None:
    """Take ``hooks`` away, wherever they stand; the others stay in their order."""
    left = [each for each in _pop_all() if each != hooks]
    for each in reversed(left):
        push_hooks(each)


def _pop_all() -> list[Hooks]:
    """Return all hooks, the uppermost first, and leave none."""
    found = []
    while (top := top_hooks()) is not None:
        found.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    return found


def keeps_graph() -> bool:
    """Whether the backward pass that runs leaves what was saved, for another one."""
    return bool(_autograd._get_current_graph_task_keep_graph())


def permuted_leaf(tensor: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Return the leaf that ``tensor`` is a copy of, in another order of axes, and that order.

    None if it is something else.
    """
    copied = tensor.grad_fn
    if copied is None or copied.name() != "CloneBackward0":
        return None
    permuted = copied.next_functions[0][0]
    if permuted is None or permuted.name() != "PermuteBackward0":
        return None
    leaf = getattr(permuted.next_functions[0][0], "variable", None)
    return None if leaf is None else (leaf, tuple(permuted._saved_dims))
