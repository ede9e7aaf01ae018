"""Thresholds: the numbers by which passes decide, with the reason for each.

What was measured: benchmarks/notes/passes.md, "Thresholds".
"""

# min_cut: what is made again follows from so many values at most. A gelu's slope and a gated
# product follow from two; a long sum would be added up again for each of its terms.
CUT_SOURCES = 2
# min_cut: and by so many operations one after the other at most, so that a chain which XLA repeats
# at each reader stays short.
CUT_STEPS = 64
# min_cut: what a byte costs, against 1 for a value that arithmetic makes: it decides between equal
# sizes, and nothing else.
CUT_BYTE = 4096

# scheduling: a result this many times larger than what is free by then is better made late, as
# behind a layer of one unit.
MUCH_LARGER = 8

# prevent_constant_folding: zeros of fewer elements may be constants: 16 KiB of float32, beside some
# KiB for each operation.
FOLDED_ELEMENTS = 4096

# unstacking: from so many elements per tensor on a choice is worth the operations that TensorFlow
# writes down for it.
UNSTACKED_ELEMENTS = 16384

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

# products, and layers: the size of a batch that is not known, which is Keras's own.
ASSUMED_BATCH = 32
