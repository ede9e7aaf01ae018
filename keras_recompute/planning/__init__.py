"""Plans: which states to store, which activations to keep and what to run twice, for a chain of steps.

Pure Python, and knows nothing of TensorFlow. ``Chain`` says what the steps cost, a planner makes a ``Plan`` of actions,
``simulate`` runs any plan by the rules and counts. The map, with what each planner is optimal for in its own module:

    chain, actions, simulate   the three things a plan needs: what, how, and the judge; the six actions live in ``actions``
    uniform, multilevel        equal sections, which a compiler can outline
    binomial                   fewest replays for a number of stored states (Griewank & Walther 2000)
    mixed                      states and activations under a budget, equal steps (Gruslys et al. 2016)
    optimal                    the fastest plan under a budget, any chain (in the spirit of Beaumont et al. 2019)
    recurrent                  the sizes of an LSTM or GRU, and the peak predicted from them
    segments                   how planners speak; staircase, twice, exhaustive: what ``optimal`` asks
"""

from .actions import Plan
from .binomial import binomial_plan, binomial_replayed_steps, longest_chain
from .budget import BudgetTooSmallError
from .chain import Chain
from .mixed import mixed_plan
from .multilevel import multilevel_plan
from .optimal import optimal_plan
from .recurrent import predicted_peak_bytes
from .simulate import Outcome, simulate
from .uniform import section_lengths, uniform_plan, uniform_plan_within

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
