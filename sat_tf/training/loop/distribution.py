"""The `tf.distribute` strategies a configuration can name, and what breaks a run from outside."""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.data.shards import Share
from sat_tf.data.source import ImageSource, ReadingError
from sat_tf.messages import RunError
from sat_tf.training.state.run_folder import RunFolder


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Makes a strategy; to be called before anything else is asked of TensorFlow.

    Args:
        name: "none" (one device), "mirrored" (all devices of this machine), "multi_worker" (several
            machines, which the environment variable TF_CONFIG describes), "tpu" (the one that
            TPU_NAME names, or that this machine has), or "auto": multi_worker where TF_CONFIG
            names several processes, tpu where TPU_NAME is set, mirrored where there are several
            GPUs, none otherwise.

    Raises:
        RunError: TF_CONFIG is no description of a cluster, or there is no TPU.
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


def writes_files(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one of all workers that keeps the run folder."""
    return share_of(strategy).worker == 0


def share_of(strategy: tf.distribute.Strategy) -> Share:
    """Which part of every global batch this process computes."""
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict() if resolver is not None else {}
    # A TPU's cluster lists the hosts that it is driven by, of which this process is none.
    if isinstance(strategy, tf.distribute.TPUStrategy) or not spec:
        return Share(replicas=strategy.num_replicas_in_sync)
    tasks = [(job, index) for job in ("chief", "worker") for index in range(len(spec.get(job, ())))]
    return Share(
        worker=tasks.index((resolver.task_type, resolver.task_id)),
        workers=len(tasks),
        replicas=strategy.num_replicas_in_sync // len(tasks),
    )


def distributed(
    strategy: tf.distribute.Strategy, batches: Callable[[Share | None], tf.data.Dataset]
) -> Any:
    """The batches of a source as `fit` takes them under a strategy.

    Args:
        strategy: the strategy.
        batches: gives the dataset of one process for its share; None is everything.
    """
    if strategy.num_replicas_in_sync == 1:
        return batches(None)

    def pieces(context: tf.distribute.InputContext) -> tf.data.Dataset:
        pipelines = context.num_input_pipelines
        return batches(
            Share(
                worker=context.input_pipeline_id,
                workers=pipelines,
                replicas=context.num_replicas_in_sync // pipelines,
            )
        )

    return strategy.distribute_datasets_from_function(pieces)


def from_first_worker(strategy: tf.distribute.Strategy, arrays: Sequence[Any]) -> list[np.ndarray]:
    """The arrays of the first worker, on every worker; all have to call it, and wait for it.

    Args:
        strategy: the strategy.
        arrays: of the same shapes on every worker; numbers.
    """
    share = share_of(strategy)
    own = [np.asarray(array) for array in arrays]
    if share.workers == 1:
        return own

    @tf.function
    def gathered(given: list[tf.Tensor]) -> Any:
        def first(given: list[tf.Tensor]) -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            is_first = tf.equal(context.replica_id_in_sync_group, 0)
            kept = [tf.where(is_first, tensor, tf.zeros_like(tensor)) for tensor in given]
            return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in kept]

        return strategy.run(first, args=(given,))

    # float32 holds every weight as it is, and every count that is asked for.
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
    """What TF_CONFIG says."""
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
            f"distribution='tpu': received no TPU that answers (TPU_NAME={name!r}: "
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
    """Makes a variable of which every replica has its own, to be assigned to inside a step.

    Nothing is sent between devices until it is read or saved. Make it in the strategy's scope.

    Args:
        value: where it starts.
        name: of the variable.
        dtype: its type; by default that of `value`.
        aggregation: what is read and saved, of values that are the same on all replicas or
            statistics of each replica's own images.
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
    """Assigns to variables of the model, in a replica, values that are the same on all of them.

    Args:
        variables: mirrored ones, such as kernels.
        values: one for each.
    """

    def assign(strategy: tf.distribute.Strategy, *values: Any) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                variable, lambda own, new: own.assign(new), args=(value,), group=False
            )

    # As the optimizers of Keras do it: XLA on several accelerators knows no merging.
    tf.__internal__.distribute.interim.maybe_merge_call(
        assign, tf.distribute.get_strategy(), *values
    )


@contextlib.contextmanager
def reading_errors_told(source: ImageSource, *, advice: str = "") -> Iterator[None]:
    """Raises what reading met as a `RunError`, without TensorFlow's tracebacks around it.

    Args:
        source: what is read in the block.
        advice: what to do when that is mended.

    Raises:
        RunError: see above.
    """
    try:
        yield
    except ReadingError as error:
        raise RunError(f"{error}{advice}") from None
    except tf.errors.OpError:
        if source.reading_error is None:
            raise
        raise RunError(f"{source.reading_error}{advice}") from None


# What a worker hears where another one does not answer, or has been told that one does not.
_OF_WORKERS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
_REFUSED = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
    errno.ESTALE,
}


@contextlib.contextmanager
def outside_failures_told(folder: RunFolder, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Raises what breaks a run from outside as a `RunError`, without tracebacks around it.

    Args:
        folder: of the run.
        strategy: that it trains under.

    Raises:
        RunError: another worker does not answer any more, or the file system refuses to write.
    """
    try:
        yield
    except tf.errors.OpError as error:
        # TensorFlow names the file in front of what the system says.
        if str(folder.path) in error.message:
            raise _refused(folder, _last_line(error.message)) from error
        if share_of(strategy).workers > 1 and _is_of_workers(error):
            raise RunError(
                "distribution: received no answer from another worker any more "
                f"({_last_line(error.message)}), expected all of them until the run ends; start "
                "the same command on all of them again: the run goes on from its last checkpoint."
            ) from error
        raise
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise _refused(folder, error.strerror or str(error)) from error


def _refused(folder: RunFolder, reason: str) -> RunError:
    return RunError(
        f"run folder {folder.path}: cannot be written to any more ({reason}), expected one that "
        "can until the run ends; free some space, or see to its permissions.\n"
        "Then the same command goes on from the last checkpoint."
    )


def _is_of_workers(error: tf.errors.OpError) -> bool:
    return isinstance(error, _OF_WORKERS) or "Collective" in error.message


def _last_line(message: str) -> str:
    """What an error says, without where in a graph it was met."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Collective ops is aborted")] or lines[:1]
    return told[0] if told else "no reason given"
