"""The `tf.distribute` strategies that a configuration can name, and values under them."""

import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.messages import RunError, first_ones, reason_of
from sat_tf.training.data.source import Shard

_LAST_PORT = 65_535


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Creates a strategy; to be called before anything else of TensorFlow.

    "none" is one device; "mirrored" all devices of this machine; "multi_worker" several machines,
    which the environment variable TF_CONFIG describes; "tpu" the one that TPU_NAME names, or that
    this machine has; "auto" is multi_worker where TF_CONFIG names several processes, tpu where
    TPU_NAME is set, mirrored where there are several GPUs, none otherwise.
    """
    if name == "auto":
        name = "none"
        cluster = _cluster()[0] if os.environ.get("TF_CONFIG") else {}
        if sum(len(cluster.get(job, ())) for job in ("chief", "worker")) > 1:
            name = "multi_worker"
        elif os.environ.get("TPU_NAME"):
            name = "tpu"
        elif len(tf.config.list_physical_devices("GPU")) > 1:
            name = "mirrored"
    if name == "mirrored":
        return tf.distribute.MirroredStrategy()
    if name == "multi_worker":
        _expect_free_port(_cluster()[2])
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except (ValueError, RuntimeError, tf.errors.OpError) as error:
            raise RunError(
                f"TF_CONFIG={os.environ['TF_CONFIG']!r}: its cluster cannot be formed "
                f"({reason_of(error)}), expected every worker to start and to reach the others; "
                "correct the addresses, and start the same command on all of them."
            ) from error
    if name != "tpu":
        return tf.distribute.get_strategy()
    tpu = os.environ.get("TPU_NAME", "")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu or "local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError, RuntimeError) as error:
        raise RunError(
            f"distribution='tpu': no TPU answers (TPU_NAME={tpu!r}: "
            f"{str(error).splitlines()[0]}), expected one; set TPU_NAME, or choose another "
            "distribution."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def strategy_note(name: str, strategy: tf.distribute.Strategy) -> str | None:
    """Says that a strategy has nothing to distribute over; None where it has."""
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
    """The shard of every global batch that this process computes."""
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


def distributed(strategy: tf.distribute.Strategy, batches: Callable[..., tf.data.Dataset]) -> Any:
    """The batches of a source, which gives those of a `shard`, as `fit` takes them."""
    if strategy.num_replicas_in_sync == 1:
        return batches()

    def pieces(context: tf.distribute.InputContext) -> tf.data.Dataset:
        pipelines = context.num_input_pipelines
        shard = Shard(
            worker=context.input_pipeline_id,
            workers=pipelines,
            replicas=context.num_replicas_in_sync // pipelines,
        )
        return batches(shard=shard)

    return strategy.distribute_datasets_from_function(pieces)


def from_first_worker(strategy: tf.distribute.Strategy, arrays: Sequence[Any]) -> list[np.ndarray]:
    """The arrays of the first worker, on every worker; all workers have to call it together."""
    own_arrays = [np.asarray(array) for array in arrays]
    if shard_of(strategy).workers == 1:
        return own_arrays

    def summed(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        sends = tf.equal(context.replica_id_in_sync_group, 0)
        contributions = [tf.where(sends, tensor, tf.zeros_like(tensor)) for tensor in tensors]
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in contributions]

    # float32 holds every weight exactly, and every count that is sent.
    sent = [tf.constant(array, tf.float32) for array in own_arrays]
    sums = tf.function(lambda tensors: strategy.run(summed, args=(tensors,)))(sent)
    return [
        strategy.experimental_local_results(tensor)[0].numpy().astype(array.dtype)
        for tensor, array in zip(sums, own_arrays, strict=True)
    ]


def from_all_workers(strategy: tf.distribute.Strategy, line: str) -> list[str]:
    """The lines of all workers, in order, on every worker; all have to call it together."""
    shard = shard_of(strategy)
    if shard.workers == 1:
        return [line]
    # float32, which every device can gather, holds every byte.
    sent = tf.constant(np.frombuffer(f"{line}\n".encode(), np.uint8), tf.float32)
    of_replicas = tf.function(lambda: strategy.run(lambda: sent), autograph=False)()
    received = strategy.gather(of_replicas, axis=0).numpy().astype(np.uint8)
    return received.tobytes().decode().split("\n")[: -1 : shard.replicas]


def waiting_note(name: str) -> str | None:
    """Says that `make_strategy` is going to wait for other workers; None where it does not.

    Raises RunError where TF_CONFIG gives this process a host that has no address.
    """
    if name not in ("multi_worker", "auto") or not os.environ.get("TF_CONFIG"):
        return None
    cluster, task, address = _cluster()
    others = [other for other in itertools.chain(*cluster.values()) if other != address]
    if name == "auto" and not others:
        return None
    here = f"This is {task['type']} {task['index']} at {address}"
    if not _is_of_this_machine(address):
        here += ", which is no address of this machine: it waits until it reaches itself there"
    elif not others:
        return None
    waiting = f"; it waits for {first_ones(others)}, which run the same command" if others else ""
    return f"{here}{waiting}. Ctrl-C ends the waiting."


def _cluster() -> tuple[dict[str, Any], dict[str, Any], str]:
    """The cluster and the task of TF_CONFIG, and the address of this process."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        values = json.loads(text)
        cluster, task = dict(values["cluster"]), dict(values["task"])
        addresses = list(itertools.chain(*cluster.values()))
        if not all(map(_is_address, addresses)) or len({*addresses}) < len(addresses):
            raise ValueError("addresses")
        # A negative index would count from the end.
        address = cluster[task["type"]][task["index"] if task["index"] >= 0 else len(addresses)]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise RunError(
            f"TF_CONFIG={text!r}: expected the cluster and the task of this process, with lists of "
            f"hosts and ports from 1 to {_LAST_PORT}, different for each process, such as "
            '{"cluster": {"worker": ["first:2222", "second:2222"]}, "task": {"type": "worker", '
            '"index": 0}}; set it, or choose another distribution.'
        ) from error
    return cluster, task, address


