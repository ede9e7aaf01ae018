"""Graphcore's LAMB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...seams.keras.training import optimizer_index
from .base import IpuOptimizerBase, dtype_name


@keras.saving.register_keras_serializable(package="keras_recompute")
class LAMBIpuOptimizer(IpuOptimizerBase):
    """LAMB: Adam with a step that is as long as the variable.

    Source: You et al. 2020, algorithm 2.

    Args:
        learning_rate: The learning rate, or a schedule.
        beta_1: The decay rate of the first moment.
        beta_2: The decay rate of the second moment.
        epsilon: Added to the root of the second moment.
        weight_decay_rate: The share of a variable that is added to its step.
        exclude_from_weight_decay: Patterns of the paths of variables without weight decay.
        exclude_from_layer_adaptation: Patterns of the paths of variables that take Adam's step.
        name: The optimiser's name.
        debiasing: Whether to correct the moments for their start at zero.
        m_dtype: The type of the first moment; None is that of the variable.
        v_dtype: The type of the second moment.
        weight_norm_clip: An upper bound on the norm of a variable.
        optimizer_compute_precisions: The types of the moments' arithmetic and of the step's.
        **kwargs: Arguments of ``IpuOptimizerBase``.

    Raises:
        ValueError: Unless there are two types.
    """

    arguments = (
        *(
            "beta_1",
            "beta_2",
            "epsilon",
            "weight_decay_rate",
            "exclude_from_weight_decay",
            "exclude_from_layer_adaptation",
        ),
        *("debiasing", "m_dtype", "v_dtype", "weight_norm_clip"),
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LAMB",
        debiasing: bool = True,
        m_dtype: Any = None,
        v_dtype: Any = None,
        weight_norm_clip: float | None = None,
        optimizer_compute_precisions: Sequence[Any] = (tf.float32, tf.float32),
        **kwargs: Any,
    ) -> None:
        if len(optimizer_compute_precisions) != 2:
            raise ValueError(
                f"LAMBIpuOptimizer(optimizer_compute_precisions={optimizer_compute_precisions!r}): "
                "give two types, of the moments and of the step"
            )
        super().__init__(name, optimizer_compute_precisions, learning_rate=learning_rate, **kwargs)
        self.beta_1, self.beta_2, self.epsilon, self.debiasing = beta_1, beta_2, epsilon, debiasing
        self.weight_decay_rate, self.weight_norm_clip = weight_decay_rate, weight_norm_clip
        self.exclude_from_weight_decay = list(exclude_from_weight_decay or ())
        self.exclude_from_layer_adaptation = list(exclude_from_layer_adaptation or ())
        self.m_dtype, self.v_dtype = dtype_name(m_dtype), dtype_name(v_dtype)

    def make_state(self, variables: list[Any]) -> None:
        """Create the moments of each variable."""
        self.paths = [variable.path for variable in variables]
        self.m, self.v = (
            self.state_of(variables, "m", self.m_dtype),
            self.state_of(variables, "v", self.v_dtype),
        )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update ``variable`` and its moments."""
        index, (dtype, step_dtype) = optimizer_index(self, variable), self.opt_dtypes
        m, v = self.moments(
            gradient,
            self.m[index],
            self.v[index],
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            debiasing=self.debiasing,
        )
        now = keras.ops.cast(variable, dtype)
        update = m / (keras.ops.sqrt(v) + self.epsilon)
        if not _matches(self.exclude_from_weight_decay, self.paths[index]):
            update = update + now * self.weight_decay_rate
        rate = keras.ops.cast(learning_rate, dtype)
        if not _matches(self.exclude_from_layer_adaptation, self.paths[index]):
            rate = rate * self._ratio(now, update)
        step = keras.ops.cast(rate, step_dtype) * keras.ops.cast(update, step_dtype)
        self.assign_sub(variable, keras.ops.cast(step, variable.dtype))

    def _ratio(self, weights: Any, update: Any) -> Any:
        """Return the norm of ``weights`` over that of ``update``; 1 if either is 0."""
        of_weights = keras.ops.sqrt(keras.ops.sum(weights * weights))
        of_update = keras.ops.sqrt(keras.ops.sum(update * update))
        if self.weight_norm_clip is not None:
            of_weights = keras.ops.minimum(of_weights, self.weight_norm_clip)
        # The inner where below keeps the unused branch from dividing by zero.
        is_ratio = keras.ops.logical_and(of_weights > 0, of_update > 0)
        return keras.ops.where(
            is_ratio, of_weights / keras.ops.where(of_update > 0, of_update, 1), 1
        )


def _matches(patterns: Sequence[str], path: str) -> bool:
    """Return whether any of ``patterns`` is found in ``path``."""
    return any(re.search(pattern, path) for pattern in patterns)
