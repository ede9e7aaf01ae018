"""Operations by what they cost: next to nothing, or as much as a program of their own."""

SHAPES = ("Shape", "ShapeN", "Size", "Rank")  # a few bytes, for which no element of the input is read
VIEWS = ("Reshape", "ExpandDims", "Squeeze")  # the elements of the first input, in the same order
SOURCES = ("Const", "NoOp", "Placeholder", "ReadVariableOp")  # nothing is computed
LOOPS = ("While", "StatelessWhile")
