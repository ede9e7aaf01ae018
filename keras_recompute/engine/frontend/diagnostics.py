"""Warnings about a checkpoint: unknown names in its policy, or nothing that it could save.

They are given when the function has been traced, since only the trace shows what a gradient reads.
"""

from __future__ import annotations

import itertools

import tensorflow as tf

from ...errors import InvalidArgumentError
from ...graph_traversal import reachable
from ...keras_backend.policy_checks import unknown_names
from ...op_names import parse_op_name
from ...user_code import warn_user
from ..capture.custom_vjp import is_checkpointed_call
from ..capture.trace import Trace
from ..graph.annotations import aliases, annotated_name, is_replay_source
from ..graph.dataflow import consumers, makers, present, tensor_refs
from ..partition.partition import Partition
from ..policies import (
    Policy,
    SaveEverything,
    SaveNothing,
    SaveReplaySources,
    names_in,
    save_everything,
)


def names_marked(trace: Trace) -> set[str]:
    """Return the names that the traced function gave to values by ``checkpoint_name``."""
    tensors = itertools.chain(*(op.outputs for op in trace.graph.get_operations()))
    return set(present(map(annotated_name, tensors)))


def check_names(policy: Policy, trace: Trace, function: str) -> None:
    """Raise InvalidArgumentError if ``policy`` has a name that ``function`` gives to no value."""
    unknown = unknown_names(names_in(policy), names_marked(trace), function)
    if unknown:
        raise InvalidArgumentError(
            f"policy {policy!r} {unknown} Marks inside a tf.while_loop or tf.cond do not count, "
            "because it is recomputed as a whole."
        )


def advise(part: Partition, policy: Policy, function: str) -> None:
    """Warn if the checkpoint of ``function`` saves no memory, or its policy matches no residual."""
    if isinstance(policy, SaveEverything):
        return
    plain = part.under(save_everything)
    if not saves_memory(part, plain):
        warn_user(
            f"the checkpoint of {function!r} saves no memory: its gradient reads "
            + ("no intermediate value" if not plain.saved else "only what the policy saves")
        )
        return
    matches_by_design = isinstance(policy, (SaveNothing, SaveReplaySources))
    nothing = part.under(SaveNothing())
    if not matches_by_design and tensor_refs(part.saved) == tensor_refs(nothing.saved):
        warn_user(
            f"policy {policy!r} matches no value that the gradient of {function!r} reads, so all "
            f"of it is recomputed, as without a policy. Values that could be saved: {_list(plain)}"
        )


def saves_memory(part: Partition, plain: Partition | None = None) -> bool:
    """Whether ``part`` keeps less than the partition that keeps every residual.

    That one is ``plain``, made here if it is not given. A part also saves memory if it keeps what a
    replay begins with: then a loop inside it does.
    """
    if any(map(is_replay_source, itertools.chain(*map(aliases, part.saved)))):
        return True
    plain = plain or part.under(save_everything)
    return bool(tensor_refs(plain.saved) - tensor_refs(part.saved))


def warn_vectorized(what: str) -> None:
    """Warn that ``what`` is called without recomputation in a vectorized map.

    ``custom_vjp.in_vectorized_map`` says why.
    """
    warn_user(
        f"{what} saves no memory in the body of a tf.vectorized_map, which differentiates the body "
        "by itself. Put the tf.vectorized_map inside the checkpointed function"
    )


def _list(part: Partition) -> str:
    shown = [f"{t.op.type} {t.dtype.name}{t.shape}" for t in part.saved[:5]]
    return ", ".join(shown) + (", ..." if len(part.saved) > 5 else "")


def advise_placement(part: Partition, function: str) -> None:
    """Warn of checkpoints at the end of a function, where back-propagation starts.

    They are replayed at once, when the peak is reached anyway. ``part`` is a function from the
    inputs to the loss. Such a checkpoint is the function itself if it saves nothing, or a call
    after which nothing is kept and nothing replayed.
    """
    trace = part.joint.trace
    advice = (
        "is the last section: back-propagation starts there, so it is recomputed before anything "
        "else is freed. It costs time and saves no memory at the peak. Checkpoint the layers "
        "before it instead."
    )
    is_loss = len(trace.outputs) == 1 and trace.outputs[0].shape.rank == 0
    if is_loss and not part.saved and part.replayed:
        warn_user(f"the checkpoint of {function!r} {advice}")
    kept = set(makers(part.saved))
    calls = list(filter(is_checkpointed_call, part.joint.forward_operations))
    for call in calls:
        if not _behind(call, part) & kept.union(calls):
            _, inner = parse_op_name(call.inputs[0].op.name)
            warn_user(f"in {function!r}, the checkpoint of {inner!r} {advice}")


def _behind(operation: tf.Operation, part: Partition) -> set[tf.Operation]:
    """Return the forward operations that depend on ``operation``."""

    def readers(read: tf.Operation) -> list[tf.Operation]:
        return [op for op in consumers(read) if op not in part.joint.backward]

    return set(reachable([operation], readers)) - {operation}
