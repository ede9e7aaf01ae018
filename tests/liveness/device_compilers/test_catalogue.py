"""The devices that there are, and that a trace for one takes its passes."""

from __future__ import annotations

import pytest
import tensorflow as tf

import keras_recompute as kr
from keras_recompute.backends import CPU, GPU, TPU, backend_now, tracing_for
from keras_recompute.engine.passes import target_now
from keras_recompute.errors import InvalidArgumentError
from keras_recompute.liveness.device_compilers import find_device
from keras_recompute.liveness.device_compilers.compiler import request_for


def test_all_that_are_promised_are_there():
    assert [device.name for device in kr.liveness.devices()] == (
        "t4 l4 a10 a100-40 a100-80 h100 h200 b200 rtx4090 v4 v5e v5p v6e".split()
    )
    assert find_device("V5E").memory_bytes == 16 * 2**30


@pytest.mark.parametrize(
    ("name", "said"),
    [("h10", "did you mean 'h100'"), ("toaster", "give one of t4, l4, a10, a100-40")],
)
def test_an_unknown_device_is_answered_by_those_that_there_are(name, said):
    with pytest.raises(InvalidArgumentError, match=said):
        kr.liveness.profile(lambda x: x, tf.TensorSpec(()), device=name)


def test_a_trace_takes_the_passes_of_the_device_that_it_is_for():
    found: dict[str, set[str]] = {}

    def look(x: tf.Tensor) -> tf.Tensor:
        found[backend_now()] = {each.name for each in target_now().passes}
        return x

    for backend in (CPU, GPU, TPU):
        with tracing_for(backend):
            tf.function(look, jit_compile=True, autograph=False).get_concrete_function(
                tf.TensorSpec(())
            )
    of_all = found[CPU] & found[GPU] & found[TPU]
    assert {"min_cut", "staging", "scheduling"} <= of_all
    assert found[CPU] - of_all == {
        "convolutions",
        "delay",
        "pooling",
        "fence",
        "hoisting",
        "shared_kernels",
    }
    assert found[GPU] - of_all == {"barrier", "delay_by_barrier"}
    assert found[TPU] - of_all == {"fence"}


@pytest.mark.parametrize(
    ("name", "count", "topology", "accelerator"),
    [
        ("v5e", 1, "v5e:1x1", "v5litepod-1"),
        ("v5e", 8, "v5e:2x4", "v5litepod-8"),
        # Four chips of two cores are the least that there is.
        ("v5p", 1, "v5p:2x2x1", "v5p-8"),
        ("v5p", 8, "v5p:2x2x2", "v5p-16"),
    ],
)
def test_several_chips_are_a_slice(name, count, topology, accelerator):
    request = request_for(find_device(name), count)
    assert request["topology"] == topology
    assert request["environment"]["TPU_ACCELERATOR_TYPE"] == accelerator
    assert request["devices"] == count


def test_any_number_of_gpus_is_a_group():
    assert request_for(find_device("h100"), 6)["options"]["topology"] == "1x1x6"


def test_a_number_of_chips_that_is_no_slice_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"groups of 1, 4, 8, .*, and the .* for 6"):
        request_for(find_device("v6e"), 6)
