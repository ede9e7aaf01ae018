"""Make Graphcore's names importable in the Python processes that a script starts.

``python3 -m keras_recompute.ipu SCRIPT`` adds this folder to the environment's PYTHONPATH. Every
Python imports a module of this name when it starts. A ``sitecustomize`` that this one hides is
loaded after it. Runs on Python 3.8.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    # The child sees the path that it would have without this folder.
    """Install the names, then load the ``sitecustomize`` that this module hides."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    sys.path.append(package)  # the parent may have found it in its working directory
    try:
        from keras_recompute.ipu import install

        install()
    except ImportError:
        pass  # a Python without our requirements has no TensorFlow that lacks the names either
    finally:
        sys.path.remove(package)
    behind = PathFinder.find_spec(__name__)
    if behind is not None and behind.loader is not None:
        sys.modules[__name__] = module_from_spec(behind)
        behind.loader.exec_module(sys.modules[__name__])


if __name__ == "sitecustomize":
    _start()
