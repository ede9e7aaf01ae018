"""This project: a ``keras_recompute.Model`` with checkpoint layers, as its users write it."""

from __future__ import annotations

from workloads import Workload

import keras_recompute as kr

from . import Peer
from .keras_models import assign
from .our_models import model
from .tensorflow_step import peer


def build(name: str, workload: Workload, checkpoints: int) -> Peer:
    """Return the peer, compiled by XLA unless it is ``ours-without-jit``."""
    return trained(workload, model(workload, checkpoints), jit=name == "ours")


def trained(workload: Workload, some_model: kr.Model, *, jit: bool = True) -> Peer:
    """Return the peer that trains a model, from the weights that all peers start with."""
    assign(workload, some_model.trainable_variables)
    variables = [v.value for v in some_model.trainable_variables]
    return peer(workload, lambda x: some_model(x, training=True), variables, jit=jit)
