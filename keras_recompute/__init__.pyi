from . import compat, distribute, engine, errors, ipu, layers, liveness, models, planning, report
from .engine import policies
from .inspection import (
    forward_backward,
    print_forward_backward,
    print_saved_residuals,
    replay_count,
    saved_residuals,
)
from .layers.attention import MultiHeadAttention
from .layers.backend_checkpoint import checkpoint_name
from .layers.backend_scopes import keep_scope, recompute_scope
from .layers.backend_updates import updates_in_backward
from .layers.checkpoint import checkpoint
from .layers.recomputation_checkpoint import RecomputationCheckpoint
from .layers.recurrent import GRU, LSTM
from .layers.time_slice import TimeSlice
from .models.classes.model import Model
from .models.plans.checkpointed import checkpointed
from .models.plans.memory_plan import plan

__version__: str

__all__ = [
    "GRU",
    "LSTM",
    "Model",
    "MultiHeadAttention",
    "RecomputationCheckpoint",
    "TimeSlice",
    "checkpoint",
    "checkpoint_name",
    "checkpointed",
    "compat",
    "distribute",
    "engine",
    "errors",
    "forward_backward",
    "ipu",
    "keep_scope",
    "layers",
    "liveness",
    "models",
    "plan",
    "planning",
    "policies",
    "print_forward_backward",
    "print_saved_residuals",
    "recompute_scope",
    "replay_count",
    "report",
    "saved_residuals",
    "updates_in_backward",
]
