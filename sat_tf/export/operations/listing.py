"""A deployed graph as a table for people."""

import math

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from sat_tf.export.operations.graph import (
    Codes,
    Graph,
    Island,
    Linear,
    LinearKind,
    Operation,
    WithConstant,
    weight_factors,
)
from sat_tf.export.operations.pairs import Pair
from sat_tf.qat.layout import inner_layer


def graph_table(graph: Graph) -> Group:
    """Every operation with the tensor it makes, and the sums of all, for `rich` to print.

    Codes and weights are ranges of integers; "x8" behind weights means that they are stored
    multiplied by that, on a scale as much smaller.
    """
    shapes = " and ".join(" x ".join(map(str, image.shape)) for image in graph.images)
    types = " and ".join(dict.fromkeys(image.type for image in graph.images))
    table = Table(title=f"{graph.name}: {shapes}, {types}")
    for name, right in (
        *(("", True), ("operation", False), ("makes", False), ("shape", True), ("reads", False)),
        *(("codes", True), ("scale", True), ("weights", True), ("multiply-adds", True)),
    ):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    numbers = {image.name: 0 for image in graph.images}
    for number, operation in enumerate(graph.operations, start=1):
        numbers[operation.output] = number
        tensor = graph.tensors[operation.output]
        adds = multiply_adds(graph, operation)
        table.add_row(
            str(number),
            _operation_name(graph, operation),
            tensor.name,
            " x ".join(map(str, tensor.shape)),
            ", ".join(str(numbers[name]) for name in operation.inputs),
            "float32" if tensor.codes is None else _codes(tensor.codes),
            "" if tensor.codes is None else f"{float(tensor.codes.real_scale):.4g}",
            _weights(operation) if isinstance(operation, Linear) else "",
            f"{adds:,}" if adds else "",
            style="yellow" if tensor.codes is None else None,
        )
    return Group(table, Text("\n".join(_summary(graph))))


def multiply_adds(graph: Graph, operation: Operation) -> int:
    """How many products one image takes; 0 for what has no weights."""
    if not isinstance(operation, Linear):
        return 0
    # Each pixel of the output, or of what a transposed convolution reads, meets the whole kernel.
    transposed = operation.kind is LinearKind.TRANSPOSED
    shape = graph.tensors[operation.inputs[0] if transposed else operation.output].shape
    return math.prod(shape[:-1]) * operation.kernel.size


def _operation_name(graph: Graph, operation: Operation) -> str:
    if isinstance(operation, Linear):
        size = operation.kernel.shape[1:3]
        if operation.kind is LinearKind.DEPTHWISE:
            size = operation.kernel.shape[:2]
        places = "" if operation.kind is LinearKind.FULLY_CONNECTED else f" {size[0]}x{size[1]}"
        stride = operation.window.strides
        strides = "" if stride == (1, 1) else f" / {stride[0]}x{stride[1]}"
        return f"{'float ' if operation.real else ''}{operation.kind.value}{places}{strides}"
    if isinstance(operation, Island):
        return f"float {type(inner_layer(operation.node.layer)).__name__}"
    if isinstance(operation, Pair):
        return f"{'float ' if graph.is_float(operation) else ''}{operation.kind.value}"
    if isinstance(operation, WithConstant):
        return f"float {operation.kind.value}"
    return type(operation).__name__


def _codes(codes: Codes) -> str:
    return f"{codes.lowest - codes.zero_point} to {codes.highest - codes.zero_point}"


def _weights(linear: Linear) -> str:
    factors = weight_factors(linear)
    codes = linear.kernel // linear.along_channels(factors)
    found = sorted({int(factor) for factor in factors if factor > 1})
    shared = f" x{found[0]}" if len(found) == 1 else f" x{found[0]}-{found[-1]}" if found else ""
    packed = "" if linear.storage.value == 8 else f", {linear.storage.name}"
    return f"{np.min(codes)} to {np.max(codes)}{shared}{packed}"


def _summary(graph: Graph) -> list[str]:
    linear = [op for op in graph.operations if isinstance(op, Linear)]
    codes = sum(tensor.codes is not None for tensor in graph.tensors.values())
    lines = [
        f"{len(graph.operations)} operations, {codes} integer tensors, "
        f"{sum(op.kernel.size for op in linear):,} weights, "
        f"{sum(multiply_adds(graph, op) for op in linear):,} multiply-adds an image"
    ]
    real = [op.output for op in graph.operations if graph.is_float(op)]
    lines.append(f"float: {', '.join(real)}")
    if graph.float_layers:
        lines.append(f"left float, by TensorFlow's converter: {', '.join(graph.float_layers)}")
    return lines + [f"note: {warning}" for warning in graph.warnings]
