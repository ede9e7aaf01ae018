"""Several processes that train one model: they join, agree, notice when one is lost, and start
together on one machine.
"""

from .launcher import launch
from .membership import join

__all__ = ["join", "launch"]
