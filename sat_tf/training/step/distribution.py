"""The `tf.distribute` strategies that a configuration can name, and values under them."""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.data.shards import Shard
from sat_tf.messages import RunError


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Creates a strategy; to be called before anything else of TensorFlow.

    Args:
        name: "none" (one device), "mirrored" (all devices of this machine), "multi_worker" (several
            machines, which the environment variable TF_CONFIG describes), "tpu" (the one that
            TPU_NAME names, or that this machine has), or "auto": multi_worker where TF_CONFIG
            names several processes, tpu where TPU_NAME is set, mirrored where there are several
            GPUs, none otherwise.

    Raises:
        RunError: TF_CONFIG does not describe a cluster, or there is no TPU.
    """
    if name == "auto":
        name = _chosen()
    if name == "mirrored":
        return tf.distribute.MirroredStrategy()
    if name == "multi_worker":
        _cluster()
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "tpu":
        return _tpu_strategy()
    return tf.distribute.get_strategy()


def strategy_note(name: str, strategy: tf.distribute.Strategy) -> str | None:
    """What to say where a strategy has nothing to distribute over; None where it has.

    Args:
        name: as for `make_strategy`.
        strategy: that it made.
    """
    if name not in ("mirrored", "multi_worker") or strategy.num_replicas_in_sync > 1:
        return None
    return (
        f"Note: distribution: {name}: received one device, expected several; it trains as with "
        "none, only slower; make more visible, or set distribution to auto."
    )


def writes_files(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one worker that writes the run folder."""
    return shard_of(strategy).worker == 0


def shard_of(strategy: tf.distribute.Strategy) -> Shard:
    """Which shard of every global batch this process computes."""
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict() if resolver is not None else {}
    # A TPU's cluster lists the hosts that drive it, not this process.
    if isinstance(strategy, tf.distribute.TPUStrategy) or not spec:
        return Shard(replicas=strategy.num_replicas_in_sync)
    tasks = [(job, index) for job in ("chief", "worker") for index in range(len(spec.get(job, ())))]
    return Shard(
        worker=tasks.index((resolver.task_type, resolver.task_id)),
        workers=len(tasks),
        replicas=strategy.num_replicas_in_sync // len(tasks),
    )


def distributed(
    strategy: tf.distribute.Strategy, batches: Callable[[Shard | None], tf.data.Dataset]
) -> Any:
    """The batches of a source as `fit` takes them under a strategy.

    Args:
        strategy: the strategy.
        batches: gives the dataset of one process for its shard; None is everything.
    """
    if strategy.num_replicas_in_sync == 1:
        return batches(None)

    def pieces(context: tf.distribute.InputContext) -> tf.data.Dataset:
        pipelines = context.num_input_pipelines
        return batches(
            Shard(
                worker=context.input_pipeline_id,
                workers=pipelines,
                replicas=context.num_replicas_in_sync // pipelines,
            )
        )

    return strategy.distribute_datasets_from_function(pieces)


def from_first_worker(strategy: tf.distribute.Strategy, arrays: Sequence[Any]) -> list[np.ndarray]:
    """The arrays of the first worker, on every worker; all workers have to call it together.

    Args:
        strategy: the strategy.
        arrays: of the same shapes on every worker; numbers.
    """
    shard = shard_of(strategy)
    own = [np.asarray(array) for array in arrays]
    if shard.workers == 1:
        return own

    @tf.function
    def gathered(given: list[tf.Tensor]) -> Any:
        def first(given: list[tf.Tensor]) -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            is_first = tf.equal(context.replica_id_in_sync_group, 0)
            kept = [tf.where(is_first, tensor, tf.zeros_like(tensor)) for tensor in given]
            return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in kept]

        return strategy.run(first, args=(given,))

    # float32 holds every weight exactly, and every count that is sent.
    found = gathered([tf.constant(array, tf.float32) for array in own])
    return [
        strategy.experimental_local_results(tensor)[0].numpy().astype(array.dtype)
        for tensor, array in zip(found, own, strict=True)
    ]


def _chosen() -> str:
    if os.environ.get("TF_CONFIG"):
        cluster = _cluster()["cluster"]
        if sum(len(cluster.get(job, ())) for job in ("chief", "worker")) > 1:
            return "multi_worker"
    if os.environ.get("TPU_NAME"):
        return "tpu"
    return "mirrored" if len(tf.config.list_physical_devices("GPU")) > 1 else "none"


def _cluster() -> dict[str, Any]:
    """The contents of TF_CONFIG."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        values = json.loads(text)
        found = {"cluster": dict(values["cluster"]), "task": dict(values["task"])}
        index, workers = found["task"]["index"], found["cluster"][found["task"]["type"]]
        # A negative index would count from the end.
        workers[index if index >= 0 else len(workers)]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RunError(
            f"TF_CONFIG={text!r}: expected the cluster and the task of this process, such as "
            '{"cluster": {"worker": ["first:2222", "second:2222"]}, "task": {"type": "worker", '
            '"index": 0}}; set it, or choose another distribution.'
        ) from error
    return found


def _tpu_strategy() -> tf.distribute.Strategy:
    name = os.environ.get("TPU_NAME", "")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name or "local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError, RuntimeError) as error:
        raise RunError(
            f"distribution='tpu': no TPU answers (TPU_NAME={name!r}: "
            f"{str(error).splitlines()[0]}), expected one; set TPU_NAME, or choose another "
            "distribution."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def replica_variable(
    value: Any,
    name: str,
    *,
    dtype: tf.DType | None = None,
    aggregation: tf.VariableAggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA,
) -> tf.Variable:
    """Creates a variable with a copy of its own on every replica, to be assigned inside a step.

    Nothing is sent between devices until it is read or saved. Create it in the strategy's scope.

    Args:
        value: where it starts.
        name: of the variable.
        dtype: its type; by default that of `value`.
        aggregation: how copies are combined when read or saved: the first one where all are equal,
            the mean of statistics of each replica's own images.
    """
    return tf.Variable(
        value,
        trainable=False,
        dtype=dtype,
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )


def assign_alike(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> None:
    """Assigns to variables of the model, in a replica, values that are equal on all replicas.

    Args:
        variables: mirrored ones, such as kernels.
        values: one for each.
    """

    def assign(strategy: tf.distribute.Strategy, *values: Any) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                variable, lambda own, new: own.assign(new), args=(value,), group=False
            )

    # As the optimizers of Keras do it: XLA on several accelerators has no merge_call.
    tf.__internal__.distribute.interim.maybe_merge_call(
        assign, tf.distribute.get_strategy(), *values
    )
