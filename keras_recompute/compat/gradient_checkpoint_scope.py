"""``gradient_checkpoint_scope`` of RETURNN (``returnn.tf.util`` and ``returnn.torch.util``)."""

from __future__ import annotations

from ..engine import recompute_scope

# An alias of ``recompute_scope``. It takes effect in a function given to checkpoint(fn,
# policy=save_everything) and warns elsewhere. ``exit_saved_tensors_hooks_scope`` has no
# counterpart, because nothing outlives the scope.
gradient_checkpoint_scope = recompute_scope
