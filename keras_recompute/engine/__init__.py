"""The engine: one mechanism under everything that this project recomputes.

A function is traced into a graph (``trace``), differentiated inside it (``joint_graph``), split by a policy into a forward and
a backward program that pass a check (``partition``, ``program``), and written into the caller's graph, once (``lowering``) or
as the body of a loop over equal sections (``section_scan``).

* The steps: ``checkpoint``, ``trace``, ``joint_graph``, ``partition`` with ``residual_choice``, ``program`` with
  ``renames`` and ``two_stage_program``, ``lowering``, ``section_scan``, ``nested_scan``.
* What may be replayed, and by which value: ``purity``, ``variables_by_value``, ``missing_gradients``,
  ``side_effects``, ``original_control_flow``, ``losses``, ``stateless_updates``.
* Which program a call belongs to: ``program_cache`` with ``call_signature``, ``trace_context`` and
  ``object_state``.
* Custom gradients and their derivatives: ``custom_vjp``, ``higher_order``, ``sparse_gradients``.
* What a user asks for: ``policies``, ``scopes``, ``annotations``, ``offloading``.
* What a user is told: ``diagnostics``, ``residuals``, ``program_text``, ``analysis``, ``source_location``.
* What operations cost, and how they are written: ``op_sets``, ``target_ops``, ``graph_constants``,
  ``slice_store``, ``carry_store``, ``op_rewrite``.
* For which compiler programs are made: ``target``.

All of this is right for every compiler. What makes the saving real under one of them is a list of passes (``passes``), which a
target brings with it: the steps apply what they are handed, and know none of them.
"""

from . import policies

__all__ = ["policies"]
