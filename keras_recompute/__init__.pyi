from . import engine, errors, ipu, layers, liveness, models, planning, report
from .engine.marks import checkpoint_name
from .layers.recomputation_checkpoint import RecomputationCheckpoint
from .layers.recurrent import GRU, LSTM
from .layers.time_slice import TimeSlice
from .models.model import Model

__all__ = [
    "GRU",
    "LSTM",
    "Model",
    "RecomputationCheckpoint",
    "TimeSlice",
    "checkpoint_name",
    "engine",
    "errors",
    "ipu",
    "layers",
    "liveness",
    "models",
    "planning",
    "report",
]
