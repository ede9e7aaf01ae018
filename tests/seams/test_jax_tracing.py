"""Whether ``jax.vmap`` is the innermost transformation of JAX; where JAX is installed."""

import pytest

jax = pytest.importorskip("jax")

from keras_recompute.seams.jax.tracing import is_mapped_here  # noqa: E402

ONES = jax.numpy.ones((3, 2))


def seen_by(transform):
    """Return what is said in a function that ``transform`` calls with one row or all."""
    seen = []

    def function(x):
        seen.append(is_mapped_here([x]))
        return jax.numpy.sum(x)

    transform(function)
    return seen


@pytest.mark.parametrize(
    ("transform", "mapped"),
    [
        (lambda f: f(ONES), False),
        (lambda f: jax.vmap(f)(ONES), True),
        (lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())(ONES), True),
        (lambda f: jax.vmap(jax.grad(f))(ONES), False),
        (lambda f: jax.vmap(jax.jit(f))(ONES), False),
        (lambda f: jax.jit(jax.vmap(f))(ONES), True),
        # Mapped by the outer one alone, and a constant in an inner one.
        (lambda f: jax.vmap(lambda x: jax.vmap(lambda _: f(x))(ONES))(ONES), False),
    ],
)
def test_the_innermost_transformation(transform, mapped):
    assert seen_by(transform) == [mapped]
