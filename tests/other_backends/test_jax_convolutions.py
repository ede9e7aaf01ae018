"""Convolutions with checkpoints on a CPU: their gradients, and the form that XLA is fast for."""

import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax_temporaries import temporaries
from plain_oracle import assert_trains_as_plain, every

import keras_recompute as kr
from keras_recompute.keras_backend.jax_remat import leaner_convolutions
from keras_recompute.liveness.jax_training_step import training_step

L = keras.layers
FIRST = "channels_first"
# Windows that leave a rest of the image, that are dilated, grouped and larger than the image.
LAYERS = {
    "1D, same": (L.Conv1D(6, 3, strides=2, padding="same"), (9, 4)),
    "1D, causal": (L.Conv1D(6, 2, padding="causal", dilation_rate=2), (9, 4)),
    "2D, valid, with a rest": (L.Conv2D(6, 3, strides=3), (8, 7, 4)),
    "2D, dilated": (L.Conv2D(6, 3, dilation_rate=2, padding="same"), (8, 7, 4)),
    "2D, larger than the image": (L.Conv2D(6, 5, padding="same"), (2, 3, 4)),
    "2D, pointwise": (L.Conv2D(6, 1, strides=2), (8, 7, 4)),
    "2D, two groups": (L.Conv2D(6, 3, groups=2), (8, 7, 4)),
    "2D, channels first": (L.Conv2D(6, 3, strides=2, data_format=FIRST), (4, 8, 7)),
    "3D": (L.Conv3D(6, 3, strides=2, padding="same"), (5, 4, 6, 2)),
    "transposed": (L.Conv2DTranspose(6, 3, strides=2, padding="same"), (4, 3, 4)),
    "separable": (L.SeparableConv2D(6, 3, depth_multiplier=2), (8, 7, 4)),
    "depthwise, 1D": (L.DepthwiseConv1D(3, strides=2, padding="same"), (9, 4)),
    "depthwise, with a rest": (L.DepthwiseConv2D(3, strides=3), (8, 7, 4)),
    "depthwise, dilated": (L.DepthwiseConv2D(3, dilation_rate=2, padding="same"), (8, 7, 4)),
    "depthwise, three of each": (L.DepthwiseConv2D(3, depth_multiplier=3), (8, 7, 4)),
    "depthwise, channels first": (L.DepthwiseConv2D(3, data_format=FIRST), (4, 8, 7)),
    "depthwise, by groups": (L.Conv2D(4, 7, groups=4, padding="same"), (8, 7, 4)),
    "depthwise, by groups, 3D": (L.Conv3D(4, 3, groups=2), (5, 4, 6, 2)),
}


def gradients(function, layer, x):
    """Return gradients of a number, by the images and the weights of ``layer``."""
    weights = [each.value for each in layer.trainable_variables]

    def number(x, weights):
        with keras.StatelessScope(list(zip(layer.trainable_variables, weights))):
            return jnp.sum(jnp.sin(function(x)))

    return jax.jit(jax.grad(number, argnums=(0, 1)))(x, weights)


def assert_equal(found, wanted):
    for ours, plain in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert ours.dtype == plain.dtype
        scale = np.abs(plain).max()
        np.testing.assert_allclose(ours / scale, plain / scale, rtol=0, atol=2e-6)


def data(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), "float32")


WITH_A_POLICY = "2D, two groups", "transposed", "depthwise, with a rest"


@pytest.mark.parametrize(
    ("kind", "policy"),
    [(kind, None) for kind in LAYERS]
    + [(kind, kr.policies.save_matmuls) for kind in WITH_A_POLICY],
)
def test_gradients_are_those_of_the_plain_layer(kind, policy):
    layer, shape = LAYERS[kind]
    x = data(2, *shape)
    layer(x)
    found = gradients(kr.checkpoint(layer, policy=policy), layer, x)
    assert_equal(found, gradients(layer, layer, x))


