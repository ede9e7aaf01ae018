"""``tensorflow.python.ipu.scopes``: TensorFlow 1's scopes; entering one is refused."""

from __future__ import annotations

from ..configuration.lazy_refusal import refuse_on_use

__all__ = [
    "frontend_attribute",
    "ipu_jit_scope",
    "ipu_scope",
    "ipu_shard",
    "outside_compilation_scope",
]

_MODULE = "tensorflow.python.ipu.scopes"

frontend_attribute = refuse_on_use(f"{_MODULE}.frontend_attribute")
ipu_jit_scope = refuse_on_use(f"{_MODULE}.ipu_jit_scope")
ipu_scope = refuse_on_use(f"{_MODULE}.ipu_scope")
ipu_shard = refuse_on_use(f"{_MODULE}.ipu_shard")
outside_compilation_scope = refuse_on_use(f"{_MODULE}.outside_compilation_scope")
