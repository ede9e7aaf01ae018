"""The engine: traces a function, differentiates it, and decides what its backward pass recomputes.

This is its door: what the rest of the package uses stands here and in ``graph``, ``calls``,
``scan`` and ``policies``, and nothing else is imported from outside. A function goes through it in
three steps:

    traced = trace(function, signature, target_now())
    part = build(traced, policy, owners=layers)     # checks, gradient, forward and backward program
    results = lower(part, arguments, name="block")  # written into the caller's graph

``checkpoint`` does this for any Python callable, ``scan`` for equal sections in a loop. The
folders, from the bottom up; each uses only those before it:

* ``graph``: dataflow, kinds of operations, targets and constants.
* ``calls``: what a Python call is given, uses and changes.
* ``capture``: a function as a graph with its gradient (``trace``, ``joint_graph``), and functions
  with a custom VJP.
* ``partition``: what is saved and what is replayed; the forward and the backward program.
* ``kernels``: operations that XLA:CPU or TensorFlow run faster, or with less memory, when written
  otherwise. They have nothing to do with recomputation.
* ``passes``: what makes the saving real under one compiler. The list of all passes and kernels.
* ``emit``: writes programs into the caller's graph, behind custom gradients.
* ``frontend``: ``build`` and ``checkpoint``.
* ``scan``: loops over equal sections, and the stores of their slices.
* ``inspection``: what a function keeps and repeats, for users.
"""

from typing import Any as _Any

import lazy_loader as _lazy

from ..keras_backend import require as _require

_load, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def __getattr__(name: str) -> _Any:
    # The policies are those of every backend.
    if name in __all__ and name != "policies":
        _require("engine")
    return _load(name)
