"""Recomputation of pure functions on JAX, so that the saving is real on every device.

``jax.checkpoint`` puts an optimization barrier before the replay. XLA for GPUs and TPUs keeps it
until it has scheduled. XLA for CPUs drops it before, merges the replay with the forward pass, and
saves nothing. There the replay stands in a branch instead. A branch is compiled on its own, so
nothing in it is merged or started early. Its predicate, of the incoming gradient, is that of
``jax_fence``.

Source: JAX's documentation of ``jax.checkpoint`` and ``jax.custom_vjp``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import jaxpr_as_fun

from ..op_names import parse_op_name
from ..seams.jax.flash_attention import checked_for_gradients
from ..seams.jax.tracing import is_mapped_here, is_pulled_back, runs_at_once
from ..user_code import warn_user
from . import jax_fence
from .jax_convolutions import Function, has_convolutions, with_fast_convolutions
from .jax_early_work import EarlyWork, last_call, note_call
from .jax_equations import names_marked
from .jax_fence import drops_barriers, is_differentiable, is_usual
from .jax_grouped_convolutions import convolutions_by_group
from .jax_random_draws import with_separate_draws

Arrays = Sequence[jax.Array]


named_scope = jax.named_scope
read_after = jax_fence.read_after


class CallState:
    """Nothing: no replay runs Python."""

    def __init__(self, *_: Any) -> None:
        pass

    forward = replay = staticmethod(contextlib.nullcontext)


def updates_of(_: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context that does nothing: the compiler orders updates."""
    return contextlib.nullcontext()


def backward_follows(_: Any) -> bool:
    """Whether the backward pass begins right behind the call of a model: that is not known."""
    return False


def saves_activations_alone(_: Any) -> bool:
    """Whether the step saves nothing by the order of its updates: XLA orders them in any step."""
    return True


def kernels_laid_out_again() -> contextlib.AbstractContextManager[None]:
    """Return a context that does nothing: the compiler decides on layouts."""
    return contextlib.nullcontext()


def leaner_convolutions() -> contextlib.AbstractContextManager[None]:
    """Return a context in which Keras's grouped convolutions take less memory on a CPU."""
    return convolutions_by_group() if drops_barriers() else contextlib.nullcontext()


def is_plain_module(_: Any) -> bool:
    """Whether it is a module of PyTorch that is no layer: there is none here."""
    return False


def may_be_differentiated(values: Arrays) -> bool:
    """Whether what follows from ``values`` may be: without a trace nothing is differentiated."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


def snapshot(value: jax.Array) -> jax.Array:
    """Return ``value`` as it is now: arrays never change."""
    return value


def kept(value: jax.Array) -> jax.Array:
    """Return ``value``, that of a variable, for replays: an assignment changes no array."""
    return value


def assigned(_: jax.Array, value: Any) -> Any:
    """Return ``value`` as a variable has it: gradients go through, as in Keras's own step."""
    return value


