"""The comparison: LiteRT and Keras against the integer simulation, batch by batch."""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sat_tf.exact.certificate import output_comparison as per_output
from sat_tf.exact.certificate.output_comparison import Output, OutputCount
from sat_tf.exact.certificate.record import RuntimeCount, TensorCodes, TensorCount, TrainedCount
from sat_tf.exact.certificate.runtimes import RUNTIMES
from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.litert.runtime import loaded
from sat_tf.exact.operations import linear
from sat_tf.exact.operations.graph import Graph, by_name, outputs_of, simulate, simulate_on
from sat_tf.exact.operations.native import FIXED_GRIDS
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.tflite.tensors import Pixels, number_of, some_of


@dataclasses.dataclass(frozen=True)
class Reference:
    """The reference that outputs are compared with."""

    values: np.ndarray  # All outputs as one array, with a row for each image.
    outputs: list[Output]  # The descriptions of the outputs.
    labels: list[np.ndarray | None]  # The class numbers of each output; None without labels.

    def compared(self, values: np.ndarray) -> list[OutputCount]:
        """Compares each output of a model with the reference's."""
        pieces = (per_output.separated(each, self.outputs) for each in (values, self.values))
        return list(map(per_output.compared, self.outputs, *pieces))

    def accuracy(self, values: np.ndarray) -> dict[str, float]:
        """Returns the share of places that are classified right, by output that has labels."""
        pieces = per_output.separated(values, self.outputs)
        return {
            output.name: output.accuracy(piece, labels)
            for output, piece, labels in zip(self.outputs, pieces, self.labels, strict=True)
            if labels is not None
        }

    def counted(self, outputs: np.ndarray, kernels: KernelSet, **counts: Any) -> RuntimeCount:
        """Returns the counts of a runtime."""
        compared = self.compared(outputs)
        return RuntimeCount(
            agreement=per_output.smallest_agreement(compared),
            largest_output_difference=per_output.largest_difference(self.values, outputs),
            top1=per_output.only(self.accuracy(outputs)),
            outputs=compared,
            kernels=kernels.name,
            **counts,
        )


# A simulation takes longer than LiteRT, and a rule that does not hold fails on a few images.
MOST_OWN_IMAGES = 8


def _counts(graph: Graph) -> dict[str, TensorCount]:
    return {name: TensorCount(name, graph.tensors[name].shape) for name in graph.integer_tensors}


class RuntimeCounter:
    """Compares one runtime with the simulation."""

    def __init__(self, graph: Graph, content: bytes, runtime: str) -> None:
        self._kernels = RUNTIMES[runtime].kernels
        self._keeping = loaded(content, runtime, keep_tensors=True)
        self._plain = loaded(content, runtime, keep_tensors=False)
        self._tensors = _counts(graph)
        self._own_graph = graph.on(self._kernels)
        self._own = {} if runtime == "xnnpack" else _counts(graph)
        self._own_images = 0 if self._own else MOST_OWN_IMAGES
        self._left_float = graph.layers_left_float
        self._float_values = 0
        self._largest_difference = 0.0
        self._outputs_differing = 0
        self._outputs: list[np.ndarray] = []

    @property
    def outputs(self) -> np.ndarray:
        """The outputs for all images so far, as a phone computes them."""
        return np.concatenate(self._outputs)

    def run(self, images: Pixels) -> dict[str, np.ndarray]:
        """Runs a batch; returns the outputs of the layers that are left float."""
        # The first images are compared with a simulation of the runtime's own kernels, one by one:
        # blocks of values that kernels take together would reach from one image into the next.
        count = min(MOST_OWN_IMAGES - self._own_images, number_of(images))
        for index in range(count):
            image = some_of(images, index, index + 1)
            keeping_output = self._keeping.run(image)
            left_float = self._keeping.tensors(self._left_float)
            simulated = simulate(self._own_graph, image, left_float)
            for name, computed in self._keeping.tensors(self._own).items():
                self._own[name].add(simulated[name], computed)
        self._own_images += count
        if (count, number_of(images)) != (1, 1):  # otherwise these tensors are there
            keeping_output = self._keeping.run(images)
        output = self._plain.run(images)
        self._outputs.append(output)
        self._outputs_differing += int(np.count_nonzero(output != keeping_output))
        return self._keeping.tensors(self._left_float)

    def count(self, simulated: dict[str, np.ndarray]) -> None:
        """Compares the batch that was run last."""
        for name, computed in self._keeping.tensors(simulated).items():
            expected = simulated[name]
            if name in self._tensors:
                self._tensors[name].add(expected, computed)
            else:
                self._float_values += expected.size
                difference = per_output.largest_difference(expected, computed)
                self._largest_difference = max(self._largest_difference, difference)

    def result(self, reference: Reference) -> RuntimeCount:
        """Returns all counts."""
        return reference.counted(
            self.outputs,
            self._kernels,
            tensors=list(self._tensors.values()),
            float_values_compared=self._float_values,
            largest_float_difference=self._largest_difference,
            outputs_differing=self._outputs_differing,
            delegation=self._plain.delegation(),
            own=list(self._own.values()),
        )


