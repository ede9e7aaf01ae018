"""docs/comparison.md against what was found, and some of it found again."""

import json

import pytest

from benchmarks import features

PAGE = features.PAGE.read_text()
RESULTS = json.loads(features.RESULTS.read_text())


@pytest.mark.parametrize("backend", features.TITLES)
def test_the_tables_are_what_was_found(backend):
    table = features.table(RESULTS, backend)
    assert f"<!-- table:features-{backend} -->\n{table}\n<!-- /table" in PAGE


def test_ours_works_wherever_it_is():
    for backend, found in RESULTS.items():
        assert list(found["rows"]) == list(features.CHECKS), backend
        for name, cells in found["rows"].items():
            assert cells["keras_recompute"] == {"found": "works"}, (backend, name)


def outcomes(results, path):
    """Return what came of a file of Graphcore's, of its cases one by one."""
    rows = json.loads((features.ROOT / "benchmarks" / "results" / results).read_text())
    return [row["outcome"] for row in rows if row["path"].endswith(path)]


def test_of_graphcores_files_the_page_says_what_came_of_them():
    assert "published example of it passes" in PAGE
    assert "The one case of Graphcore's test of it does not" in PAGE
    example = "recomputation_checkpoints/recompute_lstm.py"
    assert outcomes("ipu_conformance.json", example) == ["pass"]
    assert outcomes("ipu_addon_tests.json", "/recomputation_test.py") == ["fails"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("dropout: the masks of the forward pass", "keras_recompute"),
        ("batch normalization: statistics counted once", "keras_recompute"),
        ("batch normalization: statistics counted once", "tf.recompute_grad"),
    ],
)
def test_a_cell_is_found_again(name, way):
    found = features.outcome(features.CHECKS[name], way)
    assert found["found"] == RESULTS["tensorflow"]["rows"][name][way]["found"]
