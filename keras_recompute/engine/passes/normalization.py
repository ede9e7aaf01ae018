"""Batch normalisation by TensorFlow's kernel for it.

For TensorFlow without XLA, on a CPU. Keras writes the layer as sums, products and a root, each a pass over the image, and all
of them again for the gradient: 89 operations where the kernels have 19, and each costs the process some kilobytes for as long
as the graph lives. Numbers are the same but for the order in which they are added up.

What it gains: "Convolutions without XLA" in benchmarks/NOTES.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from ...seams.keras.normalization import batch_normalization_fused


def with_fused_normalization() -> AbstractContextManager[None]:
    """Return the context in which a function is traced with one operation for each batch normalisation of images."""
    return batch_normalization_fused()
