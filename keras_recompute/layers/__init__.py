"""Layers that work in any Keras model: the checkpoint mark, a slice of time, and the fused recurrent layers."""
