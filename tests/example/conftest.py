"""The script makes Graphcore's names importable in the process that it runs in; other tests find it
as it was.
"""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _names_are_taken_back():
    yield
    from keras_recompute.ipu import uninstall

    uninstall()