def flatten(nest: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the leaves of a pytree, and a function that puts leaves in their places."""
    leaves, structure = jax.tree.flatten(nest)
    return leaves, structure.unflatten


def unshare(_: Any) -> None:
    """Do nothing: an assignment to a variable gives it another array."""


def recomputed(
    function: Function,
    *,
    name: str,
    layers: Sequence[Any] = (),  # noqa: ARG001
    policy: Any = None,
    check_marks: Callable[[Iterable[str]], None] | None = None,
) -> Function:
    """Return ``function`` of arrays, whose intermediate values are made again for its gradient.

    ``function`` is pure and takes and returns a flat list of arrays, dense or sparse. Gradients of
    any order are those of ``function``. On a CPU forward-mode differentiation is refused by JAX.
    ``name`` is the scope of the backward pass in the names of operations. ``layers``, which it
    calls, make no difference on JAX. ``policy`` is one of JAX's; without one nothing is saved.
    ``check_marks`` is called with the names that values are marked with.
    """

    def call(*values: Any) -> list[Any]:
        # A sparse array is a pytree of dense ones, which alone can wait and be kept.
        arrays, pack = flatten(values)
        packs = []

        def of_arrays(*arrays: jax.Array) -> list[jax.Array]:
            results, pack_results = flatten(function(*pack(arrays)))
            packs.append(pack_results)
            return results

        results = _recomputed_arrays(of_arrays, name, policy, check_marks)(*arrays)
        return packs[-1](results)

    return call


def _recomputed_arrays(
    function: Function,
    name: str,
    policy: Any,
    check_marks: Callable[[Iterable[str]], None] | None = None,
) -> Function:
    """Return what ``recomputed`` does, of dense arrays alone."""

    def call(*values: jax.Array) -> list[jax.Array]:
        before = last_call()
        # Python runs once, as under jax.checkpoint: what it changes is not changed again.
        with leaner_convolutions(), checked_for_gradients():
            traced = with_separate_draws(jax.make_jaxpr(function)(*values))
        if check_marks is not None:
            check_marks(set(names_marked(traced.jaxpr)))

        def without_captures(*given: jax.Array) -> list[jax.Array]:
            arguments, captured = given[: len(values)], given[len(values) :]
            return list(jaxpr_as_fun(traced.replace(consts=list(captured)))(*arguments))

        given = (*values, *traced.consts)
        on_cpu = drops_barriers()
        axes = _axes_of_vmap(traced) if on_cpu else []
        if on_cpu and is_mapped_here(given) and len(axes) <= 1:
            return _mapped_first(without_captures, name, policy, axes)(*given)
        early = EarlyWork(traced.jaxpr, given, before)
        if on_cpu and not axes:
            convolves = has_convolutions(traced.jaxpr)
            in_branch = _in_branch_with_fast_convolutions if convolves else _in_branch
            run_gradient = _plainly_outside_of_jit(in_branch)
            run = _with_gradient_by(run_gradient, without_captures, name, policy, early.delayed)
        else:
            if axes:
                warn_user(
                    f"{parse_op_name(name)[1]!r} uses the axis {axes[0]!r} of jax.vmap, which JAX "
                    "does not name in its gradient on a CPU. It is recomputed by jax.checkpoint, "
                    "which saves no memory there. Use jax.shard_map, or put the collective outside "
                    "of the checkpoint"
                )
            run = jax.checkpoint(
                lambda *given: without_captures(*early.delayed(given)), policy=policy
            )
        results = run(*given)
        note_call(results)
        return results

    return call


def kept_in_loop(function: Function) -> Function:
    """Return ``function`` of arrays, the body of a loop that convolves, with its own gradient.

    It captures no arrays, and keeps what its gradient reads. On a CPU the convolutions of the
    gradient have the form that is fast there.
    """
    if not drops_barriers():
        return function
    everything = jax.checkpoint_policies.everything_saveable
    return _with_gradient_by(_at_once_with_fast_convolutions, function, "", everything)


def _mapped_first(
    function: Function, name: str, policy: Any, axes: Sequence[str]
) -> Callable[..., list[jax.Array]]:
    """Return ``function`` as it is called in ``jax.vmap``: mapped, and then recomputed as a whole.

    JAX would map the gradient of a custom VJP instead, and sum gradients of what is not mapped,
    such as weights, once it has one for each element.
    """
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def _(size: int, batched: Sequence[bool], *given: jax.Array) -> tuple[list[jax.Array], Any]:
        places = [0 if each else None for each in batched]
        named = axes[0] if axes else None
        whole = jax.vmap(function, in_axes=places, axis_size=size, axis_name=named)
        results = _recomputed_arrays(whole, name, policy)(*given)
        return results, [True] * len(results)

    return mapped


def _axes_of_vmap(traced: Any) -> list[str]:
    """Return the named axes that a jaxpr reduces along, but for those of ``jax.shard_map``."""
    effects = [each for each in traced.effects if type(each).__name__ == "NamedAxisEffect"]
    mapped = jax.sharding.get_abstract_mesh().manual_axes
    return [each.name for each in effects if each.name not in mapped]


# Runs a gradient: a function of what was kept and of incoming gradients. The second function, which
# has the same types, is for a branch that is never taken.
RunGradient = Callable[[Function, Function, Any, Arrays], list[jax.Array]]


def _in_branch(gradient: Function, never: Function, kept: Any, incoming: Arrays) -> list[jax.Array]:
    return jax.lax.cond(is_usual(incoming), gradient, never, kept, incoming)


def _in_branch_with_fast_convolutions(
    gradient: Function, never: Function, kept: Any, incoming: Arrays
) -> list[jax.Array]:
    return _in_branch(with_fast_convolutions(gradient), never, kept, incoming)


def _at_once_with_fast_convolutions(
    gradient: Function, _: Function, kept: Any, incoming: Arrays
) -> list[jax.Array]:
    return with_fast_convolutions(gradient)(kept, incoming)


def _plainly_outside_of_jit(run_gradient: RunGradient) -> RunGradient:
    """Return ``run_gradient``, or the plain gradient where operations run one by one.

    There no operation is merged with another or begins early, and JAX would compile and keep the
    branch of every call.
    """

    def run(gradient: Function, never: Function, kept: Any, incoming: Arrays) -> list[jax.Array]:
        if runs_at_once():
            return gradient(kept, incoming)
        return run_gradient(gradient, never, kept, incoming)

    return run


def _pulled_back(
    run_gradient: RunGradient, pull_back: Any, gradients: Sequence[Any], asked: Sequence[int]
) -> list[jax.Array]:
    """Return what ``pull_back`` makes of ``gradients``, computed once those ``asked`` are there."""
    incoming = [gradients[number] for number in asked]

    def pulled(pull_back: Any, incoming: Arrays) -> list[jax.Array]:
        known = dict(zip(asked, incoming))
        whole = []
        # Made here, since a branch is given no zeros of the type that stands for no gradient.
        for number, gradient in enumerate(gradients):
            whole.append(known[number] if number in known else _zero_like(gradient))
        return list(pull_back(whole))

    def never_taken(*given: Any) -> list[jax.Array]:
        # Not by shape alone: inside shard_map a type also has the axes along which it varies.
        return list(map(jnp.zeros_like, jax.eval_shape(pulled, *given)))

    return run_gradient(pulled, never_taken, pull_back, incoming)


def _zero_like(zero: Any) -> Any:
    """Return a symbolic zero as an array."""
    is_gradient = zero.dtype == jax.dtypes.float0
    return np.zeros(zero.shape, zero.dtype) if is_gradient else jnp.zeros(zero.shape, zero.dtype)


def _numbers_differentiated(given: Sequence[Any]) -> list[int]:
    """Return the numbers of the arguments of a custom VJP by which JAX differentiates."""
    return [n for n, each in enumerate(given) if each.perturbed and is_differentiable(each.value)]


def _with_values(values: Arrays, numbers: Sequence[int], new: Arrays) -> list[jax.Array]:
    replaced = list(values)
    for number, value in zip(numbers, new):
        replaced[number] = value
    return replaced


def _with_gradient_by(
    run_gradient: RunGradient,
    function: Function,
    name: str,
    policy: Any,
    delayed: Callable[[Arrays], Arrays] = list,
) -> Function:
    """Return ``function``, which captures nothing, with a gradient that ``run_gradient`` runs.

    Kept are the arguments, or what JAX saves by a ``policy``. The forward pass computes with the
    ``delayed`` arguments.
    """
    # Numbers of the arguments by which JAX differentiates, and the number of all arguments.
    differentiated: list[int] = []
    count = 0

    def forward(*given: Any) -> tuple[list[jax.Array], Any]:
        nonlocal count
        # Not by frozen weights and statistics: a branch would compute gradients that nobody reads.
        differentiated[:] = _numbers_differentiated(given)
        count = len(given)
        values = tuple(each.value for each in given)
        if policy is None:
            # Differentiated again, as for a second derivative, it would keep what it computes.
            run = function
            if is_pulled_back(values):
                run = _with_gradient_by(run_gradient, function, name, None)
            return run(*delayed(values)), values

        def of_these(*chosen: jax.Array) -> list[jax.Array]:
            return function(*delayed(_with_values(values, differentiated, chosen)))

        # The function that JAX returns is a pytree: its leaves are what the policy saves.
        saving = jax.checkpoint(of_these, policy=policy)
        return jax.vjp(saving, *(values[number] for number in differentiated))

    def backward(kept: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        found: list[Any] = [None] * count
        # Outputs that nothing differentiates have a symbolic zero.
        asked = [n for n, g in enumerate(gradients) if not isinstance(g, SymbolicZero)]
        if asked and differentiated:
            with jax.named_scope(name) if name else contextlib.nullcontext():
                if policy is None:
                    incoming = [gradients[number] for number in asked]
                    made = _replayed(
                        run_gradient, function, kept, incoming, asked, differentiated, name
                    )
                else:
                    made = _pulled_back(run_gradient, kept, gradients, asked)
            for number, gradient in zip(differentiated, made):
                found[number] = gradient
        return tuple(found)

    with_gradient = jax.custom_vjp(function)
    with_gradient.defvjp(forward, backward, symbolic_zeros=True)
    return with_gradient


def _replayed(
    run_gradient: RunGradient,
    function: Function,
    values: Arrays,
    incoming: Arrays,
    asked: Sequence[int],
    floating: Sequence[int],
    name: str,
) -> list[jax.Array]:
    """Return the gradients of the ``floating`` values, computed once ``incoming`` are there.

    ``incoming`` are those of the outputs ``asked``.
    """

    def gradients(values: Arrays, incoming: Arrays) -> list[jax.Array]:
        def outputs(*differentiated: jax.Array) -> list[jax.Array]:
            results = function(*_with_values(values, floating, differentiated))
            return [results[number] for number in asked]

        _, pull_back = jax.vjp(outputs, *(values[number] for number in floating))
        return list(pull_back(list(incoming)))

    def never_taken(values: Arrays, _: Arrays) -> list[jax.Array]:
        return [jnp.zeros_like(values[number]) for number in floating]

    def run(*given: jax.Array) -> list[jax.Array]:
        kept, coming = given[: len(values)], given[len(values) :]
        return run_gradient(gradients, never_taken, list(kept), list(coming))

    if is_pulled_back((*values, *incoming)):
        # A second derivative would keep what the branch computes. So it is recomputed too.
        run = _with_gradient_by(run_gradient, run, name, None)
    return run(*values, *incoming)
