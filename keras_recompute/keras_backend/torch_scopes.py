"""Scopes on PyTorch: values made inside are computed again in the backward pass, or kept.

A dispatch mode records the operations inside. Autograd asks hooks for what it saves: what was made
inside is a handle on the recording, and everything else is kept, as without hooks. As long as a
value that was made inside is alive, later operations may save it, so that the hooks stay behind the
scope. Then they stand below all others: PyTorch asks only the uppermost, and whoever entered hooks
around the scope leaves them as if ours were not there.

In a function of ``kr.checkpoint`` they record nothing (``CheckpointedRegion``).

Source: the scope of RETURNN (``returnn.torch.util.gradient_checkpoint``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ..errors import InvalidArgumentError
from ..seams.torch.operations import (
    TorchDispatchMode,
    current_mode,
    is_fake,
    without_modes,
)
from ..seams.torch.saved_tensors import (
    Hooks,
    push_hooks,
    push_hooks_below,
    remove_hooks,
    top_hooks,
)
from .torch_recording import Handle, Recording
from .torch_values import Kept, storage_of

RECOMPUTE, KEEP = "recompute_scope", "keep_scope"
_not_compiled = torch.compiler.disable(
    reason="recompute_scope() and keep_scope() cannot be part of a program that torch.compile "
    "makes whole, which decides by itself what it computes again. Compile without fullgraph=True, "
    "compile the functions that are called inside the scope, or leave the scope out"
)


def recompute_scope() -> Scope:
    """Return a context: what is made inside is not stored, but made again in the backward pass.

    Also where it is read after the scope. Inner scopes belong to the outer one's recording, and the
    innermost decides.

    Raises:
        InvalidArgumentError: When scopes are not left in the reverse order, in their thread.
    """
    return Scope(RECOMPUTE)


def keep_scope() -> Scope:
    """Return a context: what is made inside a ``recompute_scope`` is stored all the same.

    Raises:
        InvalidArgumentError: When scopes are not left in the reverse order, in their thread.
    """
    return Scope(KEEP)


class Scope(contextlib.ContextDecorator):
    """A scope of the kind ``RECOMPUTE`` or ``KEEP``, which can be entered more than once."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @_not_compiled
    def __enter__(self) -> None:
        _here.remove_unused_hooks()
        # An inner scope needs nothing of its own: the recording, or a policy, asks for its kind.
        around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if _here.region is None and self.kind == RECOMPUTE and _here.session is None:
            around = _Session()
        elif _here.region is not None and self.kind == KEEP:
            around = _here.region.keeping()
        around.__enter__()
        _here.entered.append((self, around))

    @_not_compiled
    def __exit__(self, *_: Any) -> None:
        inner = []
        while _here.entered:
            scope, around = _here.entered.pop()
            around.__exit__(None, None, None)
            if scope is self:
                break
            inner.append(scope.kind)
        else:
            raise InvalidArgumentError(
                f"{self.kind}() was left where it is not entered: in another thread, a second "
                "time, or after a scope around it. Enter and leave scopes by with statements"
            )
        if inner:
            raise InvalidArgumentError(
                f"{self.kind}() was left before {inner[-1]}() inside it, and so both are left. "
                "Enter and leave scopes by with statements, and not across a generator's yield"
            )


def scope_kind() -> str | None:
    """Return the kind of the innermost scope, or None outside of all."""
    return _here.entered[-1][0].kind if _here.entered else None


