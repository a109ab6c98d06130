"""A model, its file and the proof, as most tests want them; and how far each operation is off."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import tf_keras as keras

import sat_tf
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.certificate.comparison import Reference, RuntimeCounter
from sat_tf.exact.certificate.output_comparison import outputs_in
from sat_tf.exact.certificate.runtimes import RUNTIMES
from sat_tf.exact.litert.processes import loaded
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import Graph, batches, simulate
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.linear import Linear, requantization_multipliers
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.tabled import Reshape
from sat_tf.exact.tflite.contents import Contents
from sat_tf.exact.tflite.tensors import Codes, Pixels
from sat_tf.export.export import ExportReport
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.qat.layout import call_name, inner_layer
from tests.export.zoo import images_for


def calibrated(
    model: keras.Model, policy: sat_tf.BitPolicy | int = 4, images: Any = None
) -> keras.Model:
    """The model as a policy quantizes it, on random images unless others are given."""
    images = images_for(model).astype(np.float32) if images is None else images
    return sat_tf.calibrate(sat_tf.quantize_model(model, policy), images, progress=False)


def proved(
    quantized: keras.Model, path: pathlib.Path, images: Any = None, file: Any = None, **options: Any
) -> tuple[ExportReport, Certificate]:
    """The report, with settings of the file, and the certificate: no code of it differs."""
    report = sat_tf.export_tflite(quantized, path, **(file or {}))
    images = images_for(quantized, 16) if images is None else images
    found = sat_tf.verify_tflite(quantized, path, images, progress=False, **options)
    assert found.codes_differing == 0
    return report, found


def deployed(model: keras.Model, **settings: Any) -> Graph:
    """The graph of the file of a quantized model."""
    return deployed_graph(Network(model), **settings)


def file_outputs(path: pathlib.Path, images: Any) -> np.ndarray:
    """What LiteRT gives for a file, as real values."""
    return Runtime(path.read_bytes(), keep_tensors=False).run(images)


# The kernels of each runtime that may be on this machine, of which TFLite Micro is an extra.
KERNELS = {name: kind.kernels for name, kind in RUNTIMES.items() if not kind.is_simulated}


@dataclasses.dataclass(frozen=True)
class Difference:
    """How the codes that one operation makes of Keras's tensors differ from Keras's own."""

    tensor: str  # The tensor that it makes.
    rounded: bool  # Keras has these codes too; else it has the values before rounding.
    # For each channel of a linear operation, the output codes of one unit of its integer sum:
    # rounding the bias may cost half of it. 0 where there is no sum.
    units: np.ndarray
    largest: np.ndarray  # The largest difference in each channel, in codes.
    share: np.ndarray  # The share of each channel's codes that differ.

    def beyond(self, codes: int) -> dict[int, int]:
        """Channels that differ by more codes, or by more than a unit that is worth more."""
        limit = np.where(self.units < 1.0, codes, np.maximum(codes, 1.0 + self.units))
        return {int(i): int(self.largest[i]) for i in np.flatnonzero(self.largest > limit)}

    def share_beyond(self, differing: float) -> float:
        """The share of codes that differ, if it is more, and more than biases may cost; else 0.

        Channels whose unit is worth a code and more are left to `beyond`.
        """
        fine = self.units < 1.0
        if not np.any(fine):
            return 0.0
        share = float(np.mean(self.share[fine]))
        return share if share > max(differing, float(np.mean(self.units[fine]))) else 0.0


def local_differences(model: keras.Model, graph: Graph, images: np.ndarray) -> list[Difference]:
    """Feeds every operation the tensors that Keras has there, as codes.

    An operation whose input Keras does not round is left out: what follows differs for that alone.
    """
    real = keras_tensors(model, graph.images[0].fed(images))
    known, unrounded, found = {graph.images[0].name: images}, set(), []
    units: dict[str, np.ndarray] = {}
    for operation in graph.operations:
        inputs = [known[name] for name in operation.inputs]
        computed = operation.simulate(graph, *inputs)
        name, codes = operation.output, graph.tensors[operation.output].codes
        units[name] = _units(graph, operation, units)
        known[name] = computed
        follows = bool(unrounded.intersection(operation.inputs))
        if follows:
            unrounded.add(name)
        if name not in real:
            continue
        if codes is None:
            known[name] = real[name]
            continue
        # A sequence of Keras may be an image of one row in the file.
        known[name] = expected = stored(real[name], codes).reshape(computed.shape)
        # Whether Keras's values are on the grid of the codes.
        in_codes = real[name] / codes.real_scale
        rounded = bool(np.max(np.abs(in_codes - np.rint(in_codes))) < 1e-3)
        unrounded = unrounded - {name} if rounded else unrounded | {name}
        if not follows:
            # int8 itself saturates one code below the lowest of a signed stream.
            off = np.abs(np.maximum(computed, -127) - np.maximum(expected, -127))
            off = off.reshape(-1, units[name].size)
            counts = np.max(off, 0), np.mean(off > 0, 0)
            found.append(Difference(name, rounded, units[name], *counts))
    return found


def _units(graph: Graph, operation: Operation, known: dict[str, np.ndarray]) -> np.ndarray:
    channels = graph.tensors[operation.output].shape[-1]
    if isinstance(operation, Linear) and not operation.is_float(graph):
        return requantization_multipliers(graph, operation).astype(np.float64)
    if isinstance(operation, Reshape):
        units = known.get(operation.inputs[0], np.zeros(1))
        return np.resize(units, channels) if channels % units.size == 0 else np.zeros(channels)
    return np.zeros(channels)


def keras_tensors(model: keras.Model, images: np.ndarray) -> dict[str, np.ndarray]:
    """The output of every layer by the name of the user's layer, but of those with a softmax."""
    network = Network(model)
    tensors = {network.input: images.astype(np.float32)}
    for node in network:
        if node.name != network.input:
            inputs = [tensors[name] for name in node.inputs]
            tensors[node.name] = node.call(node.layer, inputs)
    return {
        call_name(node): np.asarray(tensors[node.name])
        for node in network
        if not layer_kinds.is_softmax(inner_layer(node.layer))
    }


