"""Keras 2 behaviour that Keras 3 dropped, for scripts written for Keras 2."""
