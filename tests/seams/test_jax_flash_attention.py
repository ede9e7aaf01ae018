"""The questions that JAX asks of a GPU, answered for one that is not here."""

import inspect

import pytest

pytest.importorskip("jax")

import numpy as np
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from keras_recompute.seams.jax.flash_attention import (
    checked_for_gradients,
    described_gpu,
    has_flash_attention,
)


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((10, 0), True)])
def test_a_gpu_that_is_described(capability, has):
    with described_gpu(capability):
        assert has_flash_attention() == has
        assert cudnn.check_compute_capability("9.0") == (capability >= (9, 0))
        assert cudnn.check_cudnn_version() == 90800


def test_this_machine_is_asked_again_behind_an_error():
    with pytest.raises(LookupError), described_gpu((9, 0)):
        raise LookupError
    assert cudnn.check_cudnn_version.__module__ == cudnn.__name__
    assert cudnn.check_compute_capability.__module__ == cudnn.__name__


def test_attention_without_a_gradient_is_refused_where_it_is_called():
    def check(length, **options):
        array = np.zeros((1, length, 2, 64), "float16")
        layout = cudnn.AttentionLayout.BTNH.value
        given = {"cudnn_version": 90800, "has_bias": True, "is_training": False, **options}
        cudnn.check_is_flash_attention(array, array, array, layout, **given)

    with described_gpu((9, 0)):
        check(17)
        parameters = inspect.signature(cudnn.check_is_flash_attention)
        with checked_for_gradients():
            check(16)
            assert inspect.signature(cudnn.check_is_flash_attention) == parameters
            with pytest.raises(NotImplementedError, match="sequence length Q 17"):
                check(17)
        check(17)
