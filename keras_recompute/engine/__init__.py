"""The engine: traces a function, differentiates it, and decides what its backward pass recomputes.

A function is traced into a graph (``trace``) and differentiated inside it (``joint_graph``). A
policy divides that graph into a forward and a backward program, which pass a check (``partition``,
``program``). The programs are written into the caller's graph once (``lowering``), or as the bodies
of two loops over equal sections (``section_scan``).

* The steps: ``checkpoint``, ``trace``, ``joint_graph``, ``partition`` with ``residual_choice``,
  ``program`` with ``renames`` and ``two_stage_program``, ``lowering``, ``section_scan``,
  ``nested_scan``.
* What may be replayed, and by which value: ``purity``, ``variables_by_value``,
  ``missing_gradients``, ``side_effects``, ``original_control_flow``, ``losses``,
  ``stateless_updates``.
* Which program a call belongs to: ``program_cache`` with ``call_signature``, ``trace_context`` and
  ``object_state``.
* Custom gradients and their derivatives: ``custom_vjp``, ``higher_order``, ``sparse_gradients``.
* What a user asks for: ``policies``, ``scopes``, ``annotations``, ``offloading``.
* What a user is told: ``diagnostics``, ``residuals``, ``program_text``, ``analysis``,
  ``source_location``.
* What operations cost, and how they are written: ``op_sets``, ``target_ops``, ``graph_constants``,
  ``slice_store``, ``carry_store``, ``op_rewrite``.
* For which compiler programs are made: ``target``.

All of this is right under every compiler. A target adds a list of ``passes``, which make the saving
real under its compiler. The steps apply the passes that they are given, and know none by name.
"""

from . import policies

__all__ = ["policies"]
