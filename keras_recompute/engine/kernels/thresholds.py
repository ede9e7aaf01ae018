"""Thresholds: the numbers by which kernels are chosen, with the reason for each.

What was measured: benchmarks/notes/passes.md, "Thresholds".
"""

# poolings: places in a window, so terms of a sum. A larger one is left to XLA's loop, whose program
# does not grow with it.
POOLED_PLACES = 64

# products: the gradient of an image of so few places is a product for each place of the kernel. On
# larger ones a convolution with the kernel turned round is as fast.
FEW_PLACES = 64

# products: the gradient of a kernel with so few results for an image is one product of what the
# kernel reads for all of them. TensorFlow's own is as fast where there are more.
GATHERED_PLACES = 16

# products: so many elements more than there are otherwise, 8 MiB of float32, are what either of
# them may take.
SPREAD_ELEMENTS = 2**21

# products: a product of so few rows is made the other way round, as TensorFlow divides it among
# threads by its rows.
FEW_ROWS = 128
