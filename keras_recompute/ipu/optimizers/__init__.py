"""Graphcore's optimisers."""
