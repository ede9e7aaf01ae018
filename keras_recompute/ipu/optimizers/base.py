"""The base of Graphcore's optimisers: types of state and arithmetic, and Keras 2 arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


class IpuOptimizerBase(keras.optimizers.Optimizer):
    """The base class of optimisers with state and arithmetic of chosen types.

    Args:
        name: The optimiser's name.
        optimizer_compute_precisions: Types of the arithmetic, one for each of its parts.
        outline_apply_gradients: Has no effect: there is no outlining here.
        outline_apply_gradients_kwargs: Has no effect.
        learning_rate: The learning rate, or a schedule.
        lr: Keras 2's name of ``learning_rate``.
        decay: Divides the learning rate by ``1 + decay * iterations``, as in Keras 2.
        **kwargs: Arguments of Keras's optimisers, such as ``clipnorm``.

    Raises:
        ValueError: For ``decay`` with a schedule.
    """

    # The arguments of a subclass, which stores them in attributes of these names.
    arguments: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        optimizer_compute_precisions: Sequence[Any] = (tf.float32,),
        outline_apply_gradients: bool = False,
        outline_apply_gradients_kwargs: Any = None,
        *,
        learning_rate: Any = 0.001,
        lr: Any = None,
        decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        del outline_apply_gradients, outline_apply_gradients_kwargs
        rate = learning_rate if lr is None else lr
        if decay and isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                f"{type(self).__name__}(decay={decay}) cannot be combined with a schedule: leave "
                "decay out, or give a number as learning_rate"
            )
        if decay:
            rate = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
        super().__init__(rate, name=name, **kwargs)
        self.opt_dtypes = tuple(tf.as_dtype(dtype).name for dtype in optimizer_compute_precisions)

    def get_config(self) -> dict[str, Any]:
        """Return Keras's config with the arguments."""
        own = {name: getattr(self, name) for name in self.arguments}
        return {**super().get_config(), **own, "optimizer_compute_precisions": self.opt_dtypes}

    def build(self, variables: list[Any]) -> None:
        """Create the state for ``variables``."""
        if not self.built:
            super().build(variables)
            self.make_state(variables)

    def make_state(self, variables: list[Any]) -> None:
        """Create the optimiser's state for each variable."""
        raise NotImplementedError

    def state_of(self, variables: list[Any], name: str, dtype: Any) -> list[Any]:
        """Return a new variable for each of ``variables``.

        It has type ``dtype``, or the variable's own if that is None.
        """
        found = []
        for v in variables:
            kind = v.dtype if dtype is None else tf.as_dtype(dtype).name
            found.append(self.add_variable(v.shape, dtype=kind, name=f"{v.name}_{name}"))
        return found

    def moments(
        self, gradient: Any, m: Any, v: Any, *, beta_1: float, beta_2: float, debiasing: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Update and return the first and second moment.

        Source: Kingma and Ba 2014, algorithm 1.
        """
        dtype = self.opt_dtypes[0]
        g = keras.ops.cast(gradient, dtype)
        first = keras.ops.cast(m, dtype) * beta_1 + g * (1 - beta_1)
        second = keras.ops.cast(v, dtype) * beta_2 + g * g * (1 - beta_2)
        self.assign(m, keras.ops.cast(first, m.dtype))
        self.assign(v, keras.ops.cast(second, v.dtype))
        if not debiasing:
            return first, second
        step = keras.ops.cast(self.iterations + 1, dtype)
        return first / (1 - keras.ops.power(beta_1, step)), second / (
            1 - keras.ops.power(beta_2, step)
        )


def dtype_name(dtype: Any) -> str | None:
    """Return the name of ``dtype`` for a config, or None."""
    return None if dtype is None else str(tf.as_dtype(dtype).name)
