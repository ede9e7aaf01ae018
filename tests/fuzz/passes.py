"""One call of a layer or model, with everything that can be compared; and the comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_recompute.errors import RecomputeWarning

from .cases import weighted_sum

TOLERANCE = 1e-5


def one_pass(
    run: Callable[..., Any], layer: Any, x: tf.Tensor, *, training: bool
) -> dict[str, Any]:
    """Return the output of ``run``, gradients of ``x`` and the trainable weights of ``layer``, and
    all weights afterwards.
    """
    weights = {f"{n} {v.name}": v.value for n, v in enumerate(layer.trainable_variables)}
    sources = {**({"input": x} if x.dtype.is_floating else {}), **weights}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecomputeWarning)  # such small layers have nothing to save
        with tf.GradientTape() as tape:
            tape.watch([t for t in sources.values() if isinstance(t, tf.Tensor)])
            y = run(x, training=training)
            loss = weighted_sum([y])
        gradients = tape.gradient(loss, list(sources.values()))
    found = {"output": y, **{f"d {name}": g for name, g in zip(sources, gradients)}}
    found = {
        name: None if t is None else tf.convert_to_tensor(t).numpy() for name, t in found.items()
    }
    return {
        **found,
        **{f"{n} {v.path} afterwards": np.asarray(v) for n, v in enumerate(layer.variables)},
    }


def attempt(
    run: Callable[..., Any], layer: Any, x: tf.Tensor, *, training: bool
) -> dict[str, Any] | Exception:
    """Return what ``one_pass`` returns or raises."""
    try:
        return one_pass(run, layer, x, training=training)
    except Exception as error:
        return error.with_traceback(None)


def assert_alike(ours: dict[str, Any] | Exception, plain: dict[str, Any] | Exception) -> None:
    """Assert that all values agree within TOLERANCE of the largest, or that both raise the same."""
    if isinstance(plain, Exception) or isinstance(ours, Exception):
        assert type(ours) is type(plain), f"{_shown(ours)} instead of {_shown(plain)}"
        return
    assert len(ours) == len(plain)
    for (name, a), b in zip(ours.items(), plain.values()):
        assert (a is None) == (b is None), (
            f"{name}: {'None' if a is None else 'a gradient'}, otherwise than plainly"
        )
        if a is not None:
            assert (a.dtype, a.shape) == (b.dtype, b.shape), (
                f"{name}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
            )
            off = np.abs(a.astype("float64") - b).max(initial=0) / max(
                1.0, np.abs(b).max(initial=0)
            )
            assert off <= TOLERANCE, f"{name} is off by {off:.2g}"


def _shown(found: Any) -> Sequence[str] | str:
    return (
        f"{type(found).__name__}: {str(found)[-300:]}"
        if isinstance(found, Exception)
        else f"values of {list(found)[:3]}"
    )
