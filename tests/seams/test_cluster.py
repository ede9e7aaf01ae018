"""TensorFlow's coordination service."""

import subprocess
import sys


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
print(service.heartbeat_timeout_in_ms, service.cluster_register_timeout_in_ms, service.service_leader)
print([(job.name, job.num_tasks) for job in service.coordinated_job_list])
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "2500 60000 /job:chief/replica:0/task:0\n[('chief', 1), ('worker', 2)]\n"
