"""Protocol buffers of XLA programs: ``HloProto`` and its parts."""

from tensorflow.compiler.xla.service.hlo_pb2 import HloModuleProto, HloProto
from tensorflow.compiler.xla.xla_data_pb2 import ConvolutionDimensionNumbers, PrimitiveType

__all__ = ["ConvolutionDimensionNumbers", "HloModuleProto", "HloProto", "PrimitiveType"]
