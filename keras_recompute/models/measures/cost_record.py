"""What one call of a layer keeps, reads and costs, whatever backend measured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .layer_workspace import Workspace, Workspaces

# Bytes of arrays by number, and numbers of inputs.
Sources = tuple[Mapping[int, int], frozenset[int]]


@dataclass(frozen=True)
class LayerCost:
    """What one call of a layer keeps, reads and costs.

    Attributes:
        kept: Bytes of each array of its own that its backward pass needs.
        kept_in_section: The same for a call that is recomputed in a section.
        reads: Numbers of the inputs that its backward pass computes with.
        multiplies: Numbers of the inputs that its backward pass multiplies by.
        needs: Numbers of the outputs that its backward pass needs.
        sources: For each output the arrays and inputs that it is computed from again; None for its
            own array.
        sources_in_section: The same in a section, which also repeats functions such as a sigmoid.
        cost: Operations, or seconds if the layer was timed.
        workspaces: What its compiled programs hold, if that is more than its tensors.
        is_cut: Whether it is cut along time in a model with checkpoints, as recurrent layers are.
            Then ``kept`` is what it keeps there, and ``workspaces`` have the rest.
        is_convolution: Whether it convolves.
    """

    kept: Mapping[int, int]
    kept_in_section: Mapping[int, int]
    reads: frozenset[int]
    multiplies: frozenset[int]
    needs: frozenset[int]
    sources: tuple[Sources | None, ...]
    sources_in_section: tuple[Sources | None, ...]
    cost: float
    workspaces: Workspaces | None
    is_cut: bool = False
    is_convolution: bool = False

    def workspace(self, *, in_section: bool) -> Workspace | None:
        """Return what its compiled program holds; None where its tensors say all there is."""
        if self.workspaces is None:
            return None
        return self.workspaces.section if in_section else self.workspaces.plain
