"""Runs a graph in NumPy with the arithmetic of the file's kernels."""

import functools
from collections.abc import Mapping

import numpy as np

from sat_tf.export.operations import arithmetic, pairs
from sat_tf.export.operations import graph as ir
from sat_tf.export.operations.arithmetic import requantization_multipliers
from sat_tf.export.operations.graph import Graph, LinearKind, Pointwise, dequantized, quantized
from sat_tf.export.operations.lookup import Lookup
from sat_tf.export.operations.movements import Movement

# One array, or one for each input in the order of the model's.
Pixels = np.ndarray | tuple[np.ndarray, ...]


def arrays_of(images: Pixels) -> tuple[np.ndarray, ...]:
    """The images of each input."""
    return images if isinstance(images, tuple) else (images,)


def number_of(images: Pixels) -> int:
    """How many images each input gets."""
    return len(arrays_of(images)[0])


def some_of(images: Pixels, start: int, stop: int) -> Pixels:
    """A batch of them."""
    if isinstance(images, tuple):
        return tuple(array[start:stop] for array in images)
    return images[start:stop]


def by_name(images: Pixels, graph: Graph) -> dict[str, np.ndarray]:
    """The images by the names of the inputs of a graph."""
    arrays = arrays_of(images)
    return {image.name: array for image, array in zip(graph.images, arrays, strict=True)}


def joined(outputs: list[np.ndarray]) -> np.ndarray:
    """All outputs of a model as one array: that of the only one, or all values of each image."""
    if len(outputs) == 1:
        return outputs[0]
    return np.concatenate([output.reshape(len(output), -1) for output in outputs], axis=1)


def outputs_of(tensors: Mapping[str, np.ndarray], graph: Graph) -> np.ndarray:
    """The outputs of a graph among its tensors, as one array."""
    return joined([tensors[name] for name in graph.outputs])