class SimulatedCounter:
    """Compares a simulated runtime of other machines with the simulation of this machine."""

    def __init__(self, graph: Graph, runtime: str) -> None:
        self._kernels = RUNTIMES[runtime].kernels
        self._graph = graph.on(self._kernels)
        # Operations that both kernel sets compute alike are not simulated again.
        both = {graph.kernels, self._kernels} if graph.kernels is not self._kernels else ()
        self._changing = {
            operation.output
            for operation in graph.operations
            if not all(operation.computes_alike(graph, kernels) for kernels in both)
        }
        self._tensors = _counts(graph)
        self._outputs: list[np.ndarray] = []

    def add(self, images: Pixels, simulated: dict[str, np.ndarray]) -> None:
        """Simulates and counts a batch, given its simulation for this machine."""
        computed = simulate_on(self._graph, images, simulated, self._changing)
        self._outputs.append(outputs_of(computed, self._graph))
        for name, counted in self._tensors.items():
            counted.add(simulated[name], computed[name])

    def result(self, reference: Reference) -> RuntimeCount:
        """Returns all counts."""
        return reference.counted(
            np.concatenate(self._outputs),
            self._kernels,
            tensors=list(self._tensors.values()),
            is_simulated=True,
        )


class Trained(Protocol):
    """A Keras model that shows the codes of its tensors."""

    names: list[str]  # The names of the tensors that it shows.
    # The names of the inputs among these, shown before Keras clips them like the file.
    raw_inputs: frozenset[str]

    def run(self, images: Pixels) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the unclipped integers by tensor, and the model's output."""


class FloatModel(Protocol):
    """A float model that makes the outputs of a file."""

    name: str  # The model's.

    @property
    def loss(self) -> str:
        """The evidence for classes in the model's only output: "loss" of a classifier, or ""."""

    @property
    def softmaxes(self) -> list[str]:
        """The function that makes each output: "softmax", or "" for anything else."""

    def run(self, images: Pixels) -> np.ndarray:
        """Returns the model's outputs for a batch of the file's images, as one array."""

    def as_given(self, values: np.ndarray, outputs: Sequence[Output]) -> np.ndarray:
        """Returns the file's outputs in this model's form: probabilities where it has a softmax."""


# A number below all codes; its negative is above them.
_BELOW_ALL = -(2**30)
# The number of images that are simulated once more, from Keras' own codes of each tensor.
_MOST_ALONE = 16


