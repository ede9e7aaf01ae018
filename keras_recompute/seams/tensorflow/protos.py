"""The records in which XLA writes programs: ``HloProto``, ``PrimitiveType`` and ``ConvolutionDimensionNumbers``."""

from tensorflow.compiler.xla.service.hlo_pb2 import HloProto
from tensorflow.compiler.xla.xla_data_pb2 import ConvolutionDimensionNumbers, PrimitiveType

__all__ = ["ConvolutionDimensionNumbers", "HloProto", "PrimitiveType"]
