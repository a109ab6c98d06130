"""The graph of a deployed model, its listing, and its simulation in NumPy, as kernels do it."""

import dataclasses
import io
from collections.abc import Collection, Mapping

import numpy as np
from rich.console import Group
from rich.text import Text

from sat_tf.exact.kernels.kernel_sets import X86, KernelSet
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.tflite import tensors as stored
from sat_tf.exact.tflite.tensors import WIDE, Codes, Image, Pixels, Tensor
from sat_tf.messages.terminal import FittingTable, make_console

_LISTING_WIDTH = 160


@dataclasses.dataclass(frozen=True)
class Graph:
    """A deployed model."""

    name: str  # Name of the Keras model.
    tensors: dict[str, Tensor]  # The tensors by name, without the inputs.
    operations: tuple[Operation, ...]  # Producers before consumers.
    images: tuple[Image, ...]  # The inputs, in the order of the model's.
    output: str  # Name of the output tensor.
    warnings: tuple[str, ...] = ()  # Facts that its user should know.
    # The tensor with the output of each Keras layer that has one, by their names.
    layer_outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    more_outputs: tuple[str, ...] = ()  # Names of the other output tensors.
    # The names of the inputs, and of the outputs, in the signature: their keys where the model
    # has a dictionary of them, otherwise the names that Keras has for them. Where empty, the
    # names of their tensors.
    keys: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    # Why kernels are not stored in fewer bits, by the tensors of their layers.
    storage_notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # The kernels whose rounding `simulate` follows; the portable part of a graph, most often the
    # whole graph, has the same codes with any kernels of XNNPACK.
    kernels: KernelSet = X86
    # The units in the last place by which the scales of tensors were moved so that all kernels of
    # XNNPACK agree, by tensor; empty for a graph that was read from a file.
    moved_scales: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # The names of layers that tensors had before outputs took theirs.
    former_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # The states: the input that gets the codes of each of these outputs with the next frame.
    states: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def on(self, kernels: KernelSet) -> "Graph":
        """Returns the same graph, simulated as other kernels compute it."""
        return dataclasses.replace(self, kernels=kernels)

    def ends_process(self, kernels: KernelSet) -> str | None:
        """Returns why kernels may end the process that runs the graph; None where they do not."""
        reasons = (operation.ends_process(self, kernels) for operation in self.operations)
        return next(filter(None, reasons), None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all output tensors, in the order of the model's."""
        return self.output, *self.more_outputs

    @property
    def state_ends(self) -> dict[str, tuple[Tensor, Image]]:
        """The two ends of each state: the tensor that leaves, by its name, and the input."""
        images = {image.name: image for image in self.images}
        return {output: (self.tensors[output], images[n]) for output, n in self.states.items()}

    @property
    def frame_inputs(self) -> tuple[Image, ...]:
        """The inputs that are no states."""
        states = set(self.states.values())
        return tuple(image for image in self.images if image.name not in states)

    def expect_one_of_each(
        self, purpose: str, fix: str = "keep one in keras.Model(inputs, outputs)"
    ) -> None:
        """Raises ValueError where there are several inputs or outputs, which `purpose` excludes."""
        if len(self.images) > 1 or self.more_outputs:
            raise ValueError(
                f"{purpose}: received a model with {len(self.images)} inputs and "
                f"{len(self.outputs)} outputs, expected one of each; {fix}."
            )

    def __str__(self) -> str:
        console = make_console(width=_LISTING_WIDTH, color_system=None, file=io.StringIO())
        with console.capture() as capture:
            console.print(graph_table(self))
        return capture.get()

    def codes(self, name: str) -> Codes:
        """Returns how the kernels store tensor `name`; raises TypeError where it is float."""
        codes = self.tensors[name].codes
        if codes is None:
            raise TypeError(f"{name}: received a float tensor, expected codes.")
        return codes.on(self.kernels)

    def former_name(self, tensor: str) -> str:
        """Returns a tensor's name before outputs took theirs: most often the name of its layer."""
        return self.former_names.get(tensor, tensor)

    @property
    def layers_left_float(self) -> dict[str, str]:
        """The layers left float, by the tensors that they, or their operators in a file, make."""
        layers = {operation.output: operation.float_layer for operation in self.operations}
        return {tensor: layer for tensor, layer in layers.items() if layer is not None}

    @property
    def float_layers(self) -> tuple[str, ...]:
        """The layers that are left float, producers first."""
        return tuple(dict.fromkeys(self.layers_left_float.values()))

    @property
    def integer_tensors(self) -> tuple[str, ...]:
        """The tensors of codes, producers first."""
        output_names = [operation.output for operation in self.operations]
        return tuple(name for name in output_names if self.tensors[name].codes is not None)


def wide_tensors(graph: Graph) -> list[str]:
    """Returns the names of the tensors with codes of 16 bits."""
    return [name for name in graph.integer_tensors if graph.codes(name).bits == WIDE]


def graph_table(graph: Graph) -> Group:
    """Lists every operation with its output tensor; "x8" after weights: stored multiplied by 8."""
    shapes = " and ".join(" x ".join(map(str, image.shape)) for image in graph.images)
    types = " and ".join(dict.fromkeys(image.type for image in graph.images))
    table = FittingTable(title=f"{graph.name}: {shapes}, {types}")
    for name in ("", "operation", "makes", "shape", "reads"):
        table.add_column(name, justify="right" if name in ("", "shape") else "left")
    for name in ("codes", "scale", "weights", "multiply-adds"):
        table.add_column(name, justify="right")
    numbers = {image.name: 0 for image in graph.images}
    for number, operation in enumerate(graph.operations, start=1):
        numbers[operation.output] = number
        tensor = graph.tensors[operation.output]
        codes = tensor.codes
        adds, stored_as = operation.multiply_adds(graph), ("float32", "")
        if codes:
            low, high = codes.lowest - codes.zero_point, codes.highest - codes.zero_point
            stored_as = f"{low} to {high}", f"{codes.real_scale:.4g}"
        table.add_row(
            *(str(number), operation.title(graph), tensor.name),
            " x ".join(map(str, tensor.shape)),
            ", ".join(str(numbers[name]) for name in operation.inputs),
            *(*stored_as, operation.weights_title(), f"{adds:,}" if adds else ""),
            style=None if codes else "yellow",
        )
    num_codes = sum(tensor.codes is not None for tensor in graph.tensors.values())
    real = [op.output for op in graph.operations if op.is_float(graph)]
    lines = [
        f"{len(graph.operations)} operations, {num_codes} integer tensors, "
        f"{sum(op.num_weights for op in graph.operations):,} weights, "
        f"{sum(op.multiply_adds(graph) for op in graph.operations):,} multiply-adds an image",
        f"float: {', '.join(real) or 'none'}",
    ]
    if graph.float_layers:
        lines.append(f"left float, by TensorFlow's converter: {', '.join(graph.float_layers)}")
    lines += [f"note: {warning}" for warning in graph.warnings]
    return Group(table, Text("\n".join(lines)))


# All tensors of a batch are in memory, in verification four times: each image of a large network
# takes a hundred megabytes.
_VALUES_PER_BATCH = 2**22
_LARGEST_BATCH = 256


def by_name(images: Pixels, graph: Graph) -> dict[str, np.ndarray]:
    """Returns the images by the names of a graph's inputs."""
    arrays = stored.arrays_of(images)
    return {image.name: array for image, array in zip(graph.images, arrays, strict=True)}


def outputs_of(tensors: Mapping[str, np.ndarray], graph: Graph) -> np.ndarray:
    """Joins the outputs of a graph, among its tensors, to one array of real values."""

    def real(name: str) -> np.ndarray:
        codes = graph.tensors[name].codes
        return tensors[name] if codes is None else stored.dequantized(tensors[name], codes)

    return stored.joined([real(name) for name in graph.outputs])


def simulate(
    graph: Graph, images: Pixels, given: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Computes all tensors of a graph for a batch of images: int32 stored integers, or float32.

    The tensors in `given`, such as a runtime's of layers left float, are read instead.
    """
    feeds = {**by_name(images, graph), **(given or {})}
    tensors: dict[str, np.ndarray] = {}
    for operation in graph.operations:
        output = operation.output
        if not operation.is_simulated and output in feeds:
            tensors[output] = feeds[output]
        else:
            inputs = [feeds[name] if name in feeds else tensors[name] for name in operation.inputs]
            tensors[output] = operation.simulate(graph, *inputs)
    return tensors


def simulate_on(
    graph: Graph, images: Pixels, known: Mapping[str, np.ndarray], changing: Collection[str]
) -> dict[str, np.ndarray]:
    """Simulates with the kernels of the graph, where all tensors are `known` for other kernels.

    Operations that make the tensors in `changing` may compute other codes from the same inputs.
    All other tensors are the known ones until an input of their operation differs.
    """
    inputs = by_name(images, graph)
    tensors: dict[str, np.ndarray] = {}
    for operation in graph.operations:
        output, same = operation.output, known[operation.output]
        arrays = [inputs[name] if name in inputs else tensors[name] for name in operation.inputs]
        moved = any(
            name in tensors and tensors[name] is not known[name] for name in operation.inputs
        )
        tensors[output] = same
        if operation.is_simulated and (moved or output in changing):
            simulated = operation.simulate(graph, *arrays)
            tensors[output] = same if np.array_equal(simulated, same) else simulated
    return tensors


def batches(images: Pixels, graph: Graph) -> list[Pixels]:
    """Splits the images into batches, so that the tensors of a graph fit into memory.

    A batch is one image where the file has TRANSPOSE_CONV, which holds the shape of its output, or
    the operators of a layer left float, which may hold it, or where kernels take blocks of values
    that reach from one image into the next.
    """
    largest = max(int(np.prod(tensor.shape)) for tensor in graph.tensors.values())
    size = int(np.clip(_VALUES_PER_BATCH // (4 * max(largest, 1)), 1, _LARGEST_BATCH))
    operations = graph.operations
    if graph.float_layers or any(op.takes_one_image or op.takes_blocks(graph) for op in operations):
        size = 1
    starts = range(0, stored.number_of(images), size)
    return [stored.some_of(images, start, start + size) for start in starts]
