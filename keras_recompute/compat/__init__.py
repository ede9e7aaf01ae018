"""The APIs of other recomputation libraries, as thin wrappers; see docs/migration.md."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(
    __name__,
    submod_attrs={
        "checkpointable": ["checkpointable"],
        "recompute_grad": ["recompute_grad"],
        "gradient_checkpoint_scope": ["gradient_checkpoint_scope"],
    },
)
