"""The updates that other backends are compared with are TensorFlow's, and NumPy's the first one.

``tests/other_backends/test_example.py`` makes the same comparison on JAX and PyTorch.
"""

import pytest

from tests.oracles.example_updates import UPDATES, assert_first_updates_agree


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, marks=() if cell == "lstm" else pytest.mark.long(every_case=True))
        for cell in UPDATES
    ],
)
def test_the_first_updates(cell, tmp_path):
    assert_first_updates_agree(tmp_path / "saves", cell)
