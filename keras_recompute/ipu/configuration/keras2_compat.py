"""Keras 2 usages that scripts may keep while Graphcore's names are installed.

``keras2.adaptations`` implements each. This list writes the docs.
"""

from __future__ import annotations

WAYS = {
    "Input(80)": "a whole number for a shape is that of one dimension",
    "super().__init__(self)": "a model's class may hand itself on to `keras.Model`",
    "LSTM(..., time_major=True)": (
        "Keras's recurrent layers take and return sequences `(time, batch, features)`"
    ),
    "LSTM(4)(inputs=x)": "Keras's recurrent layers take their sequences by the name `inputs`",
    "SGD(lr=0.1, decay=1e-3)": (
        "`lr` is `learning_rate`, to set, too; `decay` divides it by `1 + decay * iterations`"
    ),
    "SGD(learning_rate=np.float32(0.1))": (
        "learning rates are numbers of any type, or scalar tensors"
    ),
    'set_floatx("float16")': (
        "layers that are made after it have this type, also where others were made before"
    ),
    'save_weights("weights.hd5")': (
        "HDF5 files of weights have any name, to save and to load; one of Keras 2's is loaded too"
    ),
    "SparseCategoricalCrossentropy()(y, p[..., None])": (
        "predictions may have a last axis of size 1 behind that of the classes"
    ),
}
