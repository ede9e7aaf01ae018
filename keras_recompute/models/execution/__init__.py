"""The sections of a model as they run, on each backend."""
