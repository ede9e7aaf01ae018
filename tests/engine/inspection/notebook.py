"""The functions of the notebook "Gradient checkpointing with jax.checkpoint", in TensorFlow."""

# ruff: noqa: RET504 - the notebook's own lines
from __future__ import annotations

import tensorflow as tf

from keras_recompute.engine.frontend.checkpoint import checkpoint
from keras_recompute.engine.graph.annotations import checkpoint_name
from keras_recompute.engine.policies import save_matmuls_without_batch_dims, save_names


def g(W, x):
    y = tf.linalg.matvec(W, x)
    return tf.sin(y)


def f(W1, W2, W3, x):
    x = g(W1, x)
    x = g(W2, x)
    x = g(W3, x)
    return x


def f2(W1, W2, W3, x):
    x = checkpoint(g)(W1, x)
    x = checkpoint(g)(W2, x)
    x = checkpoint(g)(W3, x)
    return x


f3 = checkpoint(f, policy=save_matmuls_without_batch_dims)


@checkpoint(policy=save_names("a"))
def f4(W1, W2, W3, x):
    x = checkpoint_name(g(W1, x), name="a")
    x = checkpoint_name(g(W2, x), name="b")
    x = checkpoint_name(g(W3, x), name="c")
    return x


def layer(W, x):
    return tf.sin(tf.linalg.matvec(W, x))


def predict(params, x):
    *Ws, Wlast = params
    for i, W in enumerate(Ws):
        x = layer(W, x)
        x = checkpoint_name(x, name=f"layer{i}_output")
    return tf.linalg.matvec(Wlast, x)


def loss(params, x, y):
    return tf.reduce_sum((predict(params, x) - y) ** 2)


def chain_compose(funs):
    def f(x):
        for fun in funs:
            x = fun(x)
        return x

    return f


def recursive_checkpoint(funs):
    if len(funs) == 1:
        return funs[0]
    if len(funs) == 2:
        f1, f2 = funs
        return lambda x: f1(f2(x))
    f1 = recursive_checkpoint(funs[: len(funs) // 2])
    f2 = recursive_checkpoint(funs[len(funs) // 2 :])
    return lambda x: f1(checkpoint(f2)(x))


WEIGHTS = (tf.ones((5, 4)), tf.ones((6, 5)), tf.ones((7, 6)), tf.ones(4))
PARAMS = ([tf.ones((4, 4))] * 3, tf.ones(4), tf.ones(4))
