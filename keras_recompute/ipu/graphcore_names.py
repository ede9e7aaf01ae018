"""Making Graphcore's names importable, so that a script written for them runs as it is.

``install()`` adds modules under the names that Graphcore's TensorFlow and its addons use; ``uninstall()`` removes them.
Nothing is patched before the call, and beside the Poplar SDK, whose TensorFlow has these modules, it does nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import tensorflow as tf

from . import config, pipeline, pipelining_ops, popnn, stages, strategy

_added: list[str] = []
_attributes: list[tuple[object, str]] = []


def has_sdk() -> bool:
    """Whether the TensorFlow at hand is the Poplar SDK's, which brings these names itself."""
    return "tensorflow.python.ipu" not in _added and importlib.util.find_spec("tensorflow.python.ipu") is not None


def install() -> bool:
    """Make Graphcore's names importable; return False, having done nothing, if the Poplar SDK provides them."""
    if _added:
        return True
    if has_sdk():
        return False
    config_module = _module("tensorflow.python.ipu.config", config)
    strategy_module = _module("tensorflow.python.ipu.ipu_strategy", strategy)
    pipelining_module = _module("tensorflow.python.ipu.pipelining_ops", pipelining_ops)
    ops = _package("tensorflow.python.ipu.ops", pipelining_ops=pipelining_module)
    sys.modules["tensorflow.python.ipu.ops.pipelining_ops"] = pipelining_module
    _added.append("tensorflow.python.ipu.ops.pipelining_ops")
    accumulation = _package(
        "tensorflow.python.ipu.gradient_accumulation",
        GradientAccumulationReductionMethod=pipeline.GradientAccumulationReductionMethod,
    )
    ipu = _package(
        "tensorflow.python.ipu",
        config=config_module,
        ipu_strategy=strategy_module,
        pipelining_ops=pipelining_module,
        ops=ops,
        gradient_accumulation=accumulation,
    )
    _attach(sys.modules["tensorflow.python"], "ipu", ipu)

    keras_ipu = _package("tensorflow.keras.ipu", PipelineStage=stages.PipelineStage)
    _attach(tf.keras, "ipu", keras_ipu)
    layers = _module("ipu_tensorflow_addons.keras.layers", popnn)
    keras_addons = _package("ipu_tensorflow_addons.keras", layers=layers)
    _package("ipu_tensorflow_addons", keras=keras_addons)
    return True


def uninstall() -> None:
    """Remove what ``install`` added."""
    for owner, name in _attributes:
        delattr(owner, name)
    for name in _added:
        sys.modules.pop(name, None)
    _attributes.clear()
    _added.clear()


def _package(name: str, **contents: object) -> ModuleType:
    module = ModuleType(name, f"{name}, provided by keras_recompute.ipu on stock TensorFlow.")
    module.__path__ = []
    for key, value in contents.items():
        setattr(module, key, value)
    sys.modules[name] = module
    _added.append(name)
    return module


def _module(name: str, source: ModuleType) -> ModuleType:
    public = [key for key in getattr(source, "__all__", vars(source)) if not key.startswith("_")]
    return _package(name, **{key: getattr(source, key) for key in public})


def _attach(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)
    _attributes.append((owner, name))
