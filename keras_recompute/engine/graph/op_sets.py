"""Sets of operation types, by what they do and cost; and sizes of tensors."""

from __future__ import annotations

import math

import tensorflow as tf

EXTREMA = ("Max", "Min", "SegmentMax", "SegmentMin", "UnsortedSegmentMax", "UnsortedSegmentMin")
SHAPES = (
    "Shape",
    "ShapeN",
    "Size",
    "Rank",
)  # a few bytes, for which no element of the input is read
# The elements of the first input, in the same order.
VIEWS = ("Reshape", "ExpandDims", "Squeeze")
SOURCES = ("Const", "NoOp", "Placeholder", "ReadVariableOp")  # nothing is computed
LOOPS = ("While", "StatelessWhile")
# The prefix of the names of branches that return what they are given (see ``fence.materialize``).
HANDS_ON = "hands_on"
# Arithmetic on elements, and layout: XLA repeats these wherever their results are read.
CHEAP = frozenset(VIEWS).union(
    "Abs Add AddN AddV2 BiasAdd BroadcastTo Cast Equal Fill FusedBatchNormV3 Greater GreaterEqual "
    "LeakyRelu Less".split(),
    "LessEqual LogicalAnd LogicalNot Maximum Minimum Mul Neg NotEqual OnesLike Pad PadV2 "
    "PreventGradient RealDiv".split(),
    "Reciprocal Relu Relu6 Rsqrt Select SelectV2 Sign Slice Sqrt Square SquaredDifference "
    "StopGradient StridedSlice".split(),
    "Sub Tile Transpose ZerosLike".split(),
)

# Functions of single elements that take longer than arithmetic, but a fraction of the time of a
# product.
ELEMENTWISE = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Elu Erf Erfc Exp Expm1 Log Log1p Pow Selu Sigmoid "
    "Sin Sinh Softplus".split()
    + "Softsign Tan Tanh Xlogy".split()
)

# Gradients of activations: arithmetic on the elements of the incoming gradient and of a result.
SLOPES = frozenset(
    "EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SigmoidGrad SoftplusGrad SoftsignGrad "
    "TanhGrad".split()
)

MATMULS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
PRODUCTS = frozenset(MATMULS).union(
    CONVOLUTIONS,
    "Conv2DBackpropFilter Conv2DBackpropInput Conv3DBackpropFilterV2 Conv3DBackpropInputV2".split(),
    "DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Einsum XlaDot "
    "XlaDotV2".split(),
)


def known_elements(tensor: tf.Tensor) -> int:
    """Return the number of elements, without dimensions that are unknown while tracing."""
    if tensor.shape.rank is None:
        return 1
    return math.prod(size for size in tensor.shape if size is not None)


def is_compared(tensor: tf.Tensor) -> bool:
    """Whether elements of ``tensor`` are found by equality, as by the gradient of a maximum.

    Such a tensor must be computed once for all of its readers.
    """
    return tensor.dtype.is_floating and "Equal" in {reader.type for reader in tensor.consumers()}
