"""The search: programs are drawn until one of them disagrees, and that one is made small."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection

from hypothesis import given, seed, settings
from tensorflow.python.framework import ops

from .cases import Case
from .compare import Disagreement, check
from .strategies import cases

SHRINKING = 100  # attempts at most, of some tenths of a second
COLLECT_EVERY = 20


class Hunt:
    """Checks one case after the other, and stays with the first sort of disagreement that is not
    ``known``.

    Hypothesis would go on shrinking for minutes. Once the attempts are used up, only what has
    failed before fails.
    """

    def __init__(
        self, known: Collection[str] = (), *, check: Callable[[Case], None] = check
    ) -> None:
        self.checked = 0
        self.smallest: Disagreement | None = None
        self._check = check
        self._known = known
        self._attempts = 0
        self._failed: dict[Case, str] = {}

    def __call__(self, case: Case) -> None:
        if self.smallest is None:
            self.checked += 1
        elif self._attempts >= SHRINKING and case not in self._failed:
            return
        self._attempts += self.smallest is not None
        try:
            self._check(case)
        except Disagreement as found:
            if found.kind in self._known or (
                self.smallest is not None and found.kind != self.smallest.kind
            ):
                return
            self._failed[case] = found.kind
            if self.smallest is None or len(repr(case)) <= len(repr(self.smallest.case)):
                self.smallest = found
            raise
        finally:
            if (self.checked + self._attempts) % COLLECT_EVERY == 0:
                forget()

    def run(self, modes: tuple[str, ...], how: settings, *, start: int | None = None) -> None:
        """Draw and check cases. Raises the smallest Disagreement. ``start`` is a seed."""
        test = how(given(cases(modes))(self.__call__))
        test = test if start is None else seed(start)(test)
        try:
            test()
        except Disagreement:
            raise self.smallest.with_traceback(None) from None


def forget() -> None:
    """Free the graphs of examples that are over.

    Each use of ``tf.custom_gradient`` in a graph leaves a closure, and with it the graph, in
    TensorFlow's registry.
    """
    registry = ops.gradient_registry._registry
    for name in [name for name in registry if name.startswith("CustomGradient-")]:
        del registry[name]
    gc.collect()
