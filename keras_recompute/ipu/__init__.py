"""The stand-in: Graphcore's Keras API on stock TensorFlow, so that IPU scripts run without the Poplar SDK."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, submod_attrs={"graphcore_names": ["has_sdk", "install", "uninstall"]})
