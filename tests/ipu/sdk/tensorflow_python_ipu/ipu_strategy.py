import contextlib

import sdk_keras
from sdk_calls import record, wrong

from .config import in_force


class IPUStrategyV1:
    def __init__(self, ipu_device="/device:IPU:0", add_ipu_cross_replica_reductions=True):  # noqa: ARG002
        record("IPUStrategy")
        if not in_force:
            wrong("a strategy before configure_ipu_system()")

    @contextlib.contextmanager
    def scope(self):
        record("scope")
        with sdk_keras.models_for_ipus():
            yield self
        record("end of scope")


IPUStrategy = IPUStrategyV1
