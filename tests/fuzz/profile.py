"""How long to search: about 120 examples, always the same, or as many as KERAS_RECOMPUTE_FUZZ says,
each time others.

``KERAS_RECOMPUTE_FUZZ=long`` are 20,000, ``KERAS_RECOMPUTE_FUZZ=5000`` as many as it says.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

DEFAULT, LONG = 120, 20_000


def examples() -> int:
    """Return how many examples are asked for."""
    asked = os.environ.get("KERAS_RECOMPUTE_FUZZ", "")
    return LONG if asked == "long" else int(asked or DEFAULT)


def settings_for(*, share: float, steps: int = 0) -> settings:
    """Return the settings of a test that has ``share`` of all examples, of at most ``steps`` steps
    if it has steps.
    """
    return settings(
        max_examples=max(1, round(share * examples())),
        stateful_step_count=steps or 1,
        derandomize=examples() == DEFAULT,
        database=None,
        deadline=None,
        print_blob=False,
        phases=[Phase.generate] if steps else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
