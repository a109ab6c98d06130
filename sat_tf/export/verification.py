"""The verification: a TFLite file against the model it was exported from, integer by integer."""

import dataclasses
import hashlib
import os
import pathlib
import platform
from importlib import metadata
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.export.certificate import Certificate, RuntimeCount, TensorCount
from sat_tf.export.deployed import DeployedModel
from sat_tf.export.file import file_metadata, gzip_size
from sat_tf.export.flatbuffer import serialize
from sat_tf.export.graph import Graph
from sat_tf.export.pipeline import deployed_graph
from sat_tf.export.runtime import RUNTIMES, Runtime
from sat_tf.export.simulator import simulate
from sat_tf.export.structure import Structure, differences, read_structure
from sat_tf.export.trained import trained_model
from sat_tf.messages import list_problems
from sat_tf.wholefile import check_writable, expect_path

_PACKAGES = (
    "sat-tf",
    "ai-edge-litert",
    "tensorflow",
    "tensorflow-model-optimization",
    "tf_keras",
    "numpy",
)
_VALUES_PER_BATCH = 2**24


def verify_tflite(
    model: keras.Model,
    path: str | os.PathLike[str],
    images: np.ndarray,
    labels: np.ndarray | None = None,
    *,
    certificate_path: str | os.PathLike[str] | None = None,
) -> Certificate:
    """Proves that LiteRT computes the integers of a quantized model, tensor by tensor.

    The file is first compared with what the model exports to: the same operators, settings, steps
    and constants. Then LiteRT runs it, once with XNNPACK and once with its builtin kernels, and
    every stored integer of every activation is compared with an integer simulation in NumPy. How
    many codes the Keras model itself computes otherwise is counted too.

    Args:
        model: the quantized Keras model that was exported, or its `DeployedModel`, whose codes are
            then counted as those of Keras.
        path: the TFLite file.
        images: uint8 (n, rows, columns, channels): the pixels as they are.
        labels: integers (n,), each below the number of classes, to count top-1 too.
        certificate_path: where to write the certificate as JSON, if anywhere.

    Returns:
        A `Certificate`. A difference is counted in it, not raised.

    Raises:
        ValueError: bad images or labels, no such file, or a file of another model; lists every
            problem with its fix.
    """
    path = expect_path(path)
    images, labels = _checked(model, path, images, labels)
    if certificate_path is not None:
        check_writable(certificate_path)
    content = path.read_bytes()
    found = read_structure(content, str(path))
    graph = _graph_of_file(model, found, str(path))
    comparison = _compare(model, graph, content, images)
    expected, outputs = comparison.keras_outputs, comparison.outputs
    certificate = Certificate(
        model=graph.name,
        file=path.name,
        bytes=len(content),
        gzip_bytes=gzip_size(content),
        sha256=hashlib.sha256(content).hexdigest(),
        operators=found.operator_counts(),
        float_operators=found.float_operators(),
        versions=_versions(),
        num_images=len(images),
        images_sha256=hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest(),
        agreement=float(np.mean(_classes(outputs) == _classes(expected))),
        top1=_top1(labels, quantized=expected, tflite=outputs),
        runtimes=comparison.runtimes,
        trained=comparison.trained,
        warnings=list(graph.warnings),
    )
    if certificate_path is not None:
        certificate.write(certificate_path)
    return certificate