def _is_address(address: Any) -> bool:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    is_host = bool(host) and host.isprintable() and not set(host) & set(" /,")
    return is_host and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _LAST_PORT


def _expect_free_port(address: str) -> None:
    """Raises RunError where this process cannot listen on its port: gRPC would abort, or share it.

    It listens on all addresses of the machine, whatever the host in front of the port.
    """
    port = address.rpartition(":")[2]
    try:
        with socket.socket() as listener:
            if os.name != "nt":  # where it would take a port that is in use
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", int(port)))
    except OSError as error:
        raise RunError(
            f"TF_CONFIG: received the port {port} for this process, which cannot be opened "
            f"({error.strerror}), expected a free one; end the process that has it, give each "
            "process its own task.index, or choose another port on all of them."
        ) from error


def _is_of_this_machine(address: str) -> bool:
    """Whether an address is one of this machine, and not of one that passes messages on.

    Raises RunError where its host has no address: gRPC would wait for itself without end.
    """
    host = address.rpartition(":")[0]
    try:
        places = socket.getaddrinfo(host.strip("[]"), None)
    except (OSError, UnicodeError) as error:
        raise RunError(
            f"TF_CONFIG: received the host {host} for this process, which has no address "
            f"({getattr(error, 'strerror', '') or error}), expected the name or address of this "
            "machine; correct it."
        ) from error
    for family, _, _, _, place in places:
        with contextlib.suppress(OSError), socket.socket(family) as listener:
            listener.bind(place)
            return True
    return False


def replica_variable(
    value: Any,
    name: str,
    *,
    dtype: tf.DType | None = None,
    aggregation: tf.VariableAggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA,
) -> tf.Variable:
    """Creates a variable with a copy of its own on every replica, to be assigned inside a step.

    Nothing is sent between devices until it is read or saved, when its copies are combined: the
    first one where all are equal, the mean of statistics of each replica's own images. Create it in
    the strategy's scope.
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
    """Assigns to variables of the model, in a replica, values that are equal on all replicas."""

    def assign(strategy: tf.distribute.Strategy, *values: Any) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                variable, lambda component, new: component.assign(new), args=(value,), group=False
            )

    # The optimizers of Keras do the same: XLA on several accelerators has no merge_call.
    tf.__internal__.distribute.interim.maybe_merge_call(
        assign, tf.distribute.get_strategy(), *values
    )
