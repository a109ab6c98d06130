"""The `tf.distribute` strategies a configuration can name."""

import tensorflow as tf


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Makes a strategy; to be called before anything else is asked of TensorFlow.

    Args:
        name: "default" (one device), "mirrored" (all devices of this machine) or "multi_worker"
            (several machines, which the environment variable TF_CONFIG describes).
    """
    if name == "mirrored":
        return tf.distribute.MirroredStrategy()
    if name == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.get_strategy()


def writes_files(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one of all workers that keeps the run folder."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.cluster_spec().as_dict():
        return True
    first = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return bool(resolver.task_type == first and resolver.task_id == 0)
