"""``gradient_checkpoint_scope`` of RETURNN (``returnn.tf.util`` and ``returnn.torch.util``)."""

from __future__ import annotations

from ..layers.backend_scopes import recompute_scope

# An alias of ``recompute_scope``. On TensorFlow it takes effect in a function given to
# checkpoint(fn, policy=save_everything) and warns elsewhere. On PyTorch it works anywhere.
# ``exit_saved_tensors_hooks_scope`` has no counterpart: hooks go with the last value that needs
# them.
gradient_checkpoint_scope = recompute_scope
