"""TensorFlow's coordination service."""

import subprocess
import sys

import pytest


@pytest.mark.long
def test_the_service_gets_the_times_that_it_is_to_wait():
    # In a process of its own: the settings are kept for the rest of it.
    script = """
import tensorflow as tf
from tensorflow.python.eager import context
from keras_recompute.seams.tensorflow.cluster import watch_heartbeats
spec = tf.train.ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"]})
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=1)
watch_heartbeats(resolver, heartbeat_seconds=2.5, register_seconds=60)
service = context.context().coordination_service
print(service.heartbeat_timeout_in_ms, service.cluster_register_timeout_in_ms, end=" ")
print(service.service_leader)
print([(job.name, job.num_tasks) for job in service.coordinated_job_list])
"""
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert said == "2500 60000 /job:chief/replica:0/task:0\n[('chief', 1), ('worker', 2)]\n"


@pytest.mark.long
def test_outside_of_strategies_a_variable_is_one():
    # In a process of its own: its processor is divided into two devices.
    script = """
import tensorflow as tf
from keras_recompute.seams.tensorflow.cluster import leave_strategy_scopes
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    variable = tf.Variable(1.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    with leave_strategy_scopes():
        assert not tf.distribute.has_strategy()

def add(strategy, value):
    with leave_strategy_scopes():
        is_positive = strategy.experimental_local_results(value)[0] > 0
        tf.cond(is_positive, lambda: variable.assign_add(2.0), lambda: variable.read_value())

@tf.function
def step():
    replica = tf.distribute.get_replica_context
    strategy.run(lambda: replica().merge_call(add, args=(tf.constant(1.0),)))

step()
print([float(each) for each in strategy.experimental_local_results(variable)])
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "[3.0, 3.0]\n"
    )
