"""The loss and gradients of a function or model, in each way to run TensorFlow, and comparisons."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MODES = ("eager", "graph", "jit")
# The same for ``compile`` of a Keras model.
COMPILE_OPTIONS = {
    mode: {"run_eagerly": mode == "eager", "jit_compile": mode == "jit"} for mode in MODES
}


def in_mode(mode: str, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return ``function`` to be run eagerly, as a graph, or compiled by XLA.

    ``options`` are those of ``tf.function``.
    """
    if mode == "eager":
        return function
    return tf.function(function, autograph=False, jit_compile=mode == "jit", **options)


def sum_of_sines(y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.sin(y))


def sum_of_squares(y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(y**2)


def mean_square(y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(y**2)


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def weighted_sum(results: Any) -> tf.Tensor:
    """Return a sum that weighs every element of all results, so that no two are mistaken."""
    terms = []
    for number, y in enumerate(tf.nest.flatten(results)):
        wide = tf.cast(y, tf.float32) if y.dtype.size < 4 else y
        terms.append(tf.reduce_sum(wide * weights_like(wide, number)))
    return tf.add_n(terms)


def weights_like(y: tf.Tensor, number: int = 0) -> tf.Tensor:
    """Return fixed weights that differ from element to element, and from result to result."""
    count = np.prod(y.shape.as_list(), dtype=int)
    return tf.constant(
        np.cos(np.arange(count) * (number + 1.0)).reshape(y.shape.as_list()), y.dtype
    )


def loss_step(
    function: Callable[..., Any],
    *,
    weights: Sequence[Any] | None = None,
    of_inputs: bool = False,
    loss: Callable[[Any], tf.Tensor] = sum_of_squares,
    unconnected: str = "none",
) -> Callable[..., list[Any]]:
    """Return the step from inputs to ``loss`` of ``function`` and its gradients.

    The gradients are of the inputs, if asked for, then of the ``weights``. A Keras layer or model
    is called in training; unless given, its trainable weights are meant.
    """
    if isinstance(function, keras.layers.Layer):
        if weights is None:
            weights = [v.value for v in function.trainable_variables]
        function = functools.partial(function, training=True)
    weights = [] if weights is None else weights

    # Named ``x``, by which a profile is told of the input of a model.
    def step(x: Any, *others: Any) -> list[Any]:
        inputs = (x, *others)
        sources = [t for t in inputs if t.dtype.is_floating] if of_inputs else []
        with tf.GradientTape() as tape:
            tape.watch(sources)
            value = loss(function(*inputs))
        found = tape.gradient(value, [*sources, *weights], unconnected_gradients=unconnected)
        return [value, *found]

    return step


def gradient_step(function: Callable[..., Any], **options: Any) -> Callable[..., list[Any]]:
    """Return the step as ``loss_step`` does, without the loss among its results."""
    step = loss_step(function, **options)
    return lambda x, *others: step(x, *others)[1:]


def loss_and_gradients(
    function: Callable[..., Any], *inputs: Any, mode: str = "graph", **options: Any
) -> list[Any]:
    """Return loss and gradients of ``function`` at ``inputs``; options as for ``loss_step``."""
    step = in_mode(mode, loss_step(function, **options))
    return step(*map(tf.convert_to_tensor, inputs))


def outputs_and_gradients(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    weights: Sequence[Any] = (),
    *,
    mode: str = "graph",
    unconnected: str = "none",
) -> tuple[list[tf.Tensor], list[tf.Tensor | None]]:
    """Return the outputs, and the dense gradients of inputs and weights, of ``weighted_sum``."""

    def run(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor | None]]:
        sources = [t for t in inputs if t.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = [tf.convert_to_tensor(y) for y in tf.nest.flatten(function(*inputs))]
            loss = weighted_sum([y for y in outputs if y.dtype.is_floating])
        found = tape.gradient(loss, [*sources, *weights], unconnected_gradients=unconnected)
        return outputs, [None if g is None else tf.convert_to_tensor(g) for g in found]

    return in_mode(mode, run)(*map(tf.convert_to_tensor, inputs))


def assert_all_close(
    ours: Iterable[Any], plain: Iterable[Any], *, rtol: float = 1e-7, atol: float = 0.0
) -> None:
    """Assert that there are as many results, and each agrees with the plain one."""
    ours, plain = list(ours), list(plain)
    assert len(ours) == len(plain)
    for number, (a, b) in enumerate(zip(ours, plain)):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=f"result {number}")


def assert_near(ours: Iterable[Any], plain: Iterable[Any], tolerance: float) -> None:
    """Assert that each result is within ``tolerance`` of the plain one's largest element.

    No result may be all zero: then nothing would be compared.
    """
    ours, plain = ([np.asarray(each) for each in results] for results in (ours, plain))
    assert len(ours) == len(plain)
    for number, (a, b) in enumerate(zip(ours, plain)):
        assert a.shape == b.shape, f"result {number}: {a.shape} against {b.shape}"
        scale = np.abs(b).max()
        assert scale > 0, f"result {number} is all zero: nothing is compared"
        off = np.abs(a - b).max() / scale
        assert off <= tolerance, f"result {number} is off by {off:.2g} of its largest element"


def losses_of_fit(
    model: keras.Model,
    x: Any,
    y: Any,
    *,
    mode: str = "graph",
    optimizer: Callable[[float], Any] = keras.optimizers.SGD,
    learning_rate: float = 0.1,
    loss: Any = "mse",
    **options: Any,
) -> list[float]:
    """Compile ``model`` with an optimizer of its own; return the loss of each epoch of ``fit``."""
    model.compile(optimizer(learning_rate), loss, **COMPILE_OPTIONS[mode])
    return model.fit(x, y, shuffle=False, verbose=0, **options).history["loss"]


def assert_same_training(
    ours: keras.Model,
    plain: keras.Model,
    x: Any,
    y: Any,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **options: Any,
) -> None:
    """Assert that ``losses_of_fit`` and the weights after it are the plain model's."""
    losses = [losses_of_fit(model, x, y, **options) for model in (ours, plain)]
    np.testing.assert_allclose(*losses, rtol=rtol)
    for a, b in zip(ours.weights, plain.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=a.path)
