"""Graphcore's Adam."""

from __future__ import annotations

from typing import Any

import keras

from ...seams.keras.training import optimizer_index
from .base import IpuOptimizerBase, dtype_name


@keras.saving.register_keras_serializable(package="keras_recompute")
class AdamIpuOptimizer(IpuOptimizerBase):
    """Adam with moments of chosen types.

    Sources: Kingma and Ba 2014, algorithm 1; for AMSGrad, Reddi et al. 2018.

    Args:
        learning_rate: The learning rate, or a schedule.
        beta_1: The decay rate of the first moment.
        beta_2: The decay rate of the second moment.
        epsilon: Added to the root of the second moment.
        amsgrad: Whether to use the largest second moment so far.
        name: The optimiser's name.
        m_dtype: The type of the first moment; None is that of the variable.
        v_dtype: The type of the second moment.
        vhat_dtype: The type of the largest second moment.
        debiasing: Whether to correct the moments for their start at zero.
        **kwargs: Arguments of ``IpuOptimizerBase``.
    """

    arguments = (
        "beta_1",
        "beta_2",
        "epsilon",
        "amsgrad",
        "m_dtype",
        "v_dtype",
        "vhat_dtype",
        "debiasing",
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        m_dtype: Any = None,
        v_dtype: Any = None,
        vhat_dtype: Any = None,
        debiasing: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, **kwargs)
        self.beta_1, self.beta_2, self.epsilon, self.amsgrad, self.debiasing = (
            beta_1,
            beta_2,
            epsilon,
            amsgrad,
            debiasing,
        )
        self.m_dtype, self.v_dtype, self.vhat_dtype = (
            dtype_name(m_dtype),
            dtype_name(v_dtype),
            dtype_name(vhat_dtype),
        )

    def make_state(self, variables: list[Any]) -> None:
        """Create the moments of each variable."""
        self.m, self.v = (
            self.state_of(variables, "m", self.m_dtype),
            self.state_of(variables, "v", self.v_dtype),
        )
        self.vhat = self.state_of(variables, "vhat", self.vhat_dtype) if self.amsgrad else None

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update ``variable`` and its moments."""
        index, dtype = optimizer_index(self, variable), self.opt_dtypes[0]
        m, v = self.moments(
            gradient,
            self.m[index],
            self.v[index],
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            debiasing=self.debiasing,
        )
        if self.vhat is not None:
            v = keras.ops.maximum(keras.ops.cast(self.vhat[index], dtype), v)
            self.assign(self.vhat[index], keras.ops.cast(v, self.vhat[index].dtype))
        update = keras.ops.cast(learning_rate, dtype) * m / (keras.ops.sqrt(v) + self.epsilon)
        self.assign_sub(variable, keras.ops.cast(update, variable.dtype))