class TrainedCounter:
    """Compares a Keras model with the simulation of its graph."""

    def __init__(self, trained: Trained, graph: Graph) -> None:
        self._trained = trained
        self._graph = graph
        shares: dict[str, float] = {}
        for product in linear.linear_operations(graph.operations):
            if not product.real:
                multipliers = linear.requantization_multipliers(graph, product).astype(np.float64)
                shares[product.output] = float(np.mean(np.minimum(multipliers / 2.0, 1.0)))
        for op in graph.operations:
            if share := op.share_rounded_otherwise(graph):
                shares[op.output] = shares.get(op.output, 0.0) + share
            elif op.keeps_grid:  # of tensors that no layer of Keras makes
                names = (name for name in op.inputs if name not in trained.names)
                shares[op.output] = max((shares.get(name, 0.0) for name in names), default=0.0)
        self._tensors = {
            name: TrainedCount(name, tensor.shape, explained_share=shares.get(name, 0.0))
            for name, tensor in ((name, graph.tensors[name]) for name in trained.names)
        }
        # TFLite fixes the grids of these tensors: values above the last code are meant to get it.
        self._fixed = set[str]()
        for op in graph.operations:
            moves_fixed = op.keeps_grid and not self._fixed.isdisjoint(op.inputs)
            if moves_fixed or not FIXED_GRIDS.keys().isdisjoint(op.operators):
                self._fixed.add(op.output)
        # The range of integers that the readers of a tensor tell apart: they clip others
        # themselves, or are a softmax, whose output is compared.
        self._told_apart = dict[str, tuple[int, int]]()
        readers = collections.defaultdict[str, list[Operation]](list)
        for op in reversed(graph.operations):
            ends = [self._told_apart_by(reader, op.output) for reader in readers[op.output]]
            if ends and op.output not in graph.outputs and None not in ends:
                lowest, highest = zip(*filter(None, ends), strict=True)
                self._told_apart[op.output] = min(lowest), max(highest)
            for name in op.inputs:
                readers[name].append(op)
        # The number of values of each channel that are beyond all codes, by tensor.
        self._saturated: dict[str, np.ndarray] = {}
        self._outputs: list[np.ndarray] = []
        self._alone_images = 0

    @property
    def outputs(self) -> np.ndarray:
        """The model's outputs for all images so far."""
        return np.concatenate(self._outputs)

    def _told_apart_by(self, reader: Operation, name: str) -> tuple[int, int] | None:
        """Returns the range of a tensor's integers that an operation tells apart, or None."""
        dequantizes = "DEQUANTIZE" in reader.operators and reader.output in self._told_apart
        if dequantizes or "SOFTMAX" in reader.operators:
            codes = self._graph.tensors[name].codes
            return (codes.lowest, codes.highest) if codes else (0, 0)  # float without codes
        if reader.told_apart:
            low, high = reader.told_apart
            return low if low > -128 else _BELOW_ALL, high if high < 127 else -_BELOW_ALL
        if not reader.selects:
            return None
        if reader.output in self._tensors:
            grid = self._graph.codes(reader.output)
            return grid.lowest, grid.highest
        return self._told_apart.get(reader.output)

    def add(
        self, images: Pixels, simulated: dict[str, np.ndarray], left_float: Mapping[str, np.ndarray]
    ) -> None:
        """Runs and counts a batch."""
        codes, output = self._trained.run(images)
        self._outputs.append(per_output.as_in_file(output, self._graph))
        stored: dict[str, np.ndarray] = {}
        for name, counted in self._tensors.items():
            computed = codes.pop(name)  # popped, as it is large and not read again
            of_file = self._as_told_apart(name, simulated[name])
            computed = self._as_told_apart(name, computed)
            grid = self._graph.codes(name)
            stored[name] = np.clip(computed, grid.lowest, grid.highest)
            beyond = stored[name] != computed
            axes = tuple(range(beyond.ndim - 1))
            self._saturated[name] = self._saturated.get(name, 0) + np.sum(beyond, axis=axes)
            is_clipped = name in self._trained.raw_inputs
            counted.add(of_file, stored[name] if is_clipped else computed)
        count = min(_MOST_ALONE - self._alone_images, number_of(images))
        if count <= 0:
            return
        self._alone_images += count
        # The file's operations also compute each tensor of Keras from Keras' own codes. Keras
        # computes a layer left float, and the runtime does for images on which both read the same
        # codes: its output for others says nothing about the layer.
        tensors = dict(by_name(some_of(images, 0, count), self._graph))
        alike = {name: np.ones(count, bool) for name in tensors}
        for operation in self._graph.operations:
            name = operation.output
            remade = operation.simulate(self._graph, *(tensors[key] for key in operation.inputs))
            reads_alike = np.all([alike[key] for key in operation.inputs], axis=0)
            if not operation.is_simulated and name in left_float:
                by_image = reads_alike.reshape(-1, *[1] * (remade.ndim - 1))
                remade = np.where(by_image, left_float[name][:count].reshape(remade.shape), remade)
            tensors[name], alike[name] = remade, reads_alike
            if name in stored:
                remade = self._as_told_apart(name, remade)
                of_keras, counted = stored[name][:count], self._tensors[name]
                both = np.stack([remade, of_keras], axis=1)
                # Codes that no image changes, as after a first state of 0, count once.
                is_constant = np.array_equal(both, np.broadcast_to(both[:1], both.shape))
                compared = both[:1] if is_constant else both
                counted.alone_compared += compared[:, 0].size
                counted.alone_differing += int(np.count_nonzero(compared[:, 0] != compared[:, 1]))
                tensors[name] = of_keras
                differs = of_keras != self._as_told_apart(name, simulated[name])[:count]
                alike[name] = ~np.any(differs.reshape(count, -1), axis=1)

    def _as_told_apart(self, name: str, codes: np.ndarray) -> np.ndarray:
        """Returns codes of a tensor without those that its readers do not tell from others."""
        return np.clip(codes, *self._told_apart[name]) if name in self._told_apart else codes

    def result(self) -> list[TrainedCount]:
        """Returns all counts."""
        for name, counted in self._tensors.items():
            saturated = self._saturated[name] * (name not in self._fixed)
            counted.saturated = int(np.sum(saturated))
            if counted.saturated:
                counted.worst_channel = int(np.argmax(saturated))
                channel_codes = counted.codes_compared // saturated.size
                counted.worst_share = float(np.max(saturated) / channel_codes)
        return list(self._tensors.values())


