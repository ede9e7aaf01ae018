"""Names of Graphcore's modules that ours lack raise one line with an alternative."""

from __future__ import annotations

import importlib
import sys

import pytest

from keras_recompute.errors import UnsupportedError
from keras_recompute.ipu import install, uninstall
from keras_recompute.ipu.configuration.lazy_refusal import LazyRefusal
from keras_recompute.ipu.configuration.missing_names import MISSING, why_missing
from keras_recompute.ipu.names.installation import NAMES

pytestmark = pytest.mark.usefixtures("graphcore_names")

# As scripts import them: a module, and a name of it that is imported or None.
IMPORTED = [
    ("tensorflow.python.ipu.scopes", "partials_type", r"use IPUStrategy\(\).scope\(\)"),
    ("tensorflow.python.ipu", "loops", "TensorFlow 1: use fit of a Keras model"),
    ("tensorflow.python.ipu", "ipu_estimator", "use fit of a Keras model"),
    ("tensorflow.python.ipu.ops", "custom_ops", "cannot run here"),
    (
        "tensorflow.python.ipu.ops.pipelining_ops",
        "OptimizerFunctionOutput",
        "use keras.ipu.PipelineStage",
    ),
    ("tensorflow.python.ipu.utils", "create_ipu_config", "use ipu.config.IPUConfig"),
    (
        "tensorflow.python.ipu.distributed.popdist_strategy",
        "PopDistStrategy",
        "keras_recompute.distribute",
    ),
    ("tensorflow.python.ipu.dataset_benchmark", "dataset_benchmark", "time an iteration"),
    ("ipu_tensorflow_addons.keras.layers", "CTCLoss", "use tf.nn.ctc_loss"),
    ("ipu_tensorflow_addons.v1.layers", "PopnnLSTM", "use ipu_tensorflow_addons.keras.layers"),
    ("keras.ipu.optimizers", "ALSOptimizer", "keras.optimizers.LossScaleOptimizer"),
    ("popdist.tensorflow", "set_ipu_config", "keras_recompute.distribute"),
    ("horovod", "tensorflow", "keras_recompute.distribute"),
    ("tensorflow.python.ipu", "nothing_of_the_kind", "docs/ipu.md lists what is"),
]


@pytest.mark.parametrize(("module", "name", "instead"), IMPORTED, ids=str)
def test_importing_says_what_to_use(module, name, instead):
    with pytest.raises(
        ImportError, match=f"is not provided on stock TensorFlow: .*{instead}"
    ) as raised:
        exec(f"from {module} import {name}", {})
    assert isinstance(raised.value, UnsupportedError)
    assert "\n" not in str(raised.value)


def test_asking_says_what_to_use():
    import tensorflow as tf
    from tensorflow.python import ipu

    with pytest.raises(AttributeError, match=r"ipu.loops is not provided .*TensorFlow 1: use fit"):
        _ = ipu.loops.repeat
    with pytest.raises(
        NotImplementedError, match=r"ipu\.optimizers\.CrossReplicaOptimizer is not provided"
    ):
        _ = ipu.optimizers.CrossReplicaOptimizer
    with pytest.raises(AttributeError, match=r"keras\.ipu\.layers is not provided"):
        _ = tf.keras.ipu.layers
    assert not hasattr(ipu, "ipu_compiler")
    assert getattr(ipu.utils, "__wrapped__", None) is None


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("tensorflow.python.ipu.scopes", "ipu_scope", r"use IPUStrategy\(\).scope\(\)"),
        ("tensorflow.python.ipu.ops.f8_ops", "convert_to_f8", "use float16"),
        ("ipu_tensorflow_addons.keras.layers", "ConvertToF8", "use float16"),
    ],
)
def test_some_can_be_imported_and_say_so_when_they_are_used(module, name, instead):
    found = getattr(importlib.import_module(module), name)
    assert not isinstance(3, found)
    with pytest.raises(
        AttributeError, match=rf"{module}\.{name} is not provided on stock TensorFlow: .*{instead}"
    ) as raised:
        found("an argument")
    assert isinstance(raised.value, UnsupportedError)


def test_a_model_cannot_be_exported_for_what_is_not_there(tmp_path):
    """As in three of Graphcore's examples: functional, sequential and subclassed models."""
    import tensorflow as tf
    from tensorflow.python import ipu

    keras = tf.keras
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((2,), batch_size=1)
        models = [
            keras.Model(inputs, keras.layers.Dense(1)(inputs)),
            keras.Sequential([keras.layers.Dense(1)]),
            type("Own", (keras.Model,), {"call": lambda _, x: x})(),
        ]
    for model in models:
        with pytest.raises(
            NotImplementedError, match=r"use model\.export or tf\.saved_model\.save"
        ) as raised:
            model.export_for_ipu_serving(str(tmp_path / "exported"), batch_size=1, output_names="y")
        said = (
            "keras.Model.export_for_ipu_serving is not provided on stock TensorFlow: there is no "
            "Poplar executable"
        )
        assert str(raised.value).startswith(said)
        assert "\n" not in str(raised.value)
        assert isinstance(raised.value, AttributeError)


def test_eight_bit_formats_can_be_described():
    from tensorflow.python.ipu.ops.f8_ops import Format, create_metadata

    assert create_metadata(Format.F143, 2) == (Format.F143, 2)


def is_refused(found):
    return found is None or (isinstance(found, type) and issubclass(found, LazyRefusal))


def test_what_is_there_is_not_on_the_list():
    """Whole modules of the list may be there in part."""
    for entry in MISSING:
        module, _, name = entry.rpartition(".")
        for made in NAMES:
            if (
                made.endswith(module)
                and module
                and why_missing(f"{made}.{name}").endswith(MISSING[entry])
            ):
                found = vars(importlib.import_module(made)).get(name)
                assert is_refused(found) or isinstance(found, type(sys)), f"{made}.{name} is there"


def test_a_package_that_is_installed_is_left_alone(tmp_path, monkeypatch):
    """And without the stand-in Python's own error is back."""
    (tmp_path / "horovod.py").write_text("mine = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("horovod").mine
    monkeypatch.delitem(sys.modules, "horovod")
    uninstall()
    try:
        with pytest.raises(ModuleNotFoundError, match="No module named 'popdist'"):
            importlib.import_module("popdist")
    finally:
        install()
