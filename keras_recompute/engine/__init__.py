"""The engine: one mechanism under everything that this project recomputes.

A function is traced into a graph (``trace``), differentiated inside it (``joint``), split by a policy into a forward and
a backward program that pass a check (``partition``, ``program``), and written into the caller's graph, once (``lower``) or
as the body of a loop over equal sections (``outline``).

====================================================== ==================================================================
the steps                                              ``checkpoint``, ``trace``, ``joint``, ``partition`` with
                                                       ``decisions``, ``program`` with ``renames`` and ``split``, ``lower``,
                                                       ``outline``, ``levels``
what may be replayed, and by which value               ``purity``, ``by_value``, ``undifferentiable``, ``side_effects``,
                                                       ``as_traced``, ``losses``, ``stateless``
which program a call belongs to                        ``programs`` with ``nest``, ``ambient``, ``attributes``
gradients of our own, and their derivatives            ``gradient``, ``higher``, ``dense``
what a user says                                       ``policies``, ``scopes``, ``marks``, ``offload``
what a user is told                                    ``advice``, ``residuals``, ``listing``, ``examine``, ``origin``
what operations cost, and how they are written         ``kinds``, ``writing``, ``once``, ``pieces``, ``boundaries``, ``splice``
for whom programs are made                             ``target``
====================================================== ==================================================================

All of this is right for every compiler. What makes the saving real under one of them is a list of passes (``passes``), which a
target brings with it: the steps apply what they are handed, and know none of them.
"""

from . import policies

__all__ = ["policies"]