class CheckpointedRegion:
    """A function that ``torch.utils.checkpoint`` runs again whole, with scopes in it.

    They record nothing. With ``has_policy`` its policy asks for their kind. Otherwise what is made
    inside a ``keep_scope`` is kept here, by a policy of its own.
    """

    def __init__(self, function: Callable[..., Any], *, has_policy: bool) -> None:
        self._function, self._has_policy = function, has_policy
        # Of each keep_scope, in the order of running, what gives its values to a replay.
        self._replays: list[Any] = []
        self._position = 0

    def __call__(self, *args: Any) -> Any:
        before = _here.entered, _here.region
        _here.entered, _here.region, self._position = [], self, 0
        try:
            return self._function(*args)
        finally:
            _here.entered, _here.region = before

    def keeping(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context that a ``keep_scope`` stands for in this run."""
        inner = any(scope.kind == KEEP for scope, _ in _here.entered)
        if inner or self._has_policy:
            return contextlib.nullcontext()
        self._position += 1
        if self._position <= len(self._replays):
            replay: contextlib.AbstractContextManager[Any] = self._replays[self._position - 1]
            return replay
        forward, replay = create_selective_checkpoint_contexts(scope_policy)
        self._replays.append(replay)
        return forward


def scope_policy(*_: Any, **__: Any) -> CheckpointPolicy:
    """Return what selective checkpointing does with an operation of the innermost scope."""
    is_kept = scope_kind() == KEEP
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


class _Session(contextlib.AbstractContextManager[None]):
    """The outermost scope while it is entered: its recording, its dispatch mode and its hooks."""

    def __init__(self) -> None:
        self.recording = Recording(_here.release, _owners)
        outer = top_hooks()
        # Ours, from behind an earlier scope, do what these do.
        self._hooks = _Hooks(None if outer == _below.pair else outer)
        self._mode = _RecordingMode(self.recording)

    def __enter__(self) -> None:
        # First what may be refused, such as by torch.func.grad.
        push_hooks(self._hooks.pair)
        self._mode.__enter__()
        _here.session = self

    def __exit__(self, *_: Any) -> None:
        _here.session = None
        # Not the uppermost: another library may have left hooks above ours.
        remove_hooks(self._hooks.pair)
        self.recording.close()
        if self.recording.slots:
            _here.keep_hooks_for(self.recording)
        if current_mode() is not self._mode:
            # It stays, and passes every operation on.
            raise InvalidArgumentError(
                "recompute_scope() was left before a TorchDispatchMode that was entered inside it. "
                "Leave that mode first, or enter it around the scope"
            )
        self._mode.__exit__(None, None, None)


class _RecordingMode(TorchDispatchMode):
    """Shows every operation to a recording, while its session is entered."""

    supports_higher_order_operators = True

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        # Not the session, which holds this mode: what refers to itself is freed late.
        self._recording = recording

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        session, kwargs = _here.session, kwargs or {}
        if session is None or session.recording is not self._recording or _here.in_hooks:
            return operation(*args, **kwargs)
        return self._recording.run(operation, args, kwargs, recompute=scope_kind() != KEEP)


class _Hooks:
    """Hooks for what autograd saves; ``outer`` are those that saw it before."""

    def __init__(self, outer: Hooks | None) -> None:
        self._outer = outer

    @property
    def pair(self) -> Hooks:
        """What PyTorch calls to save a tensor, and to have it back."""
        return self._pack, self._unpack

    @_not_compiled
    def _pack(self, tensor: torch.Tensor) -> Any:
        # Fake tensors are made by a mode.
        modes = contextlib.nullcontext() if is_fake(tensor) else without_modes()
        with _here.inside_hooks(), modes:
            storage = storage_of(tensor)
            owner = None if storage is None else _owners.get(id(storage))
            handle = None if owner is None else owner.handle(tensor)
            if handle is not None:
                return handle
            if self is _below:
                # The last value may have gone in a backward pass, which has hooks of its own.
                _here.remove_unused_hooks()
            if self._outer is None:
                return Kept(tensor)
        return _Packed(self._outer, self._outer[0](tensor))

    @_not_compiled
    def _unpack(self, packed: Handle | Kept | _Packed) -> torch.Tensor:
        Recording.reads += 1
        with _here.inside_hooks():
            return packed.value()


class _Packed:
    """What the hooks around a scope made of a tensor."""

    def __init__(self, hooks: Hooks, packed: Any) -> None:
        self._hooks, self._packed = hooks, packed

    def value(self) -> torch.Tensor:
        value: torch.Tensor = self._hooks[1](self._packed)
        return value


class _Thread(threading.local):
    """What is entered in this thread, and whether hooks are left for values that are alive."""

    def __init__(self) -> None:
        self.entered: list[tuple[Scope, contextlib.AbstractContextManager[Any]]] = []
        self.session: _Session | None = None
        self.region: CheckpointedRegion | None = None
        self.in_hooks = False
        self._alive: set[Recording] = set()

    @contextlib.contextmanager
    def inside_hooks(self) -> Iterator[None]:
        """Return a context in which nothing is recorded."""
        before, self.in_hooks = self.in_hooks, True
        try:
            yield
        finally:
            self.in_hooks = before

    def keep_hooks_for(self, recording: Recording) -> None:
        """Keep hooks, below all others, until ``recording`` has no value any more."""
        self._alive.add(recording)
        push_hooks_below(_below.pair)

    @_not_compiled
    def release(self, recording: Recording) -> None:
        """Note that no value of ``recording`` is alive."""
        self._alive.discard(recording)
        self.remove_unused_hooks()

    def remove_unused_hooks(self) -> None:
        """Remove the hooks that were kept, if there is no value that needs them."""
        # The last value may have gone in another thread.
        self._alive = {recording for recording in self._alive if recording.slots}
        if not self._alive:
            remove_hooks(_below.pair)


_owners: dict[int, Recording] = {}  # by identity of the storages that are alive
_here = _Thread()
_below = _Hooks(None)
