"""What the quantizers add when a fixed batch is shared by more and more replicas.

Replicas are processes of this machine under `MultiWorkerMirroredStrategy`; they share its cores, so
that the time of a step says little by itself. What is measured: the bytes that each replica gives
to all-reduce in a step, read off the traced graph, and the time of a step beside the float model's
with as many replicas.

Clipping levels are scalars: they add 4 bytes each. What they cost beyond that is in proportion to
the images of a replica, like the rest of its activations, and what the weights cost is the same on
every replica whatever the batch. So with n replicas, a batch of B in all, and for one model

    step(n) = images · B / n + weights + bytes · 2 (n - 1) / n / bandwidth,

where `images` and `weights` are the slope and the intercept of the step time of one process over
its batch size, measured here for the float and the quantized model. The last table is what that
says for more devices than there are here, with a bandwidth to choose.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --model=mobilenet_v1 --batch_size=64 --gigabytes_a_second=10
"""

import concurrent.futures
import json
import math
import multiprocessing
import os
import socket
import statistics
from typing import Any

import rich.console
import rows
from absl import app, flags
from turns import seconds_by_turns

_MODEL = flags.DEFINE_string("model", "mobilenet_v2", "float model, by name")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 96, "rows and columns of the images")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "images a step, of all replicas together")
_REPLICAS = flags.DEFINE_list("replicas", ["1", "2", "4"], "numbers of processes")
_STEPS = flags.DEFINE_integer("steps", 10, "timed steps")
_BANDWIDTH = flags.DEFINE_float("gigabytes_a_second", 10.0, "of all-reduce, for the last table")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/scaling.csv", "where to write rows")

_NUM_CLASSES = 1000
_CONTENDERS = _FLOAT, _OURS = "float", "sat-tf w4a4"
_WARM_UP = 3
_DEVICES = (1, 8, 64, 256, 1024)
_IMAGES_OF_A_DEVICE = 32


def _train(worker: int, ports: list[int], case: tuple[str, int, int, int]) -> dict[str, Any]:
    """Trains the float and the quantized model by turns, as one of the replicas."""
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": cluster, "task": {"type": "worker", "index": worker}}
    )
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    models = {name: _compiled(name, strategy, *case[:2]) for name in _CONTENDERS}
    steps = {name: model.make_train_function() for name, model in models.items()}
    batches = _batches(strategy, *case[1:3])
    # Fetching the loss waits for the step.
    calls = {name: lambda step=step: float(step(batches)["loss"]) for name, step in steps.items()}
    seconds = seconds_by_turns(calls, range(case[3]), warm_up=_WARM_UP)
    return {
        name: {
            "seconds": statistics.median(seconds[name]),
            "bytes": _reduced_bytes(steps[name].get_concrete_function(batches).graph),
            "gradient bytes": sum(4 * int(np.prod(v.shape)) for v in model.trainable_variables),
            "levels": sum("clipping_level" in v.name for v in model.trainable_variables),
        }
        for name, model in models.items()
    }


def _compiled(contender: str, strategy: Any, model_name: str, image_size: int) -> Any:
    import tf_keras as keras

    import sat_tf
    from sat_tf.training.models import build

    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build(model_name, image_size=image_size, num_classes=_NUM_CLASSES)
        if contender == _OURS:
            model = sat_tf.quantize_model(model, sat_tf.BitPolicy.paper(4))
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model


def _batches(strategy: Any, image_size: int, batch_size: int) -> Any:
    """The same batch again and again, shared among the replicas."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (batch_size, image_size, image_size, 3)).astype(np.float32)
    labels = rng.integers(0, _NUM_CLASSES, batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch_size).repeat()
    return iter(strategy.experimental_distribute_dataset(data.with_options(options)))


def _reduced_bytes(graph: Any) -> int:
    """Bytes of all tensors that the graph, and the functions it calls, give to all-reduce."""
    definition = graph.as_graph_def(add_shapes=True)
    functions = [function.node_def for function in definition.library.function]
    shapes = [
        node.attr["_output_shapes"].list.shape[0]
        for nodes in (definition.node, *functions)
        for node in nodes
        if node.op.startswith("CollectiveReduce")
    ]
    return sum(4 * math.prod(dimension.size for dimension in shape.dim) for shape in shapes)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _run(replicas: int, batch_size: int) -> dict[str, Any]:
    """What the first of so many processes found."""
    case = (_MODEL.value, _IMAGE_SIZE.value, batch_size, _STEPS.value)
    ports = _free_ports(replicas)
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=replicas, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        tasks = [pool.submit(_train, worker, ports, case) for worker in range(replicas)]
        return tasks[0].result()


def main(argv: list[str]) -> None:
    """Measures, prints the tables and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console, results = rich.console.Console(width=120), []
    measured = {}
    for replicas in map(int, _REPLICAS.value):
        with console.status(f"{replicas} replicas"):
            measured[replicas] = _run(replicas, _BATCH_SIZE.value)
    fewer = _BATCH_SIZE.value // 4
    with console.status("one process, a quarter of the batch"):
        quarter = _run(1, fewer)
    whole = measured.get(1) or _run(1, _BATCH_SIZE.value)
    parts = {}
    for name in whole:
        more = whole[name]["seconds"] - quarter[name]["seconds"]
        images = more / (_BATCH_SIZE.value - fewer)
        parts[name] = images, whole[name]["seconds"] - images * _BATCH_SIZE.value
    for replicas, found in measured.items():
        ours, floats = found[_OURS], found[_FLOAT]
        # Of one machine's replicas: all images once, and the weights once each.
        predicted = [
            images * _BATCH_SIZE.value + weights * replicas for images, weights in parts.values()
        ]
        results.append(
            {
                "replicas": str(replicas),
                "images a replica": f"{_BATCH_SIZE.value / replicas:g}",
                "bytes all-reduced, float": str(floats["bytes"]),
                "ours": str(ours["bytes"]),
                "clipping levels": str(ours["levels"]),
                "step, times float": f"{ours['seconds'] / floats['seconds']:.3f}",
                "predicted": f"{predicted[1] / predicted[0]:.3f}",
            }
        )
    console.print(rows.as_table(results, f"{_MODEL.value}, batch {_BATCH_SIZE.value} in all"))
    rows.write_csv(results, _OUTPUT.value)
    console.print(rows.as_table(_extended(parts, whole), "predicted for more devices"))
    console.print(f"wrote {_OUTPUT.value}")


def _extended(parts: dict[str, tuple[float, float]], whole: dict[str, Any]) -> list[dict[str, str]]:
    """Seconds of a step on devices of their own, each with the same number of images."""
    predicted = []
    for devices in _DEVICES:
        seconds = {}
        for name, (images, weights) in parts.items():
            moved = whole[name]["gradient bytes"] * 2 * (devices - 1) / devices
            reduce = moved / (_BANDWIDTH.value * 1e9)
            seconds[name] = images * _IMAGES_OF_A_DEVICE + weights + reduce
        predicted.append(
            {
                "devices": str(devices),
                "images": str(devices * _IMAGES_OF_A_DEVICE),
                "float, seconds": f"{seconds[_FLOAT]:.4f}",
                "ours, times float": f"{seconds[_OURS] / seconds[_FLOAT]:.3f}",
            }
        )
    return predicted


if __name__ == "__main__":
    app.run(main)
