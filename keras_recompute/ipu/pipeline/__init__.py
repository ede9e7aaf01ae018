"""Pipelines: which stage a call belongs to, the programs of the stages, and the schedule that runs them."""
