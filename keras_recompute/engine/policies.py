"""Checkpoint policies, which decide which residuals are saved.

A policy is a value: it is named by its effect and compares equal to its like. It is any callable
that takes a value of the traced function, a symbolic ``tf.Tensor``, and returns a ``Decision`` or a
bool (True saves). The tensor describes its operation: ``value.op.type``, ``value.op.inputs``,
``value.shape``, ``value.dtype``. The policy is asked only about values that the backward pass
reads::

    checkpoint(block, policy=lambda value: value.op.type == "Conv2D")

On JAX and PyTorch the policies of this module are translated into those of the backend, and other
callables are given to ``jax.checkpoint`` or to PyTorch's selective checkpointing as they are.

Two rules override every policy on TensorFlow. The result of an operation that may not run twice is
always saved (see ``purity``). So is a shape: it has a few bytes, and would otherwise cost the
replay of its tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Union

from ..errors import InvalidArgumentError
from ..keras_backend.policy_checks import require_policy

if TYPE_CHECKING:
    import tensorflow as tf


class Decision(IntEnum):
    """What becomes of a value between forward and backward pass; of several the largest holds.

    Examples:
        >>> max(kr.policies.Decision.RECOMPUTE, kr.policies.Decision.OFFLOAD).name
        'OFFLOAD'
    """

    RECOMPUTE = 0
    OFFLOAD = 1
    SAVE = 2


# Of one value on TensorFlow; JAX and PyTorch have policies of their own, of an operation.
Policy = Callable[..., Union[Decision, bool]]


def decide(policy: Policy, value: tf.Tensor) -> Decision:
    """Return what ``policy`` says about ``value``."""
    answer = policy(value)
    return (
        answer if isinstance(answer, Decision) else Decision.SAVE if answer else Decision.RECOMPUTE
    )


@dataclass(frozen=True)
class SaveNothing:
    """Save nothing but the inputs: everything is recomputed.

    Examples:
        >>> saved = kr.checkpoint(lambda x: tf.sin(tf.sin(x)), policy=kr.policies.save_nothing)
        >>> [row.origin for row in kr.saved_residuals(saved, tf.ones(4))]
        ['x']
    """

    def __call__(self, _: tf.Tensor) -> Decision:
        return Decision.RECOMPUTE


@dataclass(frozen=True)
class SaveEverything:
    """Save every residual: nothing is recomputed.

    It gives the plain gradient, under the engine's purity rule.

    Examples:
        >>> saved = kr.checkpoint(
        ...     lambda x: tf.sin(tf.sin(x)), policy=kr.policies.save_everything
        ... )
        >>> [row.origin for row in kr.saved_residuals(saved, tf.ones(4))]
        ['x', 'Sin']
    """

    def __call__(self, _: tf.Tensor) -> Decision:
        return Decision.SAVE


@dataclass(frozen=True)
class SaveReplaySources:
    """Save only the values that make a marked replay cheaper than running again.

    For a recurrence these are its outputs: with them the gates follow from one product, without a
    loop. ``annotations.replay_alternative`` marks them.

    Examples:
        >>> lstm = kr.LSTM(4, return_sequences=True)
        >>> saved = kr.checkpoint(lstm, policy=kr.policies.save_replay_sources)
        >>> rows = kr.saved_residuals(saved, tf.ones((2, 16, 8)))
        >>> [row.shape for row in rows if row.kind == "operation"]
        [(2, 16, 4)]
    """

    def __call__(self, value: tf.Tensor) -> bool:
        from .graph.annotations import is_replay_source

        return is_replay_source(value)


@dataclass(frozen=True)
class SaveMatmuls:
    """Save only the results of matrix products, the costly part of most layers.

    Without ``batch_dims``, products of two stacks of matrices (as in attention) are recomputed:
    their results are often larger than their factors. A stack times one matrix, as a Dense layer on
    a sequence, has no batch dimension.

    Examples:
        >>> saved = kr.checkpoint(
        ...     lambda x: tf.sin(tf.sin(x) @ x), policy=kr.policies.save_matmuls
        ... )
        >>> [row.origin for row in kr.saved_residuals(saved, tf.ones((4, 4)))]
        ['x', 'MatMul']
    """

    batch_dims: bool = True

    def __call__(self, value: tf.Tensor) -> bool:
        from .graph.op_sets import MATMULS

        operation = value.op
        if operation.type == "Einsum":
            return len(operation.inputs) == 2 and (
                self.batch_dims or not _has_batch_labels(operation.get_attr("equation"))
            )
        if operation.type not in MATMULS:
            return False
        return self.batch_dims or any(factor.shape.rank == 2 for factor in operation.inputs)


def _has_batch_labels(equation: bytes) -> bool:
    """Whether a label of an einsum is in both factors and the result, as b in ``bij,bjk->bik``."""
    factors, result = equation.decode().split("->")
    left, right = factors.split(",")
    return bool(set(left) & set(right) & set(result))


def _name_of(value: tf.Tensor) -> str | None:
    from .graph.annotations import annotated_name

    return annotated_name(value)


@dataclass(frozen=True)
class SaveNames:
    """Save only the values marked with one of ``names``; offload values marked ``offloaded``."""

    names: frozenset[str]
    offloaded: frozenset[str] = frozenset()

    def __call__(self, value: tf.Tensor) -> Decision:
        name = _name_of(value)
        return (
            Decision.SAVE
            if name in self.names
            else Decision.OFFLOAD
            if name in self.offloaded
            else Decision.RECOMPUTE
        )


@dataclass(frozen=True)
class SaveAllButNames:
    """Save the values marked with any name except ``names``."""

    names: frozenset[str]

    def __call__(self, value: tf.Tensor) -> bool:
        name = _name_of(value)
        return name is not None and name not in self.names


@dataclass(frozen=True)
class Either:
    """Save what one of two policies saves, offload what else one of them offloads."""

    policies: frozenset[Policy]

    def __call__(self, value: tf.Tensor) -> Decision:
        return max(decide(policy, value) for policy in self.policies)


save_nothing = SaveNothing()
save_everything = SaveEverything()
save_replay_sources = SaveReplaySources()
save_matmuls = SaveMatmuls()
save_matmuls_without_batch_dims = SaveMatmuls(batch_dims=False)
# They decide by types of operations and by annotations, and not by other names.
NAMELESS = (SaveNothing, SaveEverything, SaveReplaySources, SaveMatmuls)


def save_names(*names: str) -> SaveNames:
    """Return the policy that saves only the values marked with one of ``names``.

    ``checkpoint_name`` marks values.

    Raises:
        InvalidArgumentError: A name is no string, or empty. When the function is called on
            TensorFlow: it does not mark that name. On JAX and PyTorch that is a warning.

    Examples:
        >>> def network(x):
        ...     return tf.sin(kr.checkpoint_name(tf.sin(tf.sin(x)), "half"))
        >>> saved = kr.checkpoint(network, policy=kr.policies.save_names("half"))
        >>> [row.origin for row in kr.saved_residuals(saved, tf.ones(4))]
        ['x', 'half']
    """
    return SaveNames(_checked("save_names", names))


def save_all_but_names(*names: str) -> SaveAllButNames:
    """Return the policy that saves every marked value except values marked with ``names``.

    Values without a mark are recomputed, as under
    ``jax.checkpoint_policies.save_any_names_but_these``.

    Raises:
        InvalidArgumentError: As ``save_names``.

    Examples:
        >>> def network(x):
        ...     small = kr.checkpoint_name(tf.sin(x), "small")
        ...     return tf.sin(kr.checkpoint_name(tf.tile(small, [100]), "large"))
        >>> saved = kr.checkpoint(network, policy=kr.policies.save_all_but_names("large"))
        >>> [row.origin for row in kr.saved_residuals(saved, tf.ones(4))]
        ['x', 'small']
    """
    return SaveAllButNames(_checked("save_all_but_names", names))


def save_and_offload_names(
    *, save: tuple[str, ...] = (), offload: tuple[str, ...] = ()
) -> SaveNames:
    """Return the policy that saves values marked ``save`` and offloads values marked ``offload``.

    Raises:
        InvalidArgumentError: A name is in both, or as ``save_names``.

    Examples:
        >>> saved = kr.checkpoint(
        ...     lambda x: tf.sin(kr.checkpoint_name(tf.sin(tf.sin(x)), "half")),
        ...     policy=kr.policies.save_and_offload_names(offload=("half",)),
        ... )
        >>> rows = kr.saved_residuals(saved, tf.ones(4))
        >>> [row.decision.name for row in rows if row.origin == "half"]
        ['OFFLOAD']
    """
    for parameter, names in (("save", save), ("offload", offload)):
        if isinstance(names, str):
            raise InvalidArgumentError(
                f"save_and_offload_names({parameter}={names!r}): a string is not a tuple of names. "
                f"Give {parameter}=({names!r},)"
            )
    policy = SaveNames(
        _checked("save_and_offload_names", save), _checked("save_and_offload_names", offload)
    )
    both = policy.names & policy.offloaded
    if both:
        raise InvalidArgumentError(
            f"save_and_offload_names: {', '.join(map(repr, sorted(both)))} is named in both save "
            "and offload. Name it once"
        )
    return policy


def _checked(function: str, names: Iterable[str]) -> frozenset[str]:
    """Return ``names`` as a set. Raises InvalidArgumentError for anything that is no name."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(
                f"{function}: {name!r} is not a name. Give strings that checkpoint_name marks "
                "values with"
            )
    return frozenset(names)


def either(first: Policy, second: Policy) -> Policy:
    """Return the policy that saves what ``first`` or ``second`` saves.

    Raises:
        InvalidArgumentError: One of them is no policy.

    Examples:
        >>> policy = kr.policies.either(kr.policies.save_matmuls, kr.policies.save_names("half"))
        >>> policy == kr.policies.either(kr.policies.save_names("half"), kr.policies.save_matmuls)
        True
    """
    require_policy(first)
    require_policy(second)
    return Either(frozenset([first, second]))


def names_in(policy: Policy) -> frozenset[str]:
    """Return the names that ``policy`` goes by."""
    if isinstance(policy, Either):
        return frozenset().union(*map(names_in, policy.policies))
    if isinstance(policy, SaveNames):
        return policy.names | policy.offloaded
    return policy.names if isinstance(policy, SaveAllButNames) else frozenset()
