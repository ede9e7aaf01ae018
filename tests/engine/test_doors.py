"""The engine is entered by its doors, and what it does knows neither a pass nor a compiler."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from docs.rooms import ROOT, imports, module_name

PACKAGE = ROOT / "keras_recompute"
ENGINE = sorted((PACKAGE / "engine").rglob("*.py"))
OTHERS = [file for file in sorted(PACKAGE.rglob("*.py")) if file not in ENGINE]
MECHANISM = [f for f in ENGINE if f.parent.name not in ("engine", "kernels", "passes")]


@pytest.mark.parametrize("file", MECHANISM, ids=module_name)
def test_the_mechanism_knows_no_pass(file: Path):
    """It is handed a target, or looks one up in the list of passes; neither a pass nor a compiler
    has its name there.
    """
    lists = ("keras_recompute.engine.passes.", "keras_recompute.engine.kernels.")
    single = [name for _, name in imports(file) if name.startswith(lists)]
    assert not single, (
        f"{module_name(file)} imports {single}: give it a point in engine/graph/target.py instead"
    )
    asked = [
        node.lineno
        for node in ast.walk(ast.parse(file.read_text()))
        if getattr(node, "attr", "") in ("is_xla", "compiler")
    ]
    assert file.stem == "target" or not asked, (
        f"{file.name} asks for the compiler in lines {asked}: let the target say what is true"
    )


# What the rest of the package may import of the engine: names of these, and nothing behind them.
DOORS_OF_THE_ENGINE = ("", ".calls", ".graph", ".inspection", ".policies", ".scan")


@pytest.mark.parametrize("file", OTHERS, ids=module_name)
def test_the_engine_is_entered_by_its_doors(file: Path):
    doors = {f"keras_recompute.engine{door}" for door in DOORS_OF_THE_ENGINE}
    behind = set()
    for node, name in imports(file):
        if not name.startswith("keras_recompute.engine"):
            continue
        if name not in doors:
            behind.add(name)
        elif isinstance(node, ast.ImportFrom) and not name.endswith(".policies"):
            door = importlib.import_module(name)
            named = {alias.name for alias in node.names} - {"policies"}
            behind |= {f"{name}.{each}" for each in named - set(door.__all__)}
    assert not behind, (
        f"{module_name(file)} imports {sorted(behind)} from behind the engine's doors"
    )
