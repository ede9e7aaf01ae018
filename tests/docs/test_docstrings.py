"""The examples in public docstrings: every public name has one, and it runs."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_recompute as kr

ROOMS = ["compat", "distribute", "errors", "liveness", "planning", "policies", "report"]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
WITHOUT = {
    # A defect of the engine, a device that a machine may have
    *("InvalidProgramError", "TargetError"),
    "InvalidPlanError",  # is not raised any more
    # in the examples of the functions that return them
    *(
        "SaveNames",
        "SaveAllButNames",
        "Either",
        "MemoryRow",
        "MeasuredMemory",
        "CompiledProgram",
        "Profile",
    ),
    *("Step", "Buffer", "Timeline"),  # in the example of Program
    *("decide", "names_in"),  # how the engine asks a policy
}


def _public() -> dict[str, Any]:
    """Return the public functions and classes by the name that users give them."""
    found = {}
    for prefix, module in [("kr", kr), *((f"kr.{name}", getattr(kr, name)) for name in ROOMS)]:
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            is_ours = getattr(value, "__module__", "").startswith(module.__name__)
            if (
                is_ours
                and not name.startswith("_")
                and (inspect.isclass(value) or inspect.isroutine(value))
            ):
                found[f"{prefix}.{name}"] = value
    return {name: value for name, value in found.items() if name.rsplit(".", 1)[-1] not in WITHOUT}


PUBLIC = _public()


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestFinder().find(
        PUBLIC[name], name, globs={"kr": kr, "keras": keras, "np": np, "tf": tf}
    )
    examples = [test for test in found if test.examples]
    assert examples, f"{name} has no example"
    failures: list[str] = []
    for test in examples:
        doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=failures.append)
    assert not failures, "".join(failures)
