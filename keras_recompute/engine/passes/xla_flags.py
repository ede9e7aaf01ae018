"""The one XLA option that recomputation depends on, set before XLA reads it.

By default XLA:CPU orders a program for concurrency: it starts the work of all sections as early as it can, and so undoes
the saving. XLA reads its options once, when it compiles for the first time, from the environment variable XLA_FLAGS.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from ...errors import RecomputeWarning

_OPTION = "--xla_cpu_enable_concurrency_optimized_scheduler"


def prefer_low_memory() -> None:
    """Turn XLA:CPU's concurrency scheduler off for this process, unless XLA_FLAGS says something about it already.

    Warns with RecomputeWarning if XLA has started without the option, because it is too late then.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _OPTION in flags:
        return
    if _xla_has_started():
        warnings.warn(
            f"XLA has already compiled something in this process with its concurrency scheduler on, and recomputation may "
            f"not lower the peak: import keras_recompute before the first compilation, or set XLA_FLAGS={_OPTION}=false",
            RecomputeWarning,
            stacklevel=2,
        )
        return
    os.environ["XLA_FLAGS"] = f"{flags} {_OPTION}=false".strip()


def _xla_has_started() -> bool:
    """Whether XLA's CPU client exists. It has no other sign than the name of its threads, which only Linux shows."""
    try:
        names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    except OSError:
        return False
    return any("XLAEigen" in name for name in names)
