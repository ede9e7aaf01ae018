"""Quantization of Keras's models without values, on each backend."""

import keras
import pytest

from keras_recompute.seams.keras.quantization import MODES_WITHOUT_VALUES, quantize_without_values
from keras_recompute.seams.keras.variables import has_value, has_values, without_values

pytestmark = pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize`")


def refuse(what):
    raise LookupError(what)


def quantized(mode):
    with without_values(refuse), quantize_without_values(refuse):
        model = keras.Model(inputs := keras.Input((4,)), keras.layers.Dense(3)(inputs))
        model.quantize(mode)
    return model


@pytest.mark.parametrize("mode", MODES_WITHOUT_VALUES)
def test_a_quantized_model_has_no_values(mode):
    assert not has_values(quantized(mode))


def test_weights_have_the_type_and_no_value():
    kernel = quantized("int8").layers[1].kernel
    assert (kernel.dtype, kernel.shape) == ("int8", (4, 3))
    assert not has_value(kernel)


def test_a_mode_that_reads_values_is_refused():
    with pytest.raises(LookupError, match="int4"):
        quantized("int4")


def test_a_model_with_values_keeps_them():
    model = keras.Model(inputs := keras.Input((4,)), keras.layers.Dense(3)(inputs))
    with quantize_without_values(refuse):
        model.quantize("int4")
    assert has_values(model)
