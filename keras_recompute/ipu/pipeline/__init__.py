"""Pipelines: the stages of a model, their programs, and the schedule that runs them."""