def stored(real: np.ndarray, codes: Codes) -> np.ndarray:
    """Real values as stored integers, rounded half up."""
    rounded = np.floor(real.astype(np.float64) / codes.real_scale + 0.5) + codes.zero_point
    return np.clip(rounded, codes.lowest, codes.highest).astype(np.int32)


def own_count(content: bytes, images: Pixels, runtime: str) -> tuple[int, int]:
    """How many codes a runtime computes, and how many differ from the rules of its kernels."""
    graph = read_graph(content, "made.tflite")
    counter = RuntimeCounter(graph, content, runtime)
    counter.run(images)
    outputs = outputs_in(graph, Contents(()), None)
    found = counter.result(Reference(counter.outputs, outputs, [None] * len(outputs)))
    return found.own_compared, found.own_differing


def differing_codes(content: bytes, values: Any) -> dict[str, int]:
    """How many codes LiteRT makes of each tensor that the rules of its kernels do not."""
    graph, found = read_graph(content, "file"), dict[str, int]()
    for runtime in ("xnnpack", "builtin", "reference"):
        counter = RuntimeCounter(graph, content, runtime)
        for batch in batches(graph.images[0].taken(values), graph):
            counter.run(batch)
            counter.count(simulate(graph.on(KERNELS[runtime]), batch))
        counts = counter._tensors.items()
        found |= {f"{runtime} {name}": count.codes_differing for name, count in counts}
    return found


def assert_simulated(content: bytes, tensor: str, images: Pixels, runtime: str) -> None:
    """A runtime makes every code of a tensor of a file that the simulation of its kernels does."""
    graph = read_graph(content, "file").on(KERNELS[runtime])
    ran = loaded(content, runtime, keep_tensors=True)
    ran.run(images)
    found = ran.tensors([tensor])[tensor]
    np.testing.assert_array_equal(found, simulate(graph, images)[tensor])
