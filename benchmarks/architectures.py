"""Twelve kinds of networks, from scratch and pretrained, float and quantized, Keras and the file.

From scratch: a fresh network is quantized and trained for as many epochs as its float form, with
the same optimizer and the same learning rate. Pretrained: the trained float network is quantized,
and measured as it is and after one more epoch at a tenth of the rate. Every file is verified.

    python benchmarks/architectures.py
    python benchmarks/architectures.py --networks=U-Net,siamese --optimizers=adam --bits=4
"""

import pathlib
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import rich.console
import tensorflow as tf
import tf_keras as keras
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter
from rows import as_table, write_csv
from small_networks import NETWORKS, Network, Task

import sat_tf

_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), f"of {', '.join(NETWORKS)}")
_OPTIMIZERS = flags.DEFINE_list("optimizers", ["sgd", "adam"], "of sgd and adam")
_BITS = flags.DEFINE_list("bits", ["8", "4"], "of weights and activations")
_EPOCHS = flags.DEFINE_integer("epochs", 8, "of each training from scratch", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "of weights and order", lower_bound=0)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/architectures.csv", "where to write")

_OPTIMIZER = {
    "sgd": lambda rate: keras.optimizers.SGD(0.05 * rate, momentum=0.9),
    "adam": lambda rate: keras.optimizers.Adam(0.002 * rate),
}
_BATCH_SIZE = 32
_VERIFIED = 64  # held-out examples whose every code is compared
_SHOWN = ("network", "start", "optimizer", "bits", "float", "before training", "Keras", "file")


def _as_keras(arrays: Iterable[Any]) -> Any:
    """Arrays as Keras and sat-tf take them: a list where there are several."""
    arrays = list(arrays)
    return arrays[0] if len(arrays) == 1 else arrays


def _fit(model: keras.Model, task: Task, optimizer: str, *, epochs: int, rate: float) -> float:
    """Trains a model; the mean of its accuracy over the epochs, in percent."""
    model.compile(
        _OPTIMIZER[optimizer](rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=_as_keras([["accuracy"]] * len(task.train_classes)),
    )
    history = model.fit(
        _as_keras(array.astype(np.float32) for array in task.train),
        _as_keras(task.train_classes),
        batch_size=_BATCH_SIZE,
        epochs=epochs,
        verbose=0,
    ).history
    curves = [values for name, values in history.items() if name.endswith("accuracy")]
    return 100.0 * float(np.mean(curves))


def _accuracy(answers: list[np.ndarray], task: Task) -> float:
    """Right answers in percent, the mean over outputs."""
    right = [
        np.mean(np.argmax(answer, axis=-1) == classes)
        for answer, classes in zip(answers, task.test_classes, strict=True)
    ]
    return 100.0 * float(np.mean(right))


def _keras_accuracy(model: keras.Model, task: Task) -> float:
    examples = _as_keras(array.astype(np.float32) for array in task.test)
    answers = model.predict(examples, verbose=0)
    return _accuracy(answers if isinstance(answers, list) else [answers], task)


def _file_accuracy(path: pathlib.Path, task: Task) -> float:
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    answers: list[list[np.ndarray]] = [[] for _ in outputs]
    for number in range(len(task.test[0])):
        for detail, array in zip(inputs, task.test, strict=True):
            example = array[number : number + 1]
            if detail["dtype"] == np.int8:
                scale, zero_point = detail["quantization"]
                example = np.clip(np.floor(example / scale + 0.5) + zero_point, -128, 127)
            interpreter.set_tensor(detail["index"], example.astype(detail["dtype"]))
        interpreter.invoke()
        for answer, detail in zip(answers, outputs, strict=True):
            answer.append(interpreter.get_tensor(detail["index"])[0])
    return _accuracy([np.stack(answer) for answer in answers], task)


def _finish(model: keras.Model, task: Task) -> dict[str, Any]:
    """Accuracy of a quantized model and of its file, and codes that differ."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        report = sat_tf.export_tflite(model, path)
        examples = _as_keras(array[:_VERIFIED] for array in task.test)
        certificate = sat_tf.verify_tflite(model, path, examples)
        return {
            "Keras": f"{_keras_accuracy(model, task):.1f}",
            "file": f"{_file_accuracy(path, task):.1f}",
            "codes compared": certificate.codes_compared,
            "codes differing": certificate.codes_differing,
            "float operators": len(report.float_operators),
        }


def _rows(name: str, network: Network, optimizer: str) -> Iterator[dict[str, Any]]:
    task, seed = network.task(), _SEED.value
    keras.utils.set_random_seed(seed)
    fresh = network.build()
    weights = fresh.get_weights()
    float_mean = _fit(fresh, task, optimizer, epochs=_EPOCHS.value, rate=network.rate)
    float_accuracy = _keras_accuracy(fresh, task)
    for bits in map(int, _BITS.value):
        policy = sat_tf.BitPolicy.mobile(bits, **network.policy)
        head = {"network": name, "optimizer": optimizer, "bits": bits}
        keras.utils.set_random_seed(seed)
        model = network.build()
        model.set_weights(weights)
        model = sat_tf.quantize_model(model, policy)
        mean = _fit(model, task, optimizer, epochs=_EPOCHS.value, rate=network.rate)
        yield {
            **head,
            "start": "from scratch",
            "float": f"{float_accuracy:.1f}",
            "float, mean of training": f"{float_mean:.1f}",
            "mean of training": f"{mean:.1f}",
            "before training": "",
            **_finish(model, task),
        }
        model = sat_tf.quantize_model(fresh, policy)
        sat_tf.calibrate(model, _as_keras(array[:512] for array in task.train))
        before = _keras_accuracy(model, task)
        mean = _fit(model, task, optimizer, epochs=1, rate=0.1 * network.rate)
        yield {
            **head,
            "start": "pretrained",
            "float": f"{float_accuracy:.1f}",
            "float, mean of training": "",
            "mean of training": f"{mean:.1f}",
            "before training": f"{before:.1f}",
            **_finish(model, task),
        }


def main(argv: list[str]) -> None:
    """Runs all rows, writing the CSV after each network."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    unknown = [name for name in _NETWORKS.value if name not in NETWORKS]
    unknown += [name for name in _OPTIMIZERS.value if name not in _OPTIMIZER]
    if unknown:
        known = ", ".join([*NETWORKS, *_OPTIMIZER])
        raise app.UsageError(f"received {', '.join(unknown)}, expected {known}.")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    console = rich.console.Console()
    rows: list[dict[str, Any]] = []
    for name in _NETWORKS.value:
        for optimizer in _OPTIMIZERS.value:
            keras.backend.clear_session()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # networks of 8 epochs have stale statistics
                rows += _rows(name, NETWORKS[name], optimizer)
            write_csv(rows, _OUTPUT.value)
            console.print(f"{name}, {optimizer}: {rows[-1]}")
    console.print(as_table(rows, "top-1 in percent", [*_SHOWN, "codes differing"]))


if __name__ == "__main__":
    app.run(main)
