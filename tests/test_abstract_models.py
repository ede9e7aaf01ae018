"""Models whose weights have no values: the records and plans of models that have them."""

import doctest
import resource
import warnings

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, UnsupportedError
from keras_recompute.liveness import abstract, profile
from keras_recompute.liveness.abstract_models import is_abstract
from keras_recompute.seams.keras.variables import has_value

dear = pytest.mark.long(every_case=True)

L = keras.layers
BATCH, WIDTH = 64, 16


def sequential():
    layers = []
    for _ in range(4):
        layers += [L.Dense(WIDTH, "gelu"), L.BatchNormalization(), L.Dropout(0.1)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers, L.Dense(WIDTH)], name="net")


def tokens():
    inputs = keras.Input((8,), dtype="int32")
    x = L.Embedding(50, WIDTH)(inputs)
    for _ in range(2):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 8)(x, x))
    return keras.Model(inputs, L.Dense(WIDTH)(x), name="net")


def with_lora():
    model = sequential()
    for layer in model.layers:
        if isinstance(layer, L.Dense):
            layer.enable_lora(2)
    return model


def quantize(model, mode="int8"):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize(mode)


def quantized():
    model = sequential()
    quantize(model)
    for layer in model.layers:
        if isinstance(layer, L.Dense):
            layer.enable_lora(2)
    return model


def own_call():
    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.inner = [L.Dense(WIDTH, "tanh") for _ in range(3)]

        def call(self, x):
            for layer in self.inner:
                x = layer(x)
            return x

    return Net()


def step_of(make, optimizer, *, checkpoints):
    keras.backend.clear_session()  # the same names
    model = make()
    if checkpoints:
        model = kr.checkpointed(model, every=2)
    model.compile(optimizer(), "mse")
    is_text = make is tokens
    shape = (BATCH, 8) if is_text else (BATCH, WIDTH)
    x = np.zeros(shape, "int32" if is_text else "float32")
    return model, x, np.zeros((*shape, WIDTH) if is_text else shape, "float32")


def ema():
    return keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True)


@pytest.mark.parametrize(
    ("make", "optimizer", "checkpoints"),
    [
        (sequential, keras.optimizers.Adam, True),
        pytest.param(sequential, ema, False, marks=dear),
        pytest.param(tokens, keras.optimizers.Adafactor, True, marks=dear),
        pytest.param(with_lora, keras.optimizers.AdamW, True, marks=dear),
        pytest.param(quantized, keras.optimizers.AdamW, True, marks=dear),
        (own_call, keras.optimizers.Lion, False),
    ],
)
def test_the_record_is_that_of_a_model_with_values(make, optimizer, checkpoints):
    expected = profile(*step_of(make, optimizer, checkpoints=checkpoints))
    with abstract():
        model, x, y = step_of(make, optimizer, checkpoints=checkpoints)
    found = profile(model, x, y)
    assert is_abstract(model)
    assert found.buffers == expected.buffers
    assert found.steps == expected.steps
    assert found.compiler_totals == expected.compiler_totals


def test_weights_of_eight_bits_have_no_values_either():
    with abstract():
        model = quantized()
    kernels = [v for v in model.variables if str(v.dtype) == "int8"]
    assert [v.shape for v in kernels] == 5 * [(WIDTH, WIDTH)]
    assert not any(has_value(v) for v in model.variables)


def test_a_model_with_values_is_quantized_as_ever():
    plain, ours = sequential(), sequential()
    ours.set_weights(plain.get_weights())
    quantize(plain)
    with abstract():
        quantize(ours)
    for wanted, found in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_modes_that_compute_with_values_are_refused():
    with abstract():
        model = sequential()
        with pytest.raises(InvalidArgumentError, match=r"quantize\('int4'\) computes with the val"):
            quantize(model, "int4")


@dear
def test_in_mixed_precision_too():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        expected = profile(*step_of(tokens, keras.optimizers.Adam, checkpoints=True))
        with abstract():
            model, x, y = step_of(tokens, keras.optimizers.Adam, checkpoints=True)
        assert profile(model, x, y).buffers == expected.buffers
    finally:
        keras.config.set_dtype_policy("float32")


def language_model():
    """Twelve blocks of 768 and a vocabulary of 20,000: 100 million weights."""
    inputs = keras.Input((8,), dtype="int32")
    x = L.Embedding(20_000, 768)(inputs)
    for _ in range(12):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(12, 64)(x, x))
        x = L.LayerNormalization()(x + L.Dense(768)(L.Dense(3072, "gelu")(x)))
    return keras.Model(inputs, L.Dense(WIDTH)(x), name="net")


