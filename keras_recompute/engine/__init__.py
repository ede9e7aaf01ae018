"""The engine: one mechanism under everything that this project recomputes.

A function is traced into a graph (``trace``), differentiated inside it (``joint``), split by a policy into a forward and
a backward program that pass a check (``partition``, ``program``), and written into the caller's graph, once (``lower``) or
as the body of a loop over equal sections (``section_scan``).

* The steps: ``checkpoint``, ``trace``, ``joint``, ``partition`` with ``decisions``, ``program`` with
  ``renames`` and ``split``, ``lower``, ``section_scan``, ``nested_scan``.
* What may be replayed, and by which value: ``purity``, ``by_value``, ``undifferentiable``,
  ``side_effects``, ``original_control_flow``, ``losses``, ``stateless_updates``.
* Which program a call belongs to: ``program_cache`` with ``call_signature``, ``trace_context`` and
  ``object_state``.
* Custom gradients and their derivatives: ``gradient``, ``higher``, ``sparse_gradients``.
* What a user asks for: ``policies``, ``scopes``, ``marks``, ``offload``.
* What a user is told: ``advice``, ``residuals``, ``listing``, ``examine``, ``origin``.
* What operations cost, and how they are written: ``kinds``, ``target_ops``, ``graph_constants``,
  ``slice_store``, ``carry_store``, ``splice``.
* For which compiler programs are made: ``target``.

All of this is right for every compiler. What makes the saving real under one of them is a list of passes (``passes``), which a
target brings with it: the steps apply what they are handed, and know none of them.
"""

from . import policies

__all__ = ["policies"]
