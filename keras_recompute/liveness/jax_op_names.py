"""Names of operations that JAX compiles, as TensorFlow would write them.

JAX wraps a scope in the transformations that an operation went through:

    jit(train_step)/jvp(net)/dense/dot_general              forward pass
    jit(train_step)/transpose(jvp(net))/dense/dot_general   back-propagation
    .../checkpoint/rematted_computation/dense/dot_general   replay of a jax.checkpoint

Here the transformations become the scopes in which ``origins`` finds phase, section and layer:
``net/dense/dot_general`` and ``gradients/net/dense/dot_general``. Seen with JAX 0.10.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ..op_names import backward_scope, parse_op_name

_WRAPPED = re.compile(r"((?:\w+\()*)([^()]*)\)*\Z")
_SEPARATOR = re.compile(r"/(?![^()]*\))")  # not within parentheses
_REMAT, _REPLAY = frozenset({"checkpoint", "remat"}), "rematted_computation"
_GRADIENTS = "gradients"


def translate_op_names(module: Any) -> bool:
    """Give the instructions of ``module`` the names of TensorFlow's form; False if they have it."""
    computations = {computation.id: computation for computation in module.computations}
    instructions = [i for c in module.computations for i in c.instructions]
    if not any(i.metadata.op_name.startswith("jit(") for i in instructions):
        return False
    for instruction in instructions:
        instruction.metadata.op_name = translated(instruction.metadata.op_name)
    # An argument is called by its place in Python, such as "state[0][3]".
    for instruction in computations[module.entry_computation_id].instructions:
        if instruction.opcode == "parameter":
            instruction.metadata.op_name = ""
    return True


@functools.lru_cache(maxsize=2**16)
def translated(op_name: str) -> str:
    """Return a name of JAX's as TensorFlow would write it."""
    scopes: list[str] = []
    parts = _SEPARATOR.split(op_name)
    for number, part in enumerate(parts):
        found = _WRAPPED.match(part)
        wrappers, scope = (found[1].split("("), found[2]) if found else ([], part)
        if "transpose" in wrappers:
            scopes.append(_GRADIENTS)
        # The name of a jitted function says nothing of layers, unless it is the operation itself.
        if scope and (not {"jit", "pjit"} & set(wrappers) or number == len(parts) - 1):
            scopes.append(scope)
    return "/".join(_with_replays_marked(scopes))


def _with_replays_marked(scopes: list[str]) -> list[str]:
    """Return ``scopes`` with the backward pass of a ``jax.checkpoint`` in a backward scope."""
    positions = [n for n, scope in enumerate(scopes) if scope in _REMAT]
    if not positions or _GRADIENTS not in scopes[: positions[-1]]:
        return scopes
    last = positions[-1]  # the innermost one, whose replay it is
    section = parse_op_name("/".join(scopes[:last]))[1] or scopes[last]
    inside = scopes[last + 1 :]
    if inside[:1] == [_REPLAY]:
        return [backward_scope(section), *inside[1:]]
    return [backward_scope(section), _GRADIENTS, *inside]
