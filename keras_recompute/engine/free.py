"""Operations that cost next to nothing, by type: what reads a shape, and what gives elements another shape."""

SHAPES = ("Shape", "ShapeN", "Size", "Rank")  # a few bytes, for which no element of the input is read
VIEWS = ("Reshape", "ExpandDims", "Squeeze")  # the elements of the first input, in the same order
SOURCES = ("Const", "NoOp", "Placeholder", "ReadVariableOp")  # nothing is computed