def test_sums_over_places_are_of_float32():
    x, found = data(4, 16, 16, 4).astype("bfloat16"), []
    for dtype in ("mixed_bfloat16", "float32"):
        layer = L.DepthwiseConv2D(3, dtype=dtype)
        layer(x)
        layer.set_weights([np.ones((3, 3, 4, 1)), np.zeros(4)])
        function = kr.checkpoint(layer) if dtype == "mixed_bfloat16" else layer
        found.append(gradients(function, layer, x)[1][0])
    scale = np.abs(found[1]).max()
    # Each product of 784 has a relative error of 2 ** -9; a sum of bfloat16 would have 0.1.
    np.testing.assert_allclose(found[0] / scale, found[1] / scale, rtol=0, atol=0.01)


def program(function, *arguments):
    """Return the text of the compiled gradient of ``function``."""
    gradient = jax.grad(lambda *given: jnp.sum(jnp.sin(function(*given))), argnums=(0, 1))
    return jax.jit(gradient).lower(*arguments).compile().as_text()


def forms(text):
    """Return the forms of all convolutions of a program."""
    return set(re.findall(r"dim_labels=([^, ]+)", text))


def twice(x, kernel):
    for _ in range(2):
        x = jnp.tanh(keras.ops.conv(x, kernel, padding="same"))
    return x


def in_a_loop(x, kernel):
    def step(x, _):
        return jnp.tanh(keras.ops.conv(x, kernel, padding="same")), None

    return jax.lax.scan(step, x, None, length=2)[0]


@pytest.mark.parametrize("convolve", [twice, in_a_loop])
def test_all_convolutions_of_a_branch_have_the_form_of_the_fast_kernel(convolve):
    text = program(kr.checkpoint(convolve), data(2, 8, 8, 16), data(3, 3, 16, 16))
    assert forms(text) == {"b01f_01io->b01f"}


def test_gradients_of_kernels_with_groups_have_it_too():
    text = program(kr.checkpoint(twice), data(2, 8, 8, 16), data(3, 3, 4, 16))
    assert forms(text) == {"b01f_01io->b01f"}
    assert text.count("feature_group_count=4") > 2  # XLA's own form has no groups any more


def test_depthwise_ones_of_a_branch_become_plain_loops():
    def convolve(x, kernel):
        for _ in range(2):
            x = jnp.tanh(keras.ops.depthwise_conv(x, kernel, padding="same"))
        return x

    text = program(kr.checkpoint(convolve), data(2, 8, 8, 16), data(3, 3, 16, 1))
    assert "b01f_i01o->b01f" in forms(text)


def test_a_depthwise_convolution_of_jax_itself_has_the_gradients_of_the_plain_one():
    def convolve(x, kernel):
        numbers = "NHWC", "HWIO", "NHWC"
        options = {"dimension_numbers": numbers, "feature_group_count": 4, "rhs_dilation": (1, 2)}
        return jax.lax.conv_general_dilated(x, kernel, (2, 1), [(1, 0), (2, 1)], **options)

    def found(function):
        def number(x, kernel):
            return jnp.sum(jnp.sin(function(x, kernel)))

        return jax.jit(jax.grad(number, argnums=(0, 1)))(data(2, 8, 7, 4), data(3, 2, 1, 8))

    assert_equal(found(kr.checkpoint(convolve)), found(convolve))


def separable(channels=512):
    return keras.Sequential(
        [
            keras.Input((2, 2, channels)),
            L.DepthwiseConv2D(3, padding="same"),
            L.Activation("tanh"),
            L.DepthwiseConv2D(3, padding="same"),
            L.Conv2D(8, 1),
        ]
    )


def test_the_gradient_of_a_depthwise_kernel_is_not_dense():
    x, y = np.zeros((8, 2, 2, 512), "float32"), np.zeros((8, 2, 2, 8), "float32")
    dense = 512 * 512 * 3 * 3 * 4 / 2**20  # as of a kernel between all channels
    assert temporaries(separable(), x, y) > dense
    # One of the two stands behind the checkpoint, where nothing is recomputed.
    assert temporaries(every(2)(separable()), x, y) < dense / 4


