"""Nested loops: a loop over equal sections within a loop over equal groups of them.

One loop keeps a state per section, and what each section saves. Two loops keep a state per group. A
group is replayed as a whole before its sections are, one by one. With each further loop, memory
grows with a higher root of the number of steps, for one more forward pass (Chen et al. 2016,
section 4.4; Griewank and Walther 2008, chapter 12.3).

A group is a function like any other: it is traced with the loop over its sections inside, and
scanned in its turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from ..capture.trace import trace
from ..frontend.build import build
from ..partition.partition import Partition
from ..passes import target_now
from ..policies import save_nothing
from .section_scan import (
    Carry,
    FinalOutput,
    Request,
    Role,
    Scanned,
    StackedOutput,
    scan_sections,
    section_spec,
)
from .slice_store import Dimension


def nested_scan(
    part: Partition,
    arguments: Sequence[tf.Tensor],
    *,
    counts: Sequence[int],
    roles: Sequence[Role],
    requests: Sequence[Request],
    batch: Dimension,
    name: str,
) -> list[tf.Tensor]:
    """Write consecutive calls of the partitioned section as nested loops.

    ``counts`` are the trip counts of the loops, outermost first: ``(4, 8)`` runs 4 groups of 8
    sections. The other arguments are those of ``scan_sections``.
    """
    if len(counts) == 1:
        return scan_sections(
            part, arguments, count=counts[0], roles=roles, requests=requests, batch=batch, name=name
        )
    size = math.prod(counts[1:])
    carried = [role.output for role in roles if isinstance(role, Carry)]
    # What a group returns: the states that its last section hands on, then what is asked for and is
    # not among them.
    returned: list[Request] = list(map(FinalOutput, carried))
    for request in requests:
        if request not in returned:
            returned.append(request)

    def group(*arguments: tf.Tensor) -> list[tf.Tensor]:
        inner = [replace(role, start=0) if isinstance(role, Scanned) else role for role in roles]
        return nested_scan(
            part,
            arguments,
            counts=counts[1:],
            roles=inner,
            requests=returned,
            batch=batch,
            name=name,
        )

    def number_of(request: Request) -> int:
        return carried.index(request.output) if request not in returned else returned.index(request)

    group_roles = [_of_group(role, size, carried) for role in roles]
    # Stacked outputs come stacked from each group, and are joined along that axis.
    group_requests: list[Request] = []
    for request in requests:
        number = number_of(request)
        if isinstance(request, StackedOutput):
            group_requests.append(StackedOutput(number, request.axis or 0))
        else:
            group_requests.append(FinalOutput(number))
    signature = [section_spec(argument, role) for argument, role in zip(arguments, group_roles)]
    # The loop around the groups stores these anyway, so a group need not replay them.
    stored = [n for n, r in enumerate(returned) if n < len(carried) or isinstance(r, StackedOutput)]
    traced = trace(group, signature, target_now())
    whole = build(traced, save_nothing, name=name, kept_by_caller=stored)
    return scan_sections(
        whole,
        arguments,
        count=counts[0],
        roles=group_roles,
        requests=group_requests,
        batch=batch,
        name=name,
    )


def _of_group(role: Role, size: int, carried: Sequence[int]) -> Role:
    if isinstance(role, Carry):
        return Carry(carried.index(role.output))
    return replace(role, length=role.length * size) if isinstance(role, Scanned) else role
