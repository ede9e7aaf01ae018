"""The code of docs/migration.md, run block after block as a reader would."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

from keras_recompute.errors import RecomputeWarning

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


# The examples of other libraries with nothing to recompute;
# tests/engine/partition/test_policies.py tests the warning.
@pytest.mark.long
@pytest.mark.filterwarnings(
    r"ignore:the checkpoint of '(f|my_function|sequential\w*)' saves no memory"
)
def test_every_block_runs(capfd):
    names: dict = {}
    for number, code in enumerate(BLOCKS):
        # Where AutoGraph and the rows of residuals look for source code.
        file = f"migration-block-{number}"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        exec(compile(code, file, "exec"), names)
    out, err = capfd.readouterr()
    assert err.count("running") == 4, "one print per call of my_function, none in the backward pass"
    assert "float32[5] named 'a' from migration-block-" in out


def test_every_policy_in_the_table_exists():
    from keras_recompute.engine import inspection, policies

    table = [
        line.split("|")[2]
        for line in PAGE.read_text().split("### With Keras on JAX")[0].splitlines()
        if line.startswith(("| `", "| the"))
    ]
    named = set(re.findall(r"`(\w+)[(`]", " ".join(table))) - {
        "checkpoint",
        "checkpoint_name",
        "f",
        "p",
    }
    assert len(named) >= 11
    for name in named:
        assert hasattr(policies, name) or hasattr(inspection, name), name


def test_the_page_has_an_assertion_in_every_part():
    assert sum("assert" in code for code in BLOCKS) >= 9
    assert issubclass(RecomputeWarning, UserWarning)
