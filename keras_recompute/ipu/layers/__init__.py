"""Graphcore's layers."""
