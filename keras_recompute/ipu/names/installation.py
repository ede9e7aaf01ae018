"""Make Graphcore's names importable on stock TensorFlow.

``install()`` makes the names of ``NAMES`` importable, and ``uninstall()`` removes them. Nothing is
patched before the call. Beside the Poplar SDK, whose TensorFlow has these modules, it only logs a
message.

If TensorFlow is not loaded yet, the names are created after it is. So settings that a script makes
before it imports TensorFlow, such as environment variables, still count. Runs on Python 3.8, to
detect the SDK there.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from contextlib import ExitStack
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ..configuration.missing_names import AbsentModuleError, AbsentNameError, why_missing

# The modules of keras.optimizer_v2; each has all its names here.
_OF_OPTIMIZER_V2 = (
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "ftrl",
    "gradient_descent",
    "learning_rate_schedule",
    "nadam",
    "optimizer_v2",
    "rmsprop",
)
_OPTIMIZER_V2 = {f"keras.optimizer_v2.{name}": "names.optimizer_v2" for name in _OF_OPTIMIZER_V2}
_KERAS_IPU: dict[str, str | None] = {}
for _keras in ("keras", "tensorflow.keras", "tensorflow.python.keras"):
    _KERAS_IPU[f"{_keras}.ipu"] = "names.keras_ipu"
    _KERAS_IPU[f"{_keras}.ipu.extensions"] = "names.keras_extensions"
    _KERAS_IPU[f"{_keras}.ipu.optimizers"] = None
# Graphcore's module -> our module with its contents, in ``keras_recompute.ipu``. None stands for a
# package that only holds other modules.
NAMES = {
    "tensorflow.python.ipu": None,
    "tensorflow.python.ipu.config": "configuration.config",
    "tensorflow.python.ipu.cross_replica_ops": "names.cross_replica_ops",
    "tensorflow.python.ipu.gradient_accumulation": "names.gradient_accumulation",
    "tensorflow.python.ipu.ipu_infeed_queue": "queues.infeed",
    "tensorflow.python.ipu.ipu_outfeed_queue": "queues.outfeed",
    "tensorflow.python.ipu.ipu_strategy": "models.strategy",
    "tensorflow.python.ipu.nn_ops": "names.nn_ops",
    "tensorflow.python.ipu.ops": None,
    "tensorflow.python.ipu.ops.cross_replica_ops": "names.cross_replica_ops",
    "tensorflow.python.ipu.ops.f8_ops": "names.f8_ops",
    "tensorflow.python.ipu.ops.nn_ops": "names.nn_ops",
    "tensorflow.python.ipu.ops.pipelining_ops": "pipeline.pipelining_ops",
    "tensorflow.python.ipu.optimizers": "names.gradient_accumulation",
    "tensorflow.python.ipu.pipelining_ops": "pipeline.pipelining_ops",
    "tensorflow.python.ipu.scopes": "names.scopes",
    "tensorflow.python.ipu.test_utils": "names.test_utils",
    "tensorflow.python.ipu.utils": "names.utils",
    **_KERAS_IPU,
    "keras.engine": None,
    "keras.engine.input_layer": "names.input_layer",
    "keras.optimizer_v2": None,
    **_OPTIMIZER_V2,
    "ipu_tensorflow_addons": None,
    "ipu_tensorflow_addons.keras": None,
    "ipu_tensorflow_addons.keras.layers": "names.addon_layers",
    "ipu_tensorflow_addons.keras.optimizers": "names.addon_optimizers",
    "pva": "reports.pva",
}
# Packages that belong to the SDK; if they are not installed, an error explains the alternative.
_SDK_PACKAGES = ("horovod", "popdist")
_WITHOUT_TENSORFLOW = ("pva",)
_AWAITED = ("tensorflow", "keras")
_ABSENT = object()

_undo: list[tuple[Any, str, Any]] = []  # owner, name, previous value
# Name -> the module that had it before.
_made: dict[str, ModuleType | None] = {}
_finders: list[MetaPathFinder] = []
# The adaptations to Keras 2.
_adapted = ExitStack()
# Not empty while the names are being created.
_making: list[bool] = []


def has_sdk() -> bool:
    """Return whether the installed TensorFlow is the Poplar SDK's. Loads nothing."""
    tensorflow = importlib.util.find_spec("tensorflow")
    folders = (tensorflow.submodule_search_locations if tensorflow else None) or []
    return any((Path(folder) / "python" / "ipu").is_dir() for folder in folders)


def install() -> bool:
    """Make Graphcore's names importable.

    Returns False, without any change, if the Poplar SDK provides them.
    """
    if _finders:
        return True
    if has_sdk():
        logging.getLogger(__name__).warning(
            "keras_recompute.ipu installs nothing: this TensorFlow is the Poplar SDK's and has "
            "Graphcore's modules"
        )
        return False
    _finders.append(_Finder())
    # The default finders would fail on submodules of TensorFlow that are not on disk.
    sys.meta_path.insert(0, _finders[0])
    try:
        if "tensorflow" in sys.modules:
            _make_all()
    except BaseException:
        uninstall()
        raise
    return True


