"""Python calls: what a function is given, captures, uses and changes, and which program it gets."""

from .call_signature import IdentityKey, is_known_here
from .leaked_tensors import LeakedTensor
from .object_contents import MOST_VALUES, PLAIN, SMALL_ARRAY_BYTES
from .object_state import ObjectState
from .program_cache import ProgramCache
from .stateless_updates import StatelessUpdates

__all__ = [
    "MOST_VALUES",
    "PLAIN",
    "SMALL_ARRAY_BYTES",
    "IdentityKey",
    "LeakedTensor",
    "ObjectState",
    "ProgramCache",
    "StatelessUpdates",
    "is_known_here",
]
