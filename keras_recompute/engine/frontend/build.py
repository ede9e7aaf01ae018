"""The way from a function to its programs: trace, check, differentiate, partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..calls.leaked_tensors import replace_leaked
from ..capture.joint_graph import join, without_gradients
from ..capture.trace import Trace
from ..partition.partition import Partition, partition
from ..policies import NAMELESS, Policy
from .equal_traces import share_partition
from .frozen_variables import frozen_ports


def build(
    traced: Trace,
    policy: Policy | None,
    *,
    name: str = "",
    owners: Iterable[Any] = (),
    kept_by_caller: Sequence[int] = (),
    gradient_unused: Collection[int] = (),
    wanted: Collection[int] | None = None,
) -> Partition:
    """Return the forward and the backward program of a ``traced`` function.

    Args:
        traced: The function as a graph (``trace``).
        policy: What is saved between the two programs. None leaves that to the target.
        name: The name of the function, for errors.
        owners: The layers and other objects that the function uses. Tensors that it stored in their
            attributes are replaced (``leaked_tensors``), and no gradient is expected for their
            frozen variables.
        kept_by_caller: Numbers of the outputs that the caller keeps until the backward pass anyway.
        gradient_unused: Numbers of ports whose gradient is not expected, though it may be asked
            for.
        wanted: Numbers of the only ports that get gradients; none of them: it is not
            differentiated at all. None stands for all ports.

    Raises:
        InvalidProgramError: A program does not fit together.
    """
    owners = tuple(owners)
    replace_leaked(owners, traced.graph, name=name)
    if wanted is not None and not wanted:
        return partition(without_gradients(traced), policy, kept_by_caller=kept_by_caller)
    unused = frozenset({*gradient_unused, *frozen_ports(traced, owners)})

    def make() -> Partition:
        joint = join(traced, gradient_unused=unused)
        if wanted is not None:
            joint = joint.only(wanted)
        return partition(joint, policy, kept_by_caller=kept_by_caller)

    # A user's policy may go by names.
    if policy is not None and not isinstance(policy, NAMELESS):
        return make()
    kind = policy, tuple(kept_by_caller), unused, wanted and frozenset(wanted)
    return share_partition(traced, kind, make)
