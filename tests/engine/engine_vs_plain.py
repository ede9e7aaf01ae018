"""Running a function plainly and through the engine, with everything that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_recompute.engine.capture.joint_graph import join
from keras_recompute.engine.capture.trace import trace
from keras_recompute.engine.emit.lowering import lower
from keras_recompute.engine.partition.partition import Partition, Policy, partition
from keras_recompute.engine.passes import target_now
from keras_recompute.engine.policies import save_nothing
from tests.oracle import loss_step, outputs_and_gradients, sum_of_sines


def specs(arguments: Sequence[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(a.shape, a.dtype) for a in arguments]


def parted(
    function: Callable[..., Any],
    signature: Sequence[Any],
    policy: Policy = save_nothing,
    kept_by_caller=(),
) -> Partition:
    """Trace, join and partition ``function``."""
    return partition(
        join(trace(function, specs(signature), target_now())), policy, kept_by_caller=kept_by_caller
    )


def through_engine(
    function: Callable[..., Any], policy: Policy = save_nothing, kept_by_caller=()
) -> Callable[..., list[tf.Tensor]]:
    """Return ``function`` as the engine writes it: flat outputs, replayed in the backward pass."""

    # Otherwise AutoGraph converts all of the engine, in a function that is traced with it.
    @tf.autograph.experimental.do_not_convert
    def run(*arguments: tf.Tensor) -> list[tf.Tensor]:
        return lower(
            parted(function, arguments, policy, kept_by_caller), arguments, name="section-0"
        )

    return run


@dataclass
class Result:
    outputs: list[np.ndarray]
    gradients: list[np.ndarray | None]


def differentiate(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    variables: Sequence[tf.Variable] = (),
    *,
    jit: bool = False,
    eager: bool = False,
) -> Result:
    """Return the outputs, and the gradients of the arguments and variables, of a sum that weighs
    every output element.
    """
    mode = "eager" if eager else "jit" if jit else "graph"
    outputs, gradients = outputs_and_gradients(function, arguments, variables, mode=mode)
    return Result(
        [y.numpy() for y in outputs], [None if g is None else g.numpy() for g in gradients]
    )


def assert_same(ours: Result, plain: Result, *, relative: float = 0.0) -> None:
    """Assert that all outputs and gradients agree: bit for bit, or within ``relative`` of the
    largest element.
    """
    assert len(ours.outputs) == len(plain.outputs)
    for kind, ours_all, plain_all in (
        ("output", ours.outputs, plain.outputs),
        ("gradient", ours.gradients, plain.gradients),
    ):
        for number, (a, b) in enumerate(zip(ours_all, plain_all, strict=True)):
            assert (a is None) == (b is None), (
                f"{kind} {number}: {'ours' if a is None else 'the plain one'} is None"
            )
            if a is None:
                continue
            assert a.dtype == b.dtype, f"{kind} {number}: {a.dtype} against {b.dtype}"
            assert a.shape == b.shape, f"{kind} {number}: {a.shape} against {b.shape}"
            assert np.isfinite(b.astype(np.float64)).all(), (
                f"{kind} {number} of the plain function is not finite"
            )
            scale = max(np.abs(b.astype(np.float64)).max(initial=0.0), 1e-30)
            off = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0) / scale
            assert off <= relative, (
                f"{kind} {number} is off by {off:.2g} of its largest element, allowed "
                f"{relative:.2g}"
            )


def operation_count(function: tf.types.experimental.ConcreteFunction, kind: str) -> int:
    """Return how many operations of type ``kind`` there are in a concrete function and the
    functions it calls.
    """
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
    return sum(node.op == kind for node in nodes)


def step_of(function, layer, x):
    """Return the step with the gradients of the input and the weights, and the types of its
    operations.
    """
    weights = [v.value for v in layer.trainable_variables]
    step = loss_step(function, weights=weights, of_inputs=True, loss=sum_of_sines)
    made = tf.function(step, autograph=False).get_concrete_function(x)
    return made, {operation.type for operation in made.graph.get_operations()}
