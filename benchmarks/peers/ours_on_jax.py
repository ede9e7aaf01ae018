"""This project on JAX: the same ``keras_recompute.Model``, in the training step of JAX's peer."""

from __future__ import annotations

import jax.numpy as jnp
from workloads import Workload, data

from . import Peer, jax_peer
from .keras_models import assign
from .our_models import model


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer, its step to be compiled when it is first taken."""
    del name
    # Parts of a sequence are a loop without the option, and a single section is none.
    has_loop = checkpoints != 1 and not workload.is_recurrent
    made = model(workload, checkpoints, scan_layers=has_loop)
    assign(workload, made.trainable_variables)
    others = [variable.value for variable in made.non_trainable_variables]

    def loss(weights, x, y):
        outputs, _ = made.stateless_call(weights, others, x, training=True)
        return jnp.mean((outputs - y) ** 2)

    weights = [jnp.array(variable.value) for variable in made.trainable_variables]
    return jax_peer.trained(jax_peer.sgd_step(loss), weights, *map(jnp.asarray, data(workload)))
