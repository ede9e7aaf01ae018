"""The gradient of batch normalization by TensorFlow's kernel for it.

For TensorFlow without XLA, on a CPU. Keras writes the layer as sums, products and a root, and
TensorFlow some sixty operations for their gradient. Many are a pass over the image each, and each
costs the process some kilobytes for as long as the graph lives. The kernel is one operation. Its
numbers are the same except for the order in which they are added.

The layer's own results stay Keras's to the bit. If they were rounded otherwise, the difference
would grow from layer to layer, to a fifth of a gradient of ResNet50.

What it gains: benchmarks/notes/convolutions.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from ...seams.keras.normalization import fuse_batch_norm_gradient


def fuse_normalization_gradient() -> AbstractContextManager[None]:
    """Return the context in which a function is traced with one operation per such gradient."""
    return fuse_batch_norm_gradient()
