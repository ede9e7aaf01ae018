"""Planning by costs: which sections of a chain of steps replay the least within a budget.

Pure Python without TensorFlow. ``Chain`` holds the costs of the steps. ``kr.plan`` and the models
plan by these modules; known optima to judge them by live with the tests (``tests/oracles``):

    chain              costs of the steps
    uniform_sections   equal sections, which a compiler can outline
    nested_sections    equal sections in several levels
    single_replay      any chain within a budget, each step run at most twice
    rnn_peak_formula   the peak of an LSTM or GRU, by a formula
    compile_search     a search whose costs are known by compiling only
    budget             the shared error
"""

from __future__ import annotations

import warnings as _warnings
from typing import Any as _Any

from ..errors import UnsupportedError as _UnsupportedError
from .budget import BudgetTooSmallError
from .chain import Chain
from .rnn_peak_formula import predicted_peak_bytes
from .uniform_sections import section_lengths

__all__ = ["BudgetTooSmallError", "Chain", "predicted_peak_bytes", "section_lengths"]

# Public in 0.2: planners whose plans no model ran, and their simulator.
_RETIRED = (
    "Outcome Plan binomial_plan binomial_replayed_steps longest_chain mixed_plan multilevel_plan "
    "optimal_plan simulate uniform_plan uniform_plan_within"
).split()


def __getattr__(name: str) -> _Any:
    if name not in _RETIRED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    gone = (
        f"keras_recompute.planning.{name} has left the package: no model ran by its plans. "
        "keras_recompute.plan plans a model, and the package checkpoint-schedules has schedules "
        "of equal steps"
    )
    _warnings.warn(gone, DeprecationWarning, stacklevel=2)

    def refuse(cls: type, *args: object, **options: object) -> None:  # noqa: ARG001
        raise _UnsupportedError(gone)

    # A class, so that annotations and ``isinstance`` with the name go on working.
    return type(name, (), {"__new__": refuse, "__doc__": gone})