def simulate(
    graph: Graph, images: Pixels, given: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Every tensor of a deployed graph for a batch of images.

    Args:
        graph: a graph from `deployed_graph`.
        images: uint8, (n, *graph.image_shape); a tuple of arrays for several inputs.
        given: tensors that the operations behind them read instead of those simulated here, such
            as what a runtime has made of the layers that are left float.

    Returns:
        By tensor name: int32 arrays of stored integers in -128..127, and float32 arrays for
        tensors that the graph keeps float. Integer tensors are exact.
    """
    given = {**by_name(images, graph), **(given or {})}
    tensors: dict[str, np.ndarray] = {}
    for operation in graph.operations:
        if isinstance(operation, ir.Foreign) and operation.output in given:
            tensors[operation.output] = given[operation.output]
            continue
        inputs = [given[name] if name in given else tensors[name] for name in operation.inputs]
        tensors[operation.output] = run_operation(operation, graph, *inputs)
    return tensors


@functools.singledispatch
def run_operation(operation: ir.Operation, graph: Graph, *inputs: np.ndarray) -> np.ndarray:
    """What one operation of a graph makes of its inputs, stored integers or float32."""
    raise TypeError(f"{type(operation).__name__}: not an operation of the simulator.")


@run_operation.register
def _(operation: ir.Linear, graph: Graph, source: np.ndarray) -> np.ndarray:
    if operation.real:
        scales = operation.along_channels(operation.scales.astype(np.float32))
        weights = operation.kernel.astype(np.float32) * scales
        products = arithmetic.products(source, weights, operation.kind, operation.window)
        return np.asarray(products + operation.bias.astype(np.float32), np.float32)
    zero_point = graph.codes(operation.inputs[0]).zero_point
    sums = arithmetic.sums(source, zero_point, operation.kernel, operation.kind, operation.window)
    exact = np.float64 if operation.kind is not LinearKind.DEPTHWISE else np.int64
    return arithmetic.REQUANTIZE[operation.kernels](
        sums.astype(exact) + operation.bias,
        requantization_multipliers(graph, operation),
        graph.codes(operation.output),
    )


@run_operation.register
def _(operation: ir.Add, graph: Graph, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    if graph.tensors[operation.output].codes is None:
        return np.asarray(first + second, np.float32)
    first_codes, second_codes = (graph.codes(name) for name in operation.inputs)
    return arithmetic.add(first, second, first_codes, second_codes, graph.codes(operation.output))


@run_operation.register
def _(operation: ir.AddConstant, graph: Graph, source: np.ndarray) -> np.ndarray:
    codes, output = graph.codes(operation.inputs[0]), graph.codes(operation.output)
    constant = operation.constant[np.newaxis]
    return arithmetic.add(source, constant, codes, operation.codes, output)


@run_operation.register
def _(operation: pairs.Pair, graph: Graph, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    if graph.tensors[operation.output].codes is None:
        return pairs.on_floats(operation.kind, first, second).astype(np.float32)
    one, other = (graph.codes(name) for name in operation.inputs)
    output = graph.codes(operation.output)
    return pairs.on_codes(operation.kind, first, second, (one, other), output)


@run_operation.register
def _(operation: Lookup | Movement, graph: Graph, source: np.ndarray) -> np.ndarray:
    return operation.on_array(source)


@run_operation.register
def _(operation: ir.Mean, graph: Graph, source: np.ndarray) -> np.ndarray:
    if graph.tensors[operation.output].codes is None:
        real = np.mean(source, axis=(1, 2), dtype=np.float32, keepdims=operation.keep_dims)
        return np.asarray(real)
    return arithmetic.mean(
        source,
        graph.codes(operation.inputs[0]),
        graph.codes(operation.output),
        keep_dims=operation.keep_dims,
    )


@run_operation.register
def _(operation: ir.AveragePool, graph: Graph, source: np.ndarray) -> np.ndarray:
    totals, counts = arithmetic.window_sums(source, operation.size, operation.window)
    if graph.tensors[operation.output].codes is None:
        return np.asarray(totals / counts.astype(np.float32), np.float32)
    return arithmetic.rounded_means(totals, counts)


@run_operation.register
def _(operation: ir.Concatenate, graph: Graph, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=operation.axis + 1)


@run_operation.register
def _(operation: ir.MaxPool, graph: Graph, source: np.ndarray) -> np.ndarray:
    return arithmetic.max_pool(source, operation.size, operation.window)


@run_operation.register
def _(operation: ir.Pad, graph: Graph, source: np.ndarray) -> np.ndarray:
    codes = graph.tensors[operation.output].codes
    zero = codes.zero_point if codes else 0.0
    return np.pad(source, ((0, 0), *operation.margins), constant_values=zero)


@run_operation.register
def _(operation: ir.Reshape, graph: Graph, source: np.ndarray) -> np.ndarray:
    return source.reshape(len(source), *graph.tensors[operation.output].shape)


@run_operation.register
def _(operation: ir.ShiftImage, graph: Graph, image: np.ndarray) -> np.ndarray:
    return image.astype(np.int32) - (0 if image.dtype == np.int8 else 128)


@run_operation.register
def _(operation: ir.Dequantize, graph: Graph, source: np.ndarray) -> np.ndarray:
    return dequantized(source, graph.codes(operation.inputs[0]))


@run_operation.register
def _(operation: ir.Quantize, graph: Graph, source: np.ndarray) -> np.ndarray:
    if not np.all(np.isfinite(source)):  # A float layer made it; an integer cannot say so.
        raise ValueError(
            f"{operation.inputs[0]}: received NaN or infinite values on these images, expected "
            "finite ones, which alone have codes; keep the layer from dividing by 0, as with "
            "tf.math.divide_no_nan, and from roots and logarithms of what is not positive."
        )
    return quantized(source, graph.codes(operation.output))


@run_operation.register
def _(operation: ir.Island, graph: Graph, *sources: np.ndarray) -> np.ndarray:
    from sat_tf.graph.network import call_on_floats
    from sat_tf.qat.layout import inner_layer  # which loads TensorFlow

    node = operation.node
    made = call_on_floats(node, inner_layer(node.layer), list(sources))
    return np.asarray(made, np.float32)


@run_operation.register
def _(operation: ir.Foreign, graph: Graph, *sources: np.ndarray) -> np.ndarray:
    raise ValueError(
        f"{operation.output}: received a graph with an operator that the simulator does not know, "
        "expected its result beside the images; simulate the graph of the Keras model instead."
    )


_POINTWISE = {
    Pointwise.MAXIMUM: np.maximum,
    Pointwise.MINIMUM: np.minimum,
    Pointwise.PRODUCT: np.multiply,
    Pointwise.SUM: np.add,
}


@run_operation.register
def _(operation: ir.WithConstant, graph: Graph, source: np.ndarray) -> np.ndarray:
    return np.asarray(_POINTWISE[operation.kind](source, operation.constant), np.float32)


@run_operation.register
def _(operation: ir.Softmax, graph: Graph, source: np.ndarray) -> np.ndarray:
    powers = np.exp(source - np.max(source, axis=-1, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=-1, keepdims=True), np.float32)
