"""This project with the checkpoints that its own planners choose.

The budget is what the program with checkpoints placed by hand needs: its compiled temporaries. The
planner is to find the fastest plan whose compiled program needs no more: for a recurrent layer as
``recompute_lstm.py --checkpoints auto`` does, for blocks of layers by ``keras_recompute.plan``,
which may cut within a block. Where it finds none, the leanest that it compiled is taken. Nothing is
run while it chooses.
"""

from __future__ import annotations

from dataclasses import replace

from workloads import Workload

import keras_recompute as kr
from keras_recompute.planning import BudgetTooSmallError, predicted_peak_bytes
from keras_recompute.planning.compile_search import cheapest_within_budget
from lstm_example.plan_choice import PREDICTION_ERROR
from lstm_example.sequence_plans import SequencePlan, plans_for

from . import Peer
from .ours import model, trained


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer with the fastest plan that needs no more memory than ``checkpoints`` placed
    by hand.
    """
    del name
    budget_bytes = _needed_bytes(workload, model(workload, checkpoints))
    planned, plan = (_recurrent if workload.is_recurrent else _layers)(workload, budget_bytes)
    return replace(trained(workload, planned), plan=plan)


def _needed_bytes(workload: Workload, candidate: kr.Model) -> int:
    needed = trained(workload, candidate).temporary_bytes()
    assert needed is not None  # what is compiled is known
    return needed


def _recurrent(workload: Workload, budget_bytes: int) -> tuple[kr.Model, str]:
    tried: dict[SequencePlan, tuple[int, kr.Model]] = {}

    def predicted_bytes(plan: SequencePlan) -> int:
        return predicted_peak_bytes(
            cell=workload.kind,
            steps=workload.length,
            checkpoints=plan.checkpoints,
            recompute=plan.recompute,
            batch=workload.batch,
            features=workload.features,
            units=workload.units,
            outputs=1,
            levels=plan.levels,
        )

    def needed_bytes(plan: SequencePlan) -> int:
        candidate = model(workload, plan.checkpoints, plan.levels)
        tried[plan] = _needed_bytes(workload, candidate), candidate
        return tried[plan][0]

    try:
        plan = cheapest_within_budget(
            plans_for(workload.length),
            budget_bytes=budget_bytes,
            predicted_bytes=predicted_bytes,
            needed_bytes=needed_bytes,
            known={},
            prediction_error=PREDICTION_ERROR,
        )
    # A program's temporaries may differ by some bytes from one compilation to the next.
    except BudgetTooSmallError:
        plan = min(tried, key=lambda each: tried[each][0])
    return tried[plan][1], str(plan)


def _layers(workload: Workload, budget_bytes: int) -> tuple[kr.Model, str]:
    tried: list[tuple[int, kr.Model]] = []

    def needed_bytes(candidate: kr.Model) -> int:
        tried.append((_needed_bytes(workload, candidate), candidate))
        return tried[-1][0]

    try:
        planned, _ = kr.plan(
            model(workload, 0), memory_budget=budget_bytes, needed_bytes=needed_bytes
        )
    except BudgetTooSmallError:
        planned = min(tried, key=lambda pair: pair[0])[1]
    count = len(planned.plan.checkpoints)
    return planned, f"{count} checkpoint{'s' if count != 1 else ''}"