@pytest.mark.exhaustive  # the compilers of devices are no requirement of tests
@pytest.mark.parametrize("device", ["h100", "a100-80", "v5e"])
def test_a_hundred_million_weights_on_a_device_that_is_not_here(device):
    def step():
        keras.backend.clear_session()
        model = language_model()
        model.compile("adamw", "mse")
        return model, np.zeros((BATCH, 8), "int32"), np.zeros((BATCH, 8, WIDTH), "float32")

    expected = profile(*step(), device=device)
    with abstract():
        model, x, y = step()
    assert model.count_params() == pytest.approx(1e8, rel=0.01)
    found = profile(model, x, y, device=device)
    assert found.buffers == expected.buffers
    assert found.peak_bytes == expected.peak_bytes > 3 * 4 * model.count_params()


@dear
def test_the_plan_is_that_of_a_model_with_values():
    def planned():
        model, x, y = step_of(sequential, keras.optimizers.Adam, checkpoints=False)
        predicted = kr.plan(model, memory_budget="90KiB", sample=(x, y), prove=False)[1]
        return predicted, kr.plan(model, memory_budget="1MiB", sample=(x, y))[1]

    expected = planned()
    with abstract():
        found = planned()
    assert expected[0].checkpoints
    assert expected[1].compiled_peak_bytes
    assert found == expected


# One weight in bytes. TensorFlow takes none that is larger than the machine's memory.
LARGE = 40_000**2 * 4 if keras.backend.backend() == "tensorflow" else 100_000**2 * 4


def test_what_is_profiled_takes_no_memory():
    width = round((LARGE / 4) ** 0.5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    with abstract():
        model = keras.Sequential([keras.Input((width,)), L.Dense(width, use_bias=False)])
    model.compile("adam", "mse")
    row = np.zeros((1, width), "float32")
    program = profile(model, row, row)
    sizes = [b.size_bytes for b in program.buffers if b.lifetime == "always-live"]
    assert sorted(sizes)[-3:] == [LARGE] * 3  # with two states of the optimizer
    assert not any(map(has_value, model.trainable_variables))
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert taken < LARGE / 4


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others take any weight")
def test_a_weight_larger_than_memory_is_refused_on_tensorflow():
    with abstract():
        model = keras.Sequential([keras.Input((10**7,)), L.Dense(10**6, use_bias=False)])
    model.compile("sgd", "mse")
    batch = keras.KerasTensor((1, 10**7)), keras.KerasTensor((1, 10**6))
    with pytest.raises(InvalidArgumentError, match=r"memory .*\(40000000000000 bytes of one"):
        profile(model, *batch)


def test_the_example_of_its_docstring():
    (found,) = doctest.DocTestFinder().find(abstract, "abstract", globs={"kr": kr, "keras": keras})
    assert doctest.DocTestRunner().run(found) == doctest.TestResults(failed=0, attempted=2)


def test_variables_stay_without_values_behind_other_scopes():
    with abstract():
        dense = L.Dense(3)
        dense.build((None, 3))
    with keras.StatelessScope():
        L.Dense(2).build((None, 2))  # Keras gives it values when the scope ends
    assert not has_value(dense.kernel)


def read_by_numpy(model):
    return model.get_weights()


def called(model):
    return model(np.zeros((2, WIDTH), "float32"))


def trained(model):
    model.compile("sgd", "mse")
    model.fit(np.zeros((2, WIDTH)), np.zeros((2, WIDTH)), verbose=0)


@pytest.mark.parametrize("read", [read_by_numpy, called, trained])
def test_reading_a_value_is_refused(read):
    with abstract():
        model = sequential()
    with pytest.raises(InvalidArgumentError, match=r"the value of 'net/dense.*' was read"):
        read(model)


def test_a_layer_that_computes_on_its_weights_while_it_is_built_is_refused():
    class Normed(L.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1],), name="kernel")
            self.norm = float(keras.ops.norm(self.kernel))

        def call(self, x):
            return x / self.norm

    refused = pytest.raises(InvalidArgumentError, match=r"the value of '.*normed/kernel' was read")
    with abstract(), refused:
        keras.Sequential([keras.Input((3,)), Normed(name="normed")])


def test_loaded_weights_have_values(tmp_path):
    plain = keras.Sequential([keras.Input((3,)), L.Dense(2, name="dense")])
    plain.save_weights(tmp_path / "saved.weights.h5")
    with abstract():
        model = keras.Sequential([keras.Input((3,)), L.Dense(2, name="dense")])
    model.load_weights(tmp_path / "saved.weights.h5")
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(model.predict(x, verbose=0), plain.predict(x, verbose=0))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow alone times plans")
def test_a_plan_that_is_timed_is_refused():
    with abstract():
        model = sequential()
    with pytest.raises(InvalidArgumentError, match="timed=True runs the layers of 'net'"):
        kr.plan(model, memory_budget="1MiB", batch_size=BATCH, timed=True)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow alone runs steps")
def test_a_step_that_has_to_run_to_be_measured_is_refused():
    with abstract():
        model = sequential()
    model.compile("sgd", "mse", jit_compile=False)
    x = np.zeros((BATCH, WIDTH), "float32")
    with pytest.raises(UnsupportedError, match=r"the step of '.*' has to run to be measured"):
        kr.checkpointed(model, every=2, sample=(x, x))
