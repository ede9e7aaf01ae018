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
