"""The script makes Graphcore's names importable in the process that it runs in; other tests find it
as it was.
"""

import pytest

from keras_recompute.keras_backend import TENSORFLOW, current_backend


@pytest.fixture(scope="module", autouse=True)
def _names_are_taken_back():
    yield
    if current_backend() == TENSORFLOW:
        from keras_recompute.ipu import uninstall

        uninstall()
