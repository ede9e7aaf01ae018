"""Graphcore's group, instance and layer normalisation: one computation over different groups.

Statistics are computed per sample, not over batches. Sources: Wu and He 2018 (group), Ulyanov et
al. 2016 (instance), Ba et al. 2016 (layer).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...errors import UnsupportedError


@keras.saving.register_keras_serializable(package="keras_recompute")
class GroupNormalization(keras.layers.Layer):
    """Normalise each of ``groups`` groups of channels, then scale by gamma and add beta.

    ``channels_axis`` is 1 or the last axis. With ``strided_channel_grouping``, Graphcore's default,
    channel c is in group ``c % groups``. Without it, it is in group ``c // (channels // groups)``,
    as in other libraries. None for ``beta_initializer`` or ``gamma_initializer`` means Keras's
    default for weights. Raises ValueError for a missing axis, an axis that is neither 1 nor the
    last, and groups that do not divide the channels.
    """

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        strided_channel_grouping: bool = True,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.groups, self.channels_axis, self.epsilon = groups, channels_axis, epsilon
        self.center, self.scale = center, scale
        self.strided_channel_grouping = strided_channel_grouping
        self.beta_initializer = keras.initializers.get(beta_initializer)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)

    def build(self, input_shape: Any) -> None:
        """Create gamma and beta, of shape ``(channels,)``."""
        rank = len(input_shape)
        if not -rank <= self.channels_axis < rank:
            raise ValueError(
                f"{self.name!r}: channels_axis={self.channels_axis} is not an axis of its inputs, "
                f"{tuple(input_shape)}: give 1 or the last"
            )
        self._axis = self.channels_axis % rank
        if self._axis not in (1, rank - 1):
            raise ValueError(
                f"{self.name!r}: channels_axis={self.channels_axis} of {rank} axes: give 1 or the "
                "last"
            )
        channels = input_shape[self._axis]
        if self.groups < 1 or channels % self.groups:
            raise ValueError(
                f"{self.name!r}: groups={self.groups} does not divide the {channels} channels: "
                "give a number that does"
            )
        self._make_weights((channels,))

    def _make_weights(self, shape: tuple[int, ...]) -> None:
        """Create gamma and beta of ``shape``, as far as the options ask for them."""
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(
                shape=shape, initializer=self.gamma_initializer, name="gamma"
            )
        if self.center:
            self.beta = self.add_weight(shape=shape, initializer=self.beta_initializer, name="beta")
        self.built = True

    def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        """Return the normalised inputs, in training and inference alike."""
        del training
        last = len(inputs.shape) - 1
        x = tf.experimental.numpy.moveaxis(inputs, self._axis, last)
        whole = _shape(x)
        size = x.shape[-1] // self.groups
        # The channels become two dimensions: the groups, and the channels of one. Statistics in 32
        # bits, as popnn takes them.
        pair, of_groups = (
            ((size, self.groups), last + 1)
            if self.strided_channel_grouping
            else ((self.groups, size), last)
        )
        x = tf.cast(tf.reshape(x, [*whole[:-1], *pair]), tf.float32)
        mean, variance = tf.nn.moments(
            x, [axis for axis in range(1, last + 2) if axis != of_groups], keepdims=True
        )
        x = tf.reshape((x - mean) * tf.math.rsqrt(variance + self.epsilon), whole)
        x = tf.cast(x, inputs.dtype)
        if self.gamma is not None:
            x = x * tf.reshape(tf.cast(self.gamma, x.dtype), [-1])
        if self.beta is not None:
            x = x + tf.reshape(tf.cast(self.beta, x.dtype), [-1])
        x = tf.experimental.numpy.moveaxis(x, last, self._axis)
        x.set_shape(inputs.shape)
        return x

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with the arguments."""
        own = {
            "groups": self.groups,
            "channels_axis": self.channels_axis,
            "center": self.center,
            "scale": self.scale,
            "epsilon": self.epsilon,
            "beta_initializer": keras.initializers.serialize(self.beta_initializer),
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
            "strided_channel_grouping": self.strided_channel_grouping,
        }
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="keras_recompute")
class InstanceNormalization(GroupNormalization):
    """Normalise each channel of each sample: the groups have one channel.

    Arguments are those of ``GroupNormalization``.
    """

    def __init__(
        self,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            1,
            channels_axis,
            center,
            scale,
            epsilon,
            beta_initializer,
            gamma_initializer,
            True,
            trainable,
            **kwargs,
        )

    def build(self, input_shape: Any) -> None:
        """Create gamma and beta, of shape ``(channels,)``."""
        if -len(input_shape) <= self.channels_axis < len(input_shape):
            self.groups = input_shape[self.channels_axis]
        super().build(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with the arguments."""
        config = super().get_config()
        for name in ("groups", "strided_channel_grouping"):
            config.pop(name, None)
        return config


@keras.saving.register_keras_serializable(package="keras_recompute")
class LayerNormalization(GroupNormalization):
    """Normalise the elements along ``axis``, one or several axes, of each sample.

    gamma and beta have the shape that they have in Keras's layer. Raises ValueError for an axis
    that is no int or list of ints, is missing or repeated, or has an unknown size; UnsupportedError
    for regularisers and constraints.
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        axes = [axis] if type(axis) is int else axis
        if not isinstance(axes, (list, tuple)) or not all(type(a) is int for a in axes):
            raise ValueError(f"LayerNormalization(axis={axis!r}): give an int or a list of them")
        for name, value in (
            ("beta_regularizer", beta_regularizer),
            ("gamma_regularizer", gamma_regularizer),
            ("beta_constraint", beta_constraint),
            ("gamma_constraint", gamma_constraint),
        ):
            if value:
                raise UnsupportedError(
                    f"Graphcore's LayerNormalization has no {name}, but was given {value!r}: "
                    "leave it out"
                )
        super().__init__(
            1,
            -1,
            center,
            scale,
            epsilon,
            beta_initializer,
            gamma_initializer,
            True,
            trainable,
            **kwargs,
        )
        self.axis = list(axes)

    def build(self, input_shape: Any) -> None:
        """Create gamma and beta."""
        rank = len(input_shape)
        axes = sorted(a % rank if -rank <= a < rank else rank for a in self.axis)
        if rank in axes or len(set(axes)) != len(axes):
            raise ValueError(
                f"{self.name!r}: axis={self.axis} is not an axis of its inputs, "
                f"{tuple(input_shape)}, or is named twice"
            )
        if any(input_shape[a] is None for a in axes):
            raise ValueError(
                f"{self.name!r} needs a known size of axis={self.axis}, but its inputs are "
                f"{tuple(input_shape)}: give keras.Input that size"
            )
        self._axes = axes
        self._order = sorted(set(range(rank)).difference(axes)) + axes
        self._axis = 1
        # Keras sorts the axes as they were given: [1, -1] is [-1, 1]. What it holds in that shape
        # is in the order of the axes.
        self._make_weights(tuple(map(input_shape.__getitem__, sorted(self.axis))))

    def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        """Return the normalised inputs, in training and inference alike."""
        moved = tf.transpose(inputs, self._order)
        flat = tf.reshape(moved, [-1, math.prod(inputs.shape[a] for a in self._axes)])
        x = tf.reshape(super().call(flat, training), _shape(moved))
        x = tf.transpose(x, list(map(self._order.index, range(len(self._order)))))
        x.set_shape(inputs.shape)
        return x

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with the arguments."""
        config = super().get_config()
        for name in ("groups", "channels_axis", "strided_channel_grouping"):
            config.pop(name, None)
        return {"axis": self.axis, **config}


def _shape(x: tf.Tensor) -> list[Any]:
    """Return the shape of ``x``, with ints where sizes are known.

    XLA needs them as constants, whatever is recomputed.
    """
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(x.shape)]
