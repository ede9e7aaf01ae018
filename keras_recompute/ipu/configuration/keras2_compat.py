"""Keras 2 usages that scripts may keep while Graphcore's names are installed.

``keras2.adaptations`` implements each. This list writes the docs.
"""

from __future__ import annotations

WAYS = {
    "Input(80)": "a whole number as shape means one dimension",
    "super().__init__(self)": "a subclass may pass itself to the constructor of `keras.Model`",
    "LSTM(..., time_major=True)": (
        "Keras's recurrent layers take and return sequences `(time, batch, features)`"
    ),
    "LSTM(4)(inputs=x)": "Keras's recurrent layers accept their sequences as the argument `inputs`",
    "SGD(lr=0.1, decay=1e-3)": (
        "`lr` is an alias of `learning_rate`, also to assign; `decay` divides the rate by `1 + "
        "decay * iterations`"
    ),
    "SGD(learning_rate=np.float32(0.1))": (
        "learning rates are numbers of any type, or scalar tensors"
    ),
    'set_floatx("float16")': ("later layers have this type, also after other layers were made"),
    'save_weights("weights.hd5")': (
        "HDF5 weight files may have any name; files that Keras 2 wrote are loaded too"
    ),
    "SparseCategoricalCrossentropy()(y, p[..., None])": (
        "predictions may have a last axis of size 1 after that of the classes"
    ),
}
