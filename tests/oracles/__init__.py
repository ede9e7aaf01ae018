"""Known optima, by which tests and benchmarks judge the planners in use.

equal_steps        the fewest replays of equal steps, as checkpoint-schedules counts them
exhaustive_search  every order of actions of a short chain
"""
