"""Plans: which states to store, which activations to keep and what to run twice, for a chain of
steps.

Pure Python, and knows nothing of TensorFlow. ``Chain`` says what the steps cost, a planner makes a
``Plan`` of actions, ``simulate`` runs any plan by the rules and counts. The map, with what each
planner is optimal for in its own module:

    chain, actions, simulate   the three things a plan needs: what, how, and the judge; the six
        actions live in ``actions`` uniform, multilevel        equal sections, which a compiler can
        outline twice                      any chain cut so that no step runs more than twice, under
        a budget recurrent                  the sizes of an LSTM or GRU, and the peak predicted from
        them within                     searching a budget where only compiling tells what a plan
        needs budget, segments           the refusal that planners share; the form of what they
        return
    reference                  what others are measured by: binomial, mixed and optimal plans
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
