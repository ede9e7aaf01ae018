"""The engine: one mechanism under everything that this project recomputes.

A function is traced into a graph (``trace``), differentiated inside it (``joint``), split by a policy into a forward and
a backward program that pass a check (``partition``, ``program``), and written into the caller's graph, once (``lower``) or
as the body of a loop over equal sections (``outline``).
"""

from . import policies
from .xla_flags import prefer_low_memory

__all__ = ["policies"]

# Before anything is compiled: XLA reads the option once.
prefer_low_memory()
