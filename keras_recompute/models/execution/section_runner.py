"""The class that runs the sections of a ``Model``, for the backend that Keras runs on.

The interface of a ``SectionRunner``: ``_plan_of`` makes the plan of a graph, and depends on what
``_layers_version`` counts. ``_prepare_runs`` prepares the runs of a new plan. ``_prepared`` returns
the model's ``call`` as it is to be called. ``_is_recomputed`` says whether a call on flat inputs
goes by sections, and ``_run_sections`` runs those of a plan. ``TrainedModel`` is a base class of
all models that recompute, those of ``checkpointed(layers=)`` too: ``recomputed_call`` makes the
calls of their layers, and ``recomputes_itself`` says of a layer that it needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...keras_backend import TENSORFLOW, current_backend

if TYPE_CHECKING or current_backend() == TENSORFLOW:
    from .replicated_training import ReplicatedTraining as TrainedModel
    from .tensorflow_calls import recomputed_call, recomputes_itself
    from .tensorflow_sections import SectionRunner
else:
    from .stateless_sections import SectionRunner, TrainedModel, recomputed_call, recomputes_itself

__all__ = ["SectionRunner", "TrainedModel", "recomputed_call", "recomputes_itself"]
