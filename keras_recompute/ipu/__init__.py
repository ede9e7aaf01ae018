"""Graphcore's Keras API on stock TensorFlow: IPU scripts run without the Poplar SDK.

Names, arguments, defaults, results and the types of errors follow what Graphcore published: the
sources of SDK 3.4 (forks of TensorFlow 2.6 and Keras, the TensorFlow addons), and the guides
*Targeting the IPU from TensorFlow 2* and *PopVision Analysis Library*. The modules cite them by
topic, as in "(Graphcore: IPUConfig)".
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(
    __name__, submod_attrs={"names.installation": ["has_sdk", "install", "uninstall"]}
)
