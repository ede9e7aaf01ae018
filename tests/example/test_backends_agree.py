"""The updates that other backends are compared with are TensorFlow's, and NumPy's the first one.

``tests/other_backends/test_example.py`` makes the same comparison on JAX and PyTorch.
"""

import numpy as np
import pytest

from tests.oracles.example_updates import UPDATES, first_loss, updates_from_start


@pytest.mark.parametrize("cell", UPDATES)
def test_the_first_updates(cell, tmp_path):
    figures = updates_from_start(tmp_path / "saves", cell, "--checkpoints", "3")
    assert figures["losses"][1] == pytest.approx(first_loss(cell), rel=1e-5)
    for name, wanted in UPDATES[cell].items():
        np.testing.assert_allclose(figures[name][1:], wanted, rtol=1e-4)