# A histogram has as many places: each integer of a byte, or 256 of 16 bits together.
_PLACES = 256


def _width(dtype: np.dtype) -> int:
    """Returns how many integers of a type share a place of a histogram."""
    return int(256**dtype.itemsize) // _PLACES


class CodesRecorder:
    """Counts and hashes the codes of every integer tensor of the simulation."""

    def __init__(self, graph: Graph, operators: dict[str, str]) -> None:
        self._graph = graph
        self._operators = operators
        self._counts = {name: np.zeros(_PLACES, np.int64) for name in graph.integer_tensors}
        self._hashes = {name: hashlib.sha256() for name in self._counts}

    def add(self, simulated: dict[str, np.ndarray]) -> None:
        """Counts a batch."""
        for name, counts in self._counts.items():
            stored = np.ascontiguousarray(simulated[name], self._graph.codes(name).dtype)
            # The bits of an integer, without its sign, with the lowest one as 0.
            unsigned = stored.reshape(-1).view(f"u{stored.dtype.itemsize}")
            places = unsigned // _width(stored.dtype) if _width(stored.dtype) > 1 else unsigned
            of_places = np.bincount(places, minlength=_PLACES)
            is_signed = stored.dtype.kind == "i"
            counts += np.roll(of_places, _PLACES // 2) if is_signed else of_places
            self._hashes[name].update(stored.data)

    def result(self) -> list[TensorCodes]:
        """Returns the codes of all tensors, producers first."""
        weights = {
            operation.output: linear.weight_counts(operation)
            for operation in linear.linear_operations(self._graph.operations)
            if not operation.real
        }

        def recorded(name: str, counts: np.ndarray) -> TensorCodes:
            codes = self._graph.codes(name)
            start, size = codes.lowest - np.iinfo(codes.dtype).min, codes.highest - codes.lowest + 1
            width = _width(codes.dtype)
            return TensorCodes(
                name=name,
                operator=self._operators[name],
                shape=self._graph.tensors[name].shape,
                bits=math.ceil(math.log2(size)),
                step=float(codes.scale),
                zero_point=codes.zero_point,
                lowest=codes.lowest,
                counts=counts[start // width : (start + size) // width].tolist(),
                width=width,
                sha256=self._hashes[name].hexdigest(),
                weights=weights.get(name, {}),
            )

        return [recorded(*counted) for counted in self._counts.items()]


@dataclasses.dataclass
class Comparison:
    """The models and runtimes of a proof, run on its images batch by batch."""

    graph: Graph  # The file's graph.
    recorder: CodesRecorder
    counters: Mapping[str, RuntimeCounter]  # The runtimes on this machine.
    simulated: Mapping[str, SimulatedCounter]  # The runtimes of other machines.
    keras: TrainedCounter | None
    float_model: FloatModel | None
    _of_simulation: list[np.ndarray] = dataclasses.field(default_factory=list)
    _of_float: list[np.ndarray] = dataclasses.field(default_factory=list)

    def add(self, images: Pixels) -> None:
        """Runs and counts a batch."""
        # Tensors after a float layer are simulated from XNNPACK's output of that layer.
        left_float = self.counters["xnnpack"].run(images)
        simulated = simulate(self.graph, images, left_float)
        self._of_simulation.append(outputs_of(simulated, self.graph))
        self.recorder.add(simulated)
        for name, counter in self.counters.items():
            of_runtime = left_float if name == "xnnpack" else counter.run(images)
            is_shared = of_runtime is left_float or not self.graph.float_layers
            counter.count(simulated if is_shared else simulate(self.graph, images, of_runtime))
        for simulated_counter in self.simulated.values():
            simulated_counter.add(images, simulated)
        if self.keras:
            self.keras.add(images, simulated, left_float)
        if self.float_model:
            self._of_float.append(per_output.as_in_file(self.float_model.run(images), self.graph))

    def outputs(self) -> dict[str, np.ndarray]:
        """Returns the outputs of each model for all images, by its name in a certificate."""
        outputs = {"simulation": np.concatenate(self._of_simulation)}
        if self.keras:
            outputs["quantized"] = self.keras.outputs
        outputs["tflite"] = self.counters["xnnpack"].outputs
        if self.float_model:
            outputs["float"] = np.concatenate(self._of_float)
        return outputs

    def counts(self, reference: Reference) -> dict[str, RuntimeCount]:
        """Returns the counts of every runtime."""
        counters: dict[str, RuntimeCounter | SimulatedCounter] = {**self.counters, **self.simulated}
        return {name: counter.result(reference) for name, counter in counters.items()}
