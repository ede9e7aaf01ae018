"""A fixture with Graphcore's names, for test modules that import them.

They use ``pytestmark = pytest.mark.usefixtures("graphcore_names")``.
"""

import pytest


@pytest.fixture(scope="module")
def graphcore_names():
    from keras_recompute.ipu import install, uninstall

    install()
    yield
    from tensorflow.python import ipu

    ipu.config.reset_ipu_configuration()
    uninstall()