def _checked(
    model: keras.Model, path: pathlib.Path, images: Any, labels: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    """Images and labels as arrays; raises unless they fit the model."""
    problems = []
    if not os.path.isfile(path):
        problems.append(
            f"{path}: received the path of no file, expected a TFLite file; write it with "
            "sat_tf.export_tflite(model, path) first."
        )
    images, found = _array("images", images)
    problems += found or _image_problems(model, images)
    if labels is not None:
        labels, found = _array("labels", labels)
        problems += found or _label_problems(model, images, labels)
    if problems:
        raise ValueError(list_problems("verify_tflite", problems))
    return images, labels


def _array(name: str, values: Any) -> tuple[np.ndarray, list[str]]:
    try:
        return np.asarray(values), []
    except ValueError:
        problem = f"{name}: received a ragged list, expected an array; give all the same size."
        return np.empty(0), [problem]


def _image_problems(model: keras.Model, images: np.ndarray) -> list[str]:
    problems = []
    if images.dtype != np.uint8:
        problems.append(
            f"images: received {images.dtype}, expected uint8 pixels from 0 to 255; pass the "
            "images as they were before any scaling."
        )
    shape = tuple(model.input_shape[1:]) if isinstance(model, keras.Model) else None
    if shape is not None and (images.ndim != len(shape) + 1 or images.shape[1:] != shape):
        sizes = ", ".join(str(size) for size in shape)
        problems.append(
            f"images: received shape {images.shape}, expected (n, {sizes}); resize them, and add "
            "the batch dimension to a single one."
        )
    elif not images.size:
        problems.append("images: received none, expected at least one.")
    return problems


def _label_problems(model: keras.Model, images: np.ndarray, labels: np.ndarray) -> list[str]:
    if labels.shape != images.shape[:1]:
        return [
            f"labels: received shape {labels.shape}, expected {images.shape[:1]}, one class "
            "number an image."
        ]
    if not np.issubdtype(labels.dtype, np.integer):
        return [f"labels: received {labels.dtype}, expected integers, the class numbers."]
    classes = np.prod(model.output_shape[1:]) if isinstance(model, keras.Model) else np.inf
    if labels.size and not 0 <= np.min(labels) <= np.max(labels) < classes:
        return [
            f"labels: received {np.min(labels)} to {np.max(labels)}, expected 0 to {classes - 1}; "
            "count classes from 0."
        ]
    return []


def _graph_of_file(model: keras.Model, found: Structure, path: str) -> Graph:
    """The graph that the file should hold; raises if it holds another."""
    if found.metadata is None or "float_head" not in found.metadata:
        raise ValueError(
            f"{path}: received a TFLite file that sat_tf.export_tflite did not write, expected one "
            "that it wrote from this model; export the model again."
        )
    float_head = bool(found.metadata["float_head"])
    quantized = model.quantized if isinstance(model, DeployedModel) else model
    graph = deployed_graph(quantized, float_head=float_head)
    expected = serialize(graph, file_metadata(float_head=float_head))
    problems = differences(read_structure(expected, path), found)
    if problems:
        header = f"{path}: received the file of another model, or of another state of this one"
        problems.append("expected what the model exports to; export it again")
        raise ValueError(list_problems(header, problems))
    return graph


def _batches(images: np.ndarray, graph: Graph) -> list[np.ndarray]:
    largest = max(int(np.prod(tensor.shape)) for tensor in graph.tensors.values())
    size = int(np.clip(_VALUES_PER_BATCH // (4 * largest), 1, 256))
    return [images[start : start + size] for start in range(0, len(images), size)]


@dataclasses.dataclass(frozen=True)
class _Comparison:
    """What running all images gave: LiteRT's outputs with XNNPACK, Keras's, and the counts."""

    outputs: np.ndarray
    keras_outputs: np.ndarray
    runtimes: dict[str, RuntimeCount]
    trained: list[TensorCount]


def _compare(model: keras.Model, graph: Graph, content: bytes, images: np.ndarray) -> _Comparison:
    counters = {name: _Counter(graph, content, name) for name in RUNTIMES}
    keras_model = trained_model(model, graph)
    trained = {name: TensorCount(name, graph.tensors[name].shape) for name in keras_model.names}
    outputs, keras_outputs = [], []
    for batch in _batches(images, graph):
        simulated = simulate(graph, batch)
        for counter in counters.values():
            output = counter.count(batch, simulated)
            if counter.runtime == "xnnpack":
                outputs.append(output)
        codes, keras_output = keras_model.run(batch)
        keras_outputs.append(keras_output)
        for name, counted in trained.items():
            counted.add(simulated[name], codes[name])
    return _Comparison(
        outputs=np.concatenate(outputs),
        keras_outputs=np.concatenate(keras_outputs),
        runtimes={name: counter.result() for name, counter in counters.items()},
        trained=list(trained.values()),
    )


class _Counter:
    """Compares one runtime with the simulation, batch by batch."""

    def __init__(self, graph: Graph, content: bytes, runtime: str) -> None:
        self.runtime = runtime
        self._keeping = Runtime(content, runtime, keep_tensors=True)
        self._plain = Runtime(content, runtime, keep_tensors=False)
        self._tensors = {
            name: TensorCount(name, tensor.shape)
            for name, tensor in graph.tensors.items()
            if tensor.codes is not None
        }
        self._float_values = 0
        self._largest_difference = 0.0
        self._outputs_differing = 0

    def count(self, images: np.ndarray, simulated: dict[str, np.ndarray]) -> np.ndarray:
        """Runs a batch, counts, and returns the outputs a phone gives."""
        output = self._plain.run(images)
        kept = self._keeping.run(images)
        self._outputs_differing += int(np.count_nonzero(output != kept))
        for name, computed in self._keeping.tensors(simulated).items():
            expected = simulated[name]
            if name in self._tensors:
                self._tensors[name].add(expected, computed)
            else:
                self._float_values += expected.size
                differences = np.abs(expected - computed)
                differences[np.isnan(differences)] = np.inf
                self._largest_difference = max(
                    self._largest_difference, float(np.max(differences, initial=0.0))
                )
        return output

    def result(self) -> RuntimeCount:
        return RuntimeCount(
            tensors=list(self._tensors.values()),
            float_values_compared=self._float_values,
            largest_float_difference=self._largest_difference,
            outputs_differing=self._outputs_differing,
            delegation=self._plain.delegation(),
        )


def _classes(outputs: np.ndarray) -> np.ndarray:
    return np.argmax(outputs.reshape(len(outputs), -1), axis=1)


def _top1(labels: np.ndarray | None, **outputs: np.ndarray) -> dict[str, float]:
    """Share of right images by name; an image with a NaN among its outputs is wrong."""
    if labels is None:
        return {}
    shares = {}
    for name, values in outputs.items():
        finite = np.all(np.isfinite(values.reshape(len(values), -1)), axis=1)
        shares[name] = float(np.mean(finite & (_classes(values) == np.asarray(labels))))
    return shares


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found
