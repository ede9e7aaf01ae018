"""Several processes that train one model: they join, agree, notice when one is lost, and start together on one machine."""

from .joining import join
from .launch import launch

__all__ = ["join", "launch"]
