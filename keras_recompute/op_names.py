"""Name scopes by which operations of the engine's programs are found in a compiled program.

XLA keeps the TensorFlow name of the operation that an instruction came from. The engine opens
these scopes when it writes a program. The liveness reader finds them again, and so assigns every
byte to a phase and a section:

    <forward scope>/lstm/MatMul                forward pass of the named sections
    <backward scope>/lstm/MatMul               the same operation replayed in the backward pass
    <backward scope>/gradients/lstm/MatMul_1   back-propagation
    <update scope>/...                         the optimiser

Scope names use only characters that TensorFlow allows in an operation name.
"""

import re
from typing import Any, Optional, Tuple

FORWARD, RECOMPUTE, BACKWARD, UPDATE = "forward", "recompute", "backward", "update"
PHASES = (FORWARD, RECOMPUTE, BACKWARD, UPDATE)

# Attribute of a graph with copied operations: name scope of the copies -> their original graph.
COPIES = "_keras_recompute_copies"

_SCOPE = re.compile(
    r"(?:^|/)recomputation\.(forward|backward|update)(?:\.([A-Za-z0-9_.-]+?))?(?:_\d+)?(?=/|$)"
)
# The engine differentiates in scopes "gradients", tf.GradientTape in "gradient_tape".
_GRADIENT = re.compile(r"(?:^|/)(?:gradients|gradient_tape)(?:_\d+)?(?=/|$)")


def forward_scope(section: str) -> str:
    """Return the name scope of the forward program of ``section``, such as ``"sections-0-7"``."""
    return f"recomputation.forward.{section}"


def backward_scope(section: str) -> str:
    """Return the name scope of the program that replays and back-propagates ``section``."""
    return f"recomputation.backward.{section}"


def section_name(name: str) -> str:
    """Return ``name`` in the characters that a name scope may have, ``"block-3"`` of ``"block_3"``.

    TensorFlow puts ``_3`` behind names that are taken.
    """
    valid = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-")
    return re.sub(r"_(?=\d+$)", "-", valid) or "function"


def update_scope() -> str:
    """Return the name scope of the optimiser step."""
    return "recomputation.update"


def parse_op_name(op_name: str) -> Tuple[str, Optional[str]]:
    """Return the (phase, section) of an operation of a compiled program, from its name.

    The section is None outside of the engine's programs. The innermost scope decides, so that a
    nested program counts as itself. Only a forward program within a backward one is a replay.
    """
    scopes = list(_SCOPE.finditer(op_name))
    if not scopes:
        return (BACKWARD if _GRADIENT.search(op_name) else FORWARD), None
    kind, section = scopes[-1].group(1), scopes[-1].group(2)
    if kind == "backward" and not _GRADIENT.search(op_name, scopes[-1].end()):
        return RECOMPUTE, section
    if kind == "forward" and any(scope.group(1) == "backward" for scope in scopes):
        return RECOMPUTE, section  # a section within a group that is being replayed
    return kind, section


def original_of(operation: Any) -> Any:
    """Return the user's operation that ``operation`` is a copy of; itself if it is no copy."""
    copies = getattr(operation.graph, COPIES, {})
    for prefix in sorted((p for p in copies if operation.name.startswith(p)), key=len):
        try:
            return original_of(copies[prefix].get_operation_by_name(operation.name[len(prefix) :]))
        except KeyError:  # made here, under the scope of the copies
            continue
    return operation
