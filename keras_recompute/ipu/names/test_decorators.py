"""The part of ``tensorflow.python.ipu.test_utils`` that says which IPUs a test needs.

On an IPU machine, tests that need more IPUs than there are do not run. Here all tests run, because
any number of IPUs is emulated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..configuration.config import DeviceConnectionType

_Test = Callable[..., Any]


def get_ci_num_ipus() -> int:
    """Return the number of IPUs that ``TF_IPU_COUNT`` names, or 0."""
    return int(os.environ.get("TF_IPU_COUNT", "0"))


def has_ci_ipus() -> bool:
    """Return whether the environment names IPUs."""
    return get_ci_num_ipus() > 0


def add_hw_ci_connection_options(opts: Any) -> None:
    """Set ``opts``, an IPUConfig, to connect on demand, so that tests share a machine."""
    opts.device_connection.enable_remote_buffers = True
    opts.device_connection.type = DeviceConnectionType.ON_DEMAND


def test_uses_ipus(num_ipus: int, allow_ipu_model: bool = False, func: _Test | None = None) -> Any:  # noqa: PT028
    """Return the decorator for a test that needs IPUs; the test is not changed.

    Args:
        num_ipus: The number of IPUs that it needs.
        allow_ipu_model: Whether Poplar's simulator suffices.
        func: The test; without it the decorator is returned.
    """
    del num_ipus, allow_ipu_model
    return _as_it_is if func is None else func


def test_may_use_ipus_or_model(num_ipus: int, func: _Test | None = None) -> Any:  # noqa: PT028
    """Return the decorator for a test that needs IPUs or Poplar's simulator.

    See ``test_uses_ipus``.
    """
    return test_uses_ipus(num_ipus, True, func)


def skip_on_hw(func: _Test) -> _Test:
    """Return ``func`` unchanged: it is skipped on hardware only."""
    return func


def skip_if_not_enough_ipus(self: Any, num_ipus: int) -> None:
    """Do nothing: the test case ``self`` runs with any ``num_ipus``."""


def _as_it_is(func: _Test) -> _Test:
    return func


# Their names look like those of tests to pytest.
test_uses_ipus.__test__ = test_may_use_ipus_or_model.__test__ = False  # type: ignore[attr-defined]
