"""Of ``tensorflow.python.ipu.test_utils``: what says which IPUs a test needs.

On an IPU's machine tests that need more IPUs than there are do not run. Here as many as a configuration asks for are
emulated, and there is no hardware, so that all run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..configuration.config import DeviceConnectionType

_Test = Callable[..., Any]


def get_ci_num_ipus() -> int:
    """Return how many IPUs the environment says there are: ``TF_IPU_COUNT``, or 0."""
    return int(os.environ.get("TF_IPU_COUNT", "0"))


def has_ci_ipus() -> bool:
    """Return whether the environment says that there are IPUs."""
    return get_ci_num_ipus() > 0


def add_hw_ci_connection_options(opts: Any) -> None:
    """Have ``opts``, an IPUConfig, connect to IPUs on demand, as several tests on one machine must."""
    opts.device_connection.enable_remote_buffers = True
    opts.device_connection.type = DeviceConnectionType.ON_DEMAND


def test_uses_ipus(num_ipus: int, allow_ipu_model: bool = False, func: _Test | None = None) -> Any:  # noqa: PT028
    """Return the decorator for a test that needs IPUs, or ``func`` decorated: the test as it is.

    Args:
        num_ipus: How many it needs.
        allow_ipu_model: Whether Poplar's simulator will do.
        func: The test; without it the decorator is returned.
    """
    del num_ipus, allow_ipu_model
    return _as_it_is if func is None else func


def test_may_use_ipus_or_model(num_ipus: int, func: _Test | None = None) -> Any:  # noqa: PT028
    """Do as ``test_uses_ipus`` for a test that runs on Poplar's simulator too."""
    return test_uses_ipus(num_ipus, True, func)


def skip_on_hw(func: _Test) -> _Test:
    """Return ``func``, a test that is not for hardware, as it is."""
    return func


def skip_if_not_enough_ipus(self: Any, num_ipus: int) -> None:
    """Leave the test case ``self``, which needs ``num_ipus``, to run."""


def _as_it_is(func: _Test) -> _Test:
    return func


# So that pytest does not take them for tests.
test_uses_ipus.__test__ = test_may_use_ipus_or_model.__test__ = False  # type: ignore[attr-defined]
