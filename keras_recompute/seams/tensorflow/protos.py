"""Protocol buffers of XLA that are changed or written: modules, and numbers of convolutions."""

from tensorflow.compiler.xla.service.hlo_pb2 import HloModuleProto
from tensorflow.compiler.xla.xla_data_pb2 import ConvolutionDimensionNumbers

__all__ = ["ConvolutionDimensionNumbers", "HloModuleProto"]
