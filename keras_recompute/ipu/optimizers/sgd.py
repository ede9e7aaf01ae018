"""Graphcore's gradient descent."""

from __future__ import annotations

from typing import Any

import keras

from ...seams.keras.training import optimizer_index
from .base import IpuOptimizerBase, dtype_name


@keras.saving.register_keras_serializable(package="keras_recompute")
class SGDIpuOptimizer(IpuOptimizerBase):
    """Gradient descent with momentum of a chosen type.

    Source: Sutskever et al. 2013, for Nesterov's momentum.

    Args:
        learning_rate: The learning rate, or a schedule.
        momentum: The decay rate of the velocity.
        nesterov: Whether the momentum is Nesterov's.
        name: The optimiser's name.
        momentum_accum_dtype: The type of the velocity; None is that of the variable.
        **kwargs: Arguments of ``IpuOptimizerBase``.
    """

    arguments = ("momentum", "nesterov", "momentum_accum_dtype")

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        momentum_accum_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, **kwargs)
        self.momentum, self.nesterov = momentum, nesterov
        self.momentum_accum_dtype = dtype_name(momentum_accum_dtype)

    def make_state(self, variables: list[Any]) -> None:
        """Create the velocity of each variable if there is a momentum."""
        self.velocities = (
            self.state_of(variables, "momentum", self.momentum_accum_dtype)
            if self.momentum
            else None
        )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update ``variable`` and its velocity."""
        dtype = self.opt_dtypes[0]
        step = -keras.ops.cast(learning_rate, dtype) * keras.ops.cast(gradient, dtype)
        if self.velocities is not None:
            velocity = self.velocities[optimizer_index(self, variable)]
            after = keras.ops.cast(velocity, dtype) * self.momentum + step
            self.assign(velocity, keras.ops.cast(after, velocity.dtype))
            step = after * self.momentum + step if self.nesterov else after
        self.assign_add(variable, keras.ops.cast(step, variable.dtype))
