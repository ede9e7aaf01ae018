"""Training of one model by several processes: join a cluster, or launch one on this machine."""

from .launcher import launch
from .membership import join

__all__ = ["join", "launch"]
