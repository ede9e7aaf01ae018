"""Recomputation checkpoints for Keras models on stock TensorFlow, and Graphcore's API for them."""
