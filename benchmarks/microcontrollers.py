"""Kernels as tables of values in TFLite Micro: bytes, arena, time of a step, accuracy per byte.

Needs `sat-tf[micro]`. Times are those of TFLite Micro's reference kernels on this machine, and no
microcontroller's: what DECODE adds to a step, beside convolutions that nothing makes fast.

    python benchmarks/microcontrollers.py                    # networks with random weights
    python benchmarks/microcontrollers.py --tasks=signals,textures   # trained ones, reconstructed
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pretrained_tasks
import rich.console
import tf_keras as keras
from absl import app, flags
from full_size import make_realistic, smooth_images
from npu_networks import NETWORKS
from rows import as_table, read_csv, write_csv

import sat_tf
from sat_tf.exact.litert.runtime import MicroRuntime, Runtime
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.linear import linear_operations
from sat_tf.training.models import build

L = keras.layers
_SIDE, _CLASSES = 96, 100
_EXAMPLES, _RUNS = 32, 7
_BITS = (4, 3, 2)
_METHODS = ("dorefa", "l1", "kmeans")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/microcontrollers.csv", "where to write")
_ACCURACY = flags.DEFINE_string("accuracy", "benchmarks/results/accuracy_per_byte.csv", "likewise")
_TASKS = flags.DEFINE_list("tasks", [], "of `pretrained_tasks`, for accuracy per byte")
_FOLDER = flags.DEFINE_string("folder", "runs/microcontrollers", "where float models are kept")


def _mobilenet() -> tuple[keras.Model, np.ndarray]:
    model = build("mobilenet_v2", image_size=_SIDE, num_classes=_CLASSES, seed=0)
    make_realistic(model)
    return model, smooth_images(_EXAMPLES, _SIDE)


def _ds_cnn() -> tuple[keras.Model, np.ndarray]:
    network = NETWORKS["DS-CNN"]
    return network.build(), network.examples()[0]


def _sequence() -> tuple[keras.Model, np.ndarray]:
    """Depthwise separable convolutions of one dimension, for spoken words."""
    frames = x = keras.Input((98, 40))
    for strides in (1, 2, 1, 2, 1):
        x = L.SeparableConv1D(96, 9, strides, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    model = keras.Model(frames, L.Dense(12)(L.GlobalAveragePooling1D()(x)))
    make_realistic(model)
    rng = np.random.default_rng(0)
    return model, rng.integers(0, 256, (_EXAMPLES, 98, 40)).astype(np.uint8)


MODELS: Mapping[str, Callable[[], tuple[keras.Model, np.ndarray]]] = {
    f"MobileNet-V2, {_SIDE}x{_SIDE}": _mobilenet,
    "DS-CNN": _ds_cnn,
    "SeparableConv1D, 98x40": _sequence,
}


def _exported(model: keras.Model, pack: str) -> tuple[bytes, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.tflite"
        report = sat_tf.export_tflite(model, path, pack=pack)
        with open(path, "rb") as file:
            return file.read(), report


def _kernel_bytes(content: bytes) -> int:
    """The bytes of the kernels of a file, with their tables."""
    total = 0
    for linear in linear_operations(read_graph(content, "file").operations):
        tables = linear.encoded() if linear.index_bits else None
        total += linear.kernel.size if tables is None else tables.indices.size + tables.tables.size
    return total


def _milliseconds(contents: list[bytes], image: np.ndarray) -> list[float]:
    """The medians of alternating runs of one image in TFLite Micro."""
    runtimes = [MicroRuntime(content, keep_tensors=False) for content in contents]
    times: list[list[float]] = [[] for _ in runtimes]
    for _ in range(_RUNS):
        for runtime, measured in zip(runtimes, times, strict=True):
            start = time.process_time()
            runtime.run(image)
            measured.append(1000.0 * (time.process_time() - start))
    return [statistics.median(measured[1:]) for measured in times]


def _codes_differing(contents: list[bytes], images: np.ndarray) -> tuple[int, int]:
    """The codes in which two files differ in TFLite Micro, and those compared."""
    tensors = []
    for content in contents:
        runtime = MicroRuntime(content, keep_tensors=True)
        runtime.run(images)
        tensors.append(runtime.tensors(runtime._made.values()))
    pairs = [(array, tensors[1][name]) for name, array in tensors[0].items()]
    return sum(int(np.sum(a != b)) for a, b in pairs), sum(a.size for a, _ in pairs)


def _rows(name: str, bits: int) -> list[dict[str, Any]]:
    model, images = MODELS[name]()
    policy = sat_tf.BitPolicy.mobile(bits, target="micro", first_last_weight_bits=None)
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, images, progress=False)
    (plain, of_plain), (table, of_table) = (_exported(quantized, p) for p in ("none", "table"))
    differing, compared = _codes_differing([plain, table], images[:1])
    plain_time, table_time = _milliseconds([plain, table], images[:1])
    kernels = [_kernel_bytes(content) for content in (plain, table)]
    return [
        {
            "network": name,
            "bits": bits,
            "operators": sum(of_plain.operators.values()),
            "decoders": of_table.operators["TFLM_DECODE"],
            "int8 bytes": len(plain),
            "bytes": len(table),
            "int8 kernels": kernels[0],
            "kernels": kernels[1],
            "share of kernels": f"{kernels[1] / kernels[0]:.3f}",
            "int8 arena": of_plain.arena_bytes,
            "arena": of_table.arena_bytes,
            "int8 ms": f"{plain_time:.2f}",
            "ms": f"{table_time:.2f}",
            "codes compared": compared,
            "codes differing": differing,
        }
    ]


def _accuracy(name: str, method: str, bits: int) -> dict[str, Any]:
    """A trained network, calibrated and reconstructed on what it was trained on, without labels."""
    import pathlib

    task = pretrained_tasks.TASKS[name]
    (train, _), (held_out, classes) = task.examples()
    file = pretrained_tasks.prepare(task, pathlib.Path(_FOLDER.value) / name)
    model = keras.models.load_model(file, compile=False)
    fields = {"weight_quantizer": method, "activation_bits": 8, "target": "micro"}
    fields |= {} if task.is_of_pictures else {"input_type": "float32"}
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(bits, **fields))
    sat_tf.calibrate(quantized, train[:512].astype(np.float32), progress=False)
    sat_tf.reconstruct(quantized, model, train[:512].astype(np.float32), progress=False)
    content, report = _exported(quantized, "table")
    float_top1 = np.mean(
        np.argmax(model.predict(held_out.astype(np.float32), verbose=0), 1) == classes
    )
    answers = Runtime(content, keep_tensors=False).run(held_out)
    return {
        "task": name,
        "method": method,
        "bits": bits,
        "kernels": _kernel_bytes(content),
        "bytes": report.bytes,
        "top1": f"{100 * np.mean(np.argmax(answers, 1) == classes):.2f}",
        "float top1": f"{100 * float_top1:.2f}",
    }


def main(argv: list[str]) -> None:
    """Measures what is asked for, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console = rich.console.Console(width=200)
    rows: list[dict[str, Any]] = []
    if _TASKS.value:
        rows = read_csv(_ACCURACY.value)
        there = {(row["task"], row["method"], int(row["bits"])) for row in rows}
        for task in _TASKS.value:
            for bits in _BITS:
                for method in _METHODS:
                    if (task, method, bits) not in there:
                        rows.append(_accuracy(task, method, bits))
                        write_csv(rows, _ACCURACY.value)
                        print(*rows[-1].values(), flush=True)
    else:
        for name in MODELS:
            for bits in _BITS:
                rows += _rows(name, bits)
                write_csv(rows, _OUTPUT.value)
                print(*rows[-1].values(), flush=True)
    console.print(as_table(rows, "Kernels as tables of values"))


if __name__ == "__main__":
    app.run(main)
