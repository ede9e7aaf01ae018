"""Checkpointing plans for a chain of steps: what to store, what to keep, and what to run twice.

Pure Python without TensorFlow. ``Chain`` holds the costs of the steps. A planner makes a ``Plan``
of actions. ``simulate`` runs any plan by the rules and counts its costs. Each planner's module says
for what it is optimal:

    chain, actions, simulate   costs, the six actions, and the simulator
    uniform_sections           equal sections, which a compiler can outline
    nested_sections            equal sections in several levels
    single_replay              any chain within a budget, each step run at most twice
    rnn_peak_formula           the peak of an LSTM or GRU, by a formula
    compile_search             a search whose costs are known by compiling only
    budget, segments           the shared error, and the form that planners return
    oracles                    known optima to compare with: binomial, mixed and optimal plans
"""

from .actions import Plan
from .budget import BudgetTooSmallError
from .chain import Chain
from .nested_sections import multilevel_plan
from .oracles.binomial_schedule import binomial_plan, binomial_replayed_steps, longest_chain
from .oracles.mixed_schedule import mixed_plan
from .oracles.optimal_schedule import optimal_plan
from .rnn_peak_formula import predicted_peak_bytes
from .simulate import Outcome, simulate
from .uniform_sections import section_lengths, uniform_plan, uniform_plan_within

__all__ = [
    "BudgetTooSmallError",
    "Chain",
    "Outcome",
    "Plan",
    "binomial_plan",
    "binomial_replayed_steps",
    "longest_chain",
    "mixed_plan",
    "multilevel_plan",
    "optimal_plan",
    "predicted_peak_bytes",
    "section_lengths",
    "simulate",
    "uniform_plan",
    "uniform_plan_within",
]