def uninstall() -> None:
    """Remove the names that ``install`` created, and restore what they replaced."""
    while _finders:
        sys.meta_path.remove(_finders.pop())
    _adapted.close()
    while _undo:
        # The last change is undone first, because names may have been set twice.
        owner, name, before = _undo.pop()
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    while _made:
        name, module = _made.popitem()
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def _make_all() -> None:
    """Create all modules, and adapt Keras to Keras 2's usages."""
    _making.append(True)
    try:
        for ours in filter(None, NAMES.values()):
            # All imports come first: an error then leaves no part of the names behind.
            importlib.import_module(f"...{ours}", __name__)
        for name in NAMES:
            if name not in _made:
                _make(name)
        _adapted.close()
        _adapted.enter_context(
            importlib.import_module("...keras2.adaptations", __name__).adapt_keras()
        )
    finally:
        _making.pop()


def _make(name: str) -> ModuleType:
    """Create and return module ``name`` with the contents of our module.

    It is entered in ``sys.modules`` and in its package.
    """
    module = ModuleType(name, f"{name}, provided by keras_recompute.ipu on stock TensorFlow.")
    # A path, even an empty one, makes it a package whose modules can be imported.
    module.__path__ = []
    ours = NAMES[name]
    if ours is not None:
        source = importlib.import_module(f"...{ours}", __name__)
        for key in getattr(
            source, "__all__", [key for key in vars(source) if not key.startswith("_")]
        ):
            setattr(module, key, getattr(source, key))
    module.__getattr__ = lambda missing: _raise_absent(name, missing)  # type: ignore[method-assign]
    _made[name] = sys.modules.get(name)
    sys.modules[name] = module
    package, _, last = name.rpartition(".")
    if package:
        owner = importlib.import_module(package)
        _undo.append((owner, last, vars(owner).get(last, _ABSENT)))
        setattr(owner, last, module)
    return module


def _raise_absent(module: str, name: str) -> Any:
    """Raise AbsentNameError, or AttributeError for a name that Python itself looks up."""
    if name.startswith("__"):
        # Python itself looks it up.
        raise AttributeError(name)
    raise AbsentNameError(why_missing(f"{module}.{name}"))


class _Finder(MetaPathFinder):
    """Creates a name when it is imported, and all names once TensorFlow and Keras are loaded."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        """Return the spec of one of our names, or TensorFlow's or Keras's own.

        The latter creates the names after loading. Raises AbsentModuleError for a module of
        Graphcore's that is not provided.
        """
        if fullname in _AWAITED:
            return self._spec_with_names(fullname)
        if fullname not in NAMES:
            is_absent = fullname.rpartition(".")[0] in NAMES or (
                fullname in _SDK_PACKAGES and not self._spec_of_others(fullname)
            )
            if is_absent:
                raise AbsentModuleError(why_missing(fullname))
            return None
        # Our modules import TensorFlow. Loading it first creates all names at once.
        if fullname not in _WITHOUT_TENSORFLOW:
            importlib.import_module("tensorflow")
        module = sys.modules[fullname] if fullname in _made else _make(fullname)
        return importlib.util.spec_from_loader(fullname, _ExistingModule(module), is_package=True)

    def _spec_with_names(self, awaited: str) -> Any:
        """Return the spec of module ``awaited``, which creates the names after loading it."""
        spec = self._spec_of_others(awaited)
        if spec is not None:
            spec.loader = _NamesAfterLoading(spec.loader)
        return spec

    def _spec_of_others(self, name: str) -> Any:
        """Return the spec that the other finders give for ``name``, or None."""
        for finder in sys.meta_path:
            spec = (
                finder.find_spec(name, None)
                if finder is not self and hasattr(finder, "find_spec")
                else None
            )
            if spec is not None and spec.loader is not None:
                return spec
        return None


class _ExistingModule(Loader):
    """Loads a module that already exists."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def create_module(self, spec: Any) -> ModuleType:  # noqa: ARG002
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has its contents."""


class _NamesAfterLoading(Loader):
    """Loads TensorFlow or Keras, then creates the names.

    Our modules need both, and either may load the other. So the one whose loading began last
    creates nothing.
    """

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def create_module(self, spec: Any) -> ModuleType | None:
        module: ModuleType | None = self.plain.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.plain.exec_module(module)
        others = [sys.modules.get(name) for name in _AWAITED if name != module.__name__]
        is_loading = any(
            getattr(getattr(other, "__spec__", None), "_initializing", False) for other in others
        )
        if "tensorflow" in sys.modules and not is_loading and not _making:
            _make_all()

    def __getattr__(self, name: str) -> Any:
        # What else is asked of a loader: sources, data files.
        return getattr(self.plain, name)
