"""Keras models with Graphcore's methods, and the strategy in whose scope they are made."""
