"""The cache of a checkpointed function's programs: one per signature, and a bounded number.

Called eagerly, a function's programs are kept with the function itself (for a method with its
object, for a Keras layer with the layer), so that ``checkpoint(layer)`` written where it is used
finds them again. Called in a graph, they belong to that graph, whose tensors they may have
captured. Both ways they are freed with what they belong to.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...user_code import warn_user
from ..graph.graph_state import kept_with
from .call_signature import IdentityKey
from .object_snapshot import ObjectSnapshot
from .object_state import ObjectState

LIMIT = 64
_ATTRIBUTE = "_keras_recompute_programs"


class ProgramCache:
    """At most ``LIMIT`` programs; the least recently used one makes room.

    One thread at a time looks for a program and makes it, so that threads which first call a
    function together find one. Only eager calls can come together: a graph is written by one thread
    at a time.
    """

    def __init__(self) -> None:
        # A function may be called again while it is traced.
        self._lock = threading.RLock()
        self._programs: OrderedDict[Any, Any] = OrderedDict()
        self._attributes: OrderedDict[Any, ObjectState] = OrderedDict()
        # Names of what a function captures and was seen to change (see ``closures``).
        self.changed: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._programs)

    def get(
        self, key: Callable[[], Any], make: Callable[[], Any], *, uses: tuple[Any, ...], name: str
    ) -> Any:
        """Return the program for ``key()`` and the state that the objects ``uses`` have now.

        It is made by ``make()`` if there is none. Then ``key`` is called again, because tracing a
        function may change its key.
        """
        with self._lock:
            return self._get(key, make, uses=uses, name=name)

    def _get(
        self, key: Callable[[], Any], make: Callable[[], Any], *, uses: tuple[Any, ...], name: str
    ) -> Any:
        used = tuple(map(IdentityKey, uses))
        attributes = self._attributes_of(used, uses)
        found = (key(), used, attributes.version())
        program = self._programs.get(found)
        if program is not None:
            self._programs.move_to_end(found)
            return program
        # In a graph Python runs once in plain Keras too.
        before = ObjectSnapshot(attributes.held) if tf.executing_eagerly() else None
        program = make()
        if before is not None:
            before.check(name=name)
        # Layers may have made weights in the trace, so key and state are asked for again.
        self._programs[key(), used, attributes.version_after_trace()] = program
        if len(self._programs) > LIMIT:
            self._programs.popitem(last=False)
            warn_user(
                f"{name!r} has been called in more than {LIMIT} ways, and each new shape or Python "
                "number is traced again. Pass numbers that change as tensors, and pad to fewer "
                "shapes."
            )
        return program

    def _attributes_of(self, key: tuple[IdentityKey, ...], uses: tuple[Any, ...]) -> ObjectState:
        attributes = self._attributes.get(key)
        if attributes is None:
            attributes = self._attributes[key] = ObjectState(uses)
            if len(self._attributes) > LIMIT:
                self._attributes.popitem(last=False)
        return attributes

    def __reduce__(self) -> Any:
        # A copy of a function or layer makes its own.
        return ProgramCache, ()


def cache_for(function: Callable[..., Any], otherwise: Any) -> ProgramCache:
    """Return the cache for calls of ``function`` from here, or that of ``otherwise``.

    The latter serves a function that can keep no programs itself.
    """
    if not tf.executing_eagerly():
        return kept_with(tf.compat.v1.get_default_graph(), _ATTRIBUTE, ProgramCache)
    owner = getattr(function, "__self__", function)
    if not hasattr(owner, "__dict__") or isinstance(owner, type):
        owner = otherwise
    # Not by setattr: Keras layers would take the programs for a part of the model.
    return vars(owner).setdefault(_ATTRIBUTE, ProgramCache())
