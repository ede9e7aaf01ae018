"""Planners to measure others by: the fewest replays, and the fastest plans under a budget, that are
known for a chain.

No model runs by their plans. They say how far the plans in use are from the best: in the tests, in
docs/choosing.md and in ``benchmarks/planning.py``.

    binomial                   fewest replays for a number of stored states (Griewank & Walther
    2000) mixed                      states and activations under a budget, equal steps (Gruslys et
    al. 2016) optimal                    the fastest plan under a budget, any chain (in the spirit
    of Beaumont et al. 2019) staircase, exhaustive      what ``optimal`` asks: all budgets of an
    uneven chain at once; every order of a short one
"""
