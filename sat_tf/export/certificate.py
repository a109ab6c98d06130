"""The certificate: LiteRT computes the integers of the trained model, counted code by code."""

import dataclasses
import hashlib
import json
import os
import pathlib
import platform
from importlib import metadata
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.export.file import file_metadata, gzip_size
from sat_tf.export.flatbuffer import serialize
from sat_tf.export.graph import Graph
from sat_tf.export.pipeline import deployed_graph
from sat_tf.export.runtime import RUNTIMES, Delegation, Runtime
from sat_tf.export.simulator import simulate
from sat_tf.export.structure import Structure, differences, read_structure
from sat_tf.messages import list_problems
from sat_tf.wholefile import check_writable, expect_path, written_whole

_PACKAGES = (
    "sat-tf",
    "ai-edge-litert",
    "tensorflow",
    "tensorflow-model-optimization",
    "tf_keras",
    "numpy",
)
_VALUES_PER_BATCH = 2**24


@dataclasses.dataclass
class TensorCount:
    """How one tensor of LiteRT compares with the simulation.

    Attributes:
        name: of the tensor.
        shape: without the batch dimension.
        codes_compared: how many stored integers, over all images.
        codes_differing: how many of them differ.
    """

    name: str
    shape: tuple[int, ...]
    codes_compared: int = 0
    codes_differing: int = 0


@dataclasses.dataclass(frozen=True)
class RuntimeCount:
    """How one runtime compares with the simulation.

    Attributes:
        tensors: every integer tensor.
        float_values_compared: values of float tensors.
        largest_float_difference: the largest difference among them.
        outputs_differing: outputs that differ between a run that keeps every tensor and one that
            does not, as a phone runs it.
        delegation: what XNNPACK has taken over in the latter.
    """

    tensors: list[TensorCount]
    float_values_compared: int
    largest_float_difference: float
    outputs_differing: int
    delegation: Delegation

    @property
    def codes_compared(self) -> int:
        """How many stored integers."""
        return sum(tensor.codes_compared for tensor in self.tensors)

    @property
    def codes_differing(self) -> int:
        """How many of them differ."""
        return sum(tensor.codes_differing for tensor in self.tensors)


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The proof `verify_tflite` gives.

    Attributes:
        model: name of the Keras model.
        file: name of the TFLite file.
        bytes: its size.
        gzip_bytes: its size after gzip.
        sha256: its hash.
        operators: how many operators of each kind.
        float_operators: the operators that read or make float tensors, with the tensor they make.
        versions: of the packages and the platform.
        num_images: how many images were run.
        images_sha256: hash of their bytes.
        agreement: share of images whose largest output is the same in Keras and in LiteRT.
        top1: share of images classified right, by "quantized" (Keras) and "tflite" (LiteRT); empty
            without labels.
        runtimes: the comparison with the simulation, by runtime. Only "xnnpack", the one LiteRT
            uses by itself, is held to be exact.
        warnings: what to know about the file.
    """

    model: str
    file: str
    bytes: int
    gzip_bytes: int
    sha256: str
    operators: dict[str, int]
    float_operators: list[str]
    versions: dict[str, str]
    num_images: int
    images_sha256: str
    agreement: float
    top1: dict[str, float]
    runtimes: dict[str, RuntimeCount]
    warnings: list[str]

    @property
    def codes_compared(self) -> int:
        """Stored integers compared between LiteRT with XNNPACK and the simulation."""
        return self.runtimes["xnnpack"].codes_compared

    @property
    def codes_differing(self) -> int:
        """How many of them differ."""
        return self.runtimes["xnnpack"].codes_differing

    @property
    def tensors(self) -> list[TensorCount]:
        """The comparison with XNNPACK by tensor."""
        return self.runtimes["xnnpack"].tensors

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = dataclasses.asdict(self)
        for name, count in self.runtimes.items():
            totals = {
                "codes_compared": count.codes_compared,
                "codes_differing": count.codes_differing,
            }
            values["runtimes"][name] = {**totals, **values["runtimes"][name]}
        totals = {"codes_compared": self.codes_compared, "codes_differing": self.codes_differing}
        return {**totals, **values}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the certificate as JSON; the file appears whole, or not at all.

        Raises:
            ValueError: the path cannot be written.
        """
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=2) + "\n")


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
    every stored integer of every activation is compared with an integer simulation in NumPy.

    Args:
        model: the quantized Keras model that was exported.
        path: the TFLite file.
        images: uint8 (n, rows, columns, channels): the pixels as they are.
        labels: integers (n,), to count top-1 too.
        certificate_path: where to write the certificate as JSON, if anywhere.

    Returns:
        A `Certificate`. A difference is counted in it, not raised.

    Raises:
        ValueError: bad images or labels, no such file, or a file of another model; lists every
            problem with its fix.
    """
    images, path = np.asarray(images), expect_path(path)
    _check_inputs(model, path, images, labels)
    if certificate_path is not None:
        check_writable(certificate_path)
    content = path.read_bytes()
    found = read_structure(content, str(path))
    graph = _graph_of_file(model, found, str(path))
    outputs, runtimes = _compare(graph, content, images)
    expected = np.concatenate(
        [
            np.asarray(model(batch.astype(np.float32) * graph.image_step, training=False))
            for batch in _batches(images, graph)
        ]
    )
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
        runtimes=runtimes,
        warnings=list(graph.warnings),
    )
    if certificate_path is not None:
        certificate.write(certificate_path)
    return certificate


def _check_inputs(model: keras.Model, path: pathlib.Path, images: np.ndarray, labels: Any) -> None:
    problems = []
    if not os.path.isfile(path):
        problems.append(
            f"{path}: received the path of no file, expected a TFLite file; write it with "
            "sat_tf.export_tflite(model, path) first."
        )
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
    if labels is not None and np.shape(labels) != images.shape[:1]:
        problems.append(
            f"labels: received shape {np.shape(labels)}, expected {images.shape[:1]}, one class "
            "number an image."
        )
    if problems:
        raise ValueError(list_problems("verify_tflite", problems))


def _graph_of_file(model: keras.Model, found: Structure, path: str) -> Graph:
    """The graph that the file should hold; raises if it holds another."""
    if found.metadata is None or "float_head" not in found.metadata:
        raise ValueError(
            f"{path}: received a TFLite file that sat_tf.export_tflite did not write, expected one "
            "that it wrote from this model; export the model again."
        )
    float_head = bool(found.metadata["float_head"])
    graph = deployed_graph(model, float_head=float_head)
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


def _compare(
    graph: Graph, content: bytes, images: np.ndarray
) -> tuple[np.ndarray, dict[str, RuntimeCount]]:
    """LiteRT's outputs with XNNPACK, and the counts of all runtimes."""
    counters = {name: _Counter(graph, content, name) for name in RUNTIMES}
    outputs = []
    for batch in _batches(images, graph):
        simulated = simulate(graph, batch)
        for counter in counters.values():
            output = counter.count(batch, simulated)
            if counter.runtime == "xnnpack":
                outputs.append(output)
    return np.concatenate(outputs), {name: c.result() for name, c in counters.items()}


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
                counted = self._tensors[name]
                counted.codes_compared += expected.size
                counted.codes_differing += int(np.count_nonzero(expected != computed))
            else:
                self._float_values += expected.size
                difference = float(np.max(np.abs(expected - computed)))
                self._largest_difference = max(self._largest_difference, difference)
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
