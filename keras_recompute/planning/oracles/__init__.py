"""Planners with known optima, by which tests and benchmarks judge the plans in use.

No model runs by their plans. ``docs/choosing.md`` and ``benchmarks/planning.py`` say how far the
plans in use are from the best.

    binomial_schedule  fewest replays for a number of stored states (Griewank & Walther 2000)
    mixed_schedule     states and activations in a budget, equal steps (Gruslys et al. 2016)
    optimal_schedule   the fastest plan in a budget, any chain (after Beaumont et al. 2019)
    pareto_frontier    all budgets of an uneven chain at once
    exhaustive_search  every order of actions of a short chain
"""
