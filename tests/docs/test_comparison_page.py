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
