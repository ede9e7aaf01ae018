"""The context of a call that decides what is traced: types, scopes, strategy and compiler."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...seams.keras.call_context import autocast_dtype, current_training, stateless_scope
from ...seams.keras.time_loops import time_loops_are_replaced
from ..calls.call_signature import IdentityKey
from ..passes import target_now


def trace_context() -> Any:
    """Return a hashable value that is equal where the same call traces to the same graph.

    It holds what Keras passes from the call of an outer layer to the layers inside (whether it
    trains, the type to cast to), how loops over time run, and Keras's default types and image
    format. It also holds the target, and the replica and the distribution strategy.
    """
    replica = tf.distribute.get_replica_context()
    training = current_training()
    return (
        training
        if training is None or isinstance(training, (bool, int))
        else IdentityKey(training),
        autocast_dtype(),
        IdentityKey(stateless_scope()),  # in one, variables have other values
        time_loops_are_replaced(),
        keras.config.floatx(),
        keras.config.image_data_format(),
        keras.config.dtype_policy().name,
        target_now(),
        IdentityKey(tf.distribute.get_strategy()) if tf.distribute.has_strategy() else None,
        str(replica.replica_id_in_sync_group)
        if replica is not None and tf.distribute.has_strategy()
        else None,
    )