def test_gradients_of_kernels_with_groups_behind_the_last_checkpoint_are_of_groups_too():
    model = keras.Sequential([keras.Input((8, 8, 16)), L.ReLU(), L.Conv2D(16, 3, groups=4)])
    model = kr.checkpointed(model, every=1)
    model.compile("sgd", "mse")
    step = training_step(model, (data(2, 8, 8, 16), data(2, 6, 6, 16)))
    text = step.function.lower(step.state, step.data).compile().as_text()
    assert text.count("feature_group_count=4") == 2  # forward, and for the kernel


def test_models_of_convolutions_train_as_plain_ones():
    def build():
        x = inputs = keras.Input((12, 12, 4))
        for strides in (1, 2):
            y = L.BatchNormalization()(L.Conv2D(8, 3, strides=strides, padding="same")(x))
            y = L.DepthwiseConv2D(3, padding="same")(L.ReLU()(y))
            y = L.SpatialDropout2D(0.2)(L.Conv2D(8, 1)(y))
            x = L.Add()([y, L.Conv2D(8, 1, strides=strides)(x)])
        x = L.Conv2DTranspose(4, 3, strides=2, padding="same")(x)
        return keras.Model(inputs, x)

    x = data(4, 12, 12, 4)
    assert_trains_as_plain(build, x, x, every(3), tolerance=1e-5)


def blocks():
    x = inputs = keras.Input((8, 8, 4))
    for _ in range(4):
        y = L.DepthwiseConv2D(3, padding="same")(L.BatchNormalization()(x))
        x = L.Add()([x, L.Conv2D(4, 3, padding="same", activation="relu")(y)])
    return keras.Model(inputs, L.Conv2D(1, 8)(x))


def as_a_loop(model):
    return kr.Model(model.inputs, model.outputs, scan_layers=True)


def test_loops_of_blocks_without_checkpoints_are_fast_too():
    x, y = data(2, 8, 8, 4), data(2, 1, 1, 1)
    model = as_a_loop(blocks())
    model.compile("sgd", "mse")
    step = training_step(model, (x, y))
    text = step.function.lower(step.state, step.data).compile().as_text()
    assert " while(" in text
    assert forms(text) == {"b01f_01io->b01f", "b01f_i01o->b01f"}
    assert_trains_as_plain(blocks, x, y, as_a_loop)


def test_second_gradients_are_those_of_the_plain_function():
    def convolve(x, kernel):
        return jnp.tanh(keras.ops.conv(keras.ops.depthwise_conv(x, kernel[..., :1]), kernel))

    def second(function):
        def first(x, kernel):
            gradient = jax.grad(lambda k: jnp.sum(jnp.sin(function(x, k))))(kernel)
            return jnp.sum(gradient**2)

        return jax.jit(jax.grad(first, argnums=(0, 1)))(data(2, 6, 6, 4), data(2, 2, 4, 4))

    assert_equal(second(kr.checkpoint(convolve)), second(convolve))


@pytest.mark.parametrize("around", ["vmap", "shard_map"])
def test_transformed_functions_have_the_same_gradients(around):
    def convolve(x, kernel):
        return jnp.tanh(keras.ops.conv(x, kernel, padding="same"))

    def gradient(function):
        if around == "vmap":
            mapped = jax.vmap(function, in_axes=(0, None))
        else:
            spec = jax.sharding.PartitionSpec
            mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
            places = spec("batch"), spec()
            mapped = jax.shard_map(function, mesh=mesh, in_specs=places, out_specs=places[0])

        def number(x, kernel):
            return jnp.sum(mapped(x, kernel) ** 2)

        shape = (2, 3, 6, 6, 4) if around == "vmap" else (2, 6, 6, 4)
        return jax.jit(jax.grad(number, argnums=(0, 1)))(data(*shape), data(3, 3, 4, 4))

    assert_equal(gradient(kr.checkpoint(convolve)), gradient(convolve))


def test_where_devices_share_a_batch_the_gradient_goes_by_no_loop_over_images():
    def traced():
        def gradient(x, kernel):
            with leaner_convolutions():
                return jax.grad(lambda k: jnp.sum(keras.ops.depthwise_conv(x, k)))(kernel)

        return str(jax.make_jaxpr(gradient)(data(2, 6, 6, 4), data(2, 2, 4, 1)))

    assert "scan" in traced()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        assert "scan" not in traced()
    finally:
        keras.distribution.set_distribution(None)
