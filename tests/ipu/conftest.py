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


@pytest.fixture
def scope():
    """Run a test in the scope of an IPUStrategy. Needs ``graphcore_names``."""
    from tensorflow.python import ipu

    with ipu.ipu_strategy.IPUStrategy().scope() as strategy:
        yield strategy
