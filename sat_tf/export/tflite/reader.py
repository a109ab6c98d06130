"""Reads a file that `export_tflite` wrote back into its graph."""

import dataclasses

import numpy as np

from sat_tf.export.operations import graph as ir
from sat_tf.export.operations.graph import Graph, Tensor
from sat_tf.export.operations.readers import READERS, OperatorView, Progress, read_places
from sat_tf.export.operations.simulator import run_operation
from sat_tf.export.tflite.contents import (
    Contents,
    NotUnderstoodError,
    StoredOperator,
    StoredTensor,
    read_contents,
    unpacked,
)
from sat_tf.export.tflite.structure import read_settings

_EMPTY = Graph("", {}, (), (), "")


def read_graph(content: bytes, name: str) -> Graph:
    """The graph of a file that sat-tf has written, without its Keras model.

    What no file says is left open: units of real values (all 1), what a layer's sums usually are,
    and warnings. `simulate` gives the same tensors as for the graph that was written.

    Args:
        content: the file.
        name: what errors call it, and the name of the graph.

    Raises:
        ValueError: it is no TFLite file, or one with an operator that sat-tf does not write; names
            the first of them.
    """
    try:
        with unpacked(content, name) as model:
            islands = (read_settings(model) or {}).get("islands", {})
            if not isinstance(islands, dict):  # a list of what are layers and tensors
                islands = {tensor: tensor for tensor in islands}
            layers = {str(tensor): str(layer) for tensor, layer in islands.items()}
            return _graph(read_contents(model), name, layers)
    except NotUnderstoodError as error:
        raise ValueError(
            f"{name}: received a file that sat_tf.export_tflite did not write ({error}), expected "
            "one that it wrote; export the model with it."
        ) from error


def _graph(contents: Contents, name: str, islands: dict[str, str]) -> Graph:
    if not contents.inputs or not contents.outputs:
        raise NotUnderstoodError(
            f"it has {len(contents.inputs)} inputs and {len(contents.outputs)} outputs, expected "
            "at least one of each"
        )
    for image in contents.inputs:
        _check_input(image)
    progress = Progress(tuple(contents.inputs), islands=islands)
    for index, operator in enumerate(contents.operators):
        _read(index, operator, progress)
    for end in contents.outputs:
        if end.name not in progress.tensors:
            raise NotUnderstoodError(f"nothing makes its output {end.name}")
    output, *outputs = (end.name for end in contents.outputs)
    return Graph(
        name=name,
        tensors=progress.tensors,
        operations=tuple(progress.operations),
        images=tuple(_input(found, progress) for found in contents.inputs),
        output=output,
        more_outputs=tuple(outputs),
    )


# The types of inputs, with the smallest and the largest zero point.
_INPUT_TYPES = {"UINT8": (0, 255), "INT8": (-128, 127), "FLOAT32": None}


def _check_input(found: StoredTensor) -> None:
    if found.type not in _INPUT_TYPES:
        raise NotUnderstoodError(
            f"its input is {found.type}, expected one of {', '.join(_INPUT_TYPES)}"
        )
    ends = _INPUT_TYPES[found.type]
    if ends is None:
        return
    if found.scales.size != 1 or found.zero_points.size != 1:
        raise NotUnderstoodError(f"its input has {found.scales.size} scales, expected one")
    if not ends[0] <= found.zero_points[0] <= ends[1]:
        raise NotUnderstoodError(f"its input has the zero point {found.zero_points[0]}")
    if not (np.isfinite(found.scales[0]) and found.scales[0] > 0):
        raise NotUnderstoodError(f"its input has the scale {found.scales[0]}")


def _input(found: StoredTensor, progress: Progress) -> ir.Image:
    shape, kind = found.shape[1:], found.type.lower()
    if found.type != "FLOAT32":
        return ir.Image(found.name, shape, found.scales[0], int(found.zero_points[0]), type=kind)
    # What it is quantized to, if that is the first that happens to it.
    for operation in progress.operations:
        codes = progress.tensors[operation.output].codes
        if isinstance(operation, ir.Quantize) and codes and found.name in operation.inputs:
            return ir.Image(found.name, shape, codes.scale, codes.zero_point, type=kind)
    return ir.Image(found.name, shape, np.float32(1.0 / 128.0), 0, type=kind)


def _read(index: int, operator: StoredOperator, progress: Progress) -> None:
    where = f"operator {index}, {operator.name}"
    island = progress.island(operator)
    if island is not None:
        _read_island(island, operator, progress)
        return
    if operator.name not in (*READERS, "CAST"):
        raise NotUnderstoodError(f"{where}: no operator of sat-tf")
    if len(operator.outputs) != 1 or not operator.inputs:
        raise NotUnderstoodError(f"{where}: it makes {len(operator.outputs)} tensors")
    (output,), first = operator.outputs, operator.inputs[0]
    try:
        if output.name in progress.known or output.values is not None:
            raise NotUnderstoodError("something else has made its tensor")
        if operator.name == "DEQUANTIZE" and first is not None and first.values is not None:
            progress.real_kernels[output.name] = first
            return
        places = read_places(OperatorView(operator, progress))
        if places is not None:
            progress.places[output.name] = places
            return
        operation, codes = READERS[operator.name](OperatorView(operator, progress))
        progress.operations.append(operation)
        progress.tensors[output.name] = Tensor(output.name, output.shape[1:], codes)
        _check_shape(operation, progress)
    except NotUnderstoodError as error:
        raise NotUnderstoodError(f"{where} {output.name}: {error}") from error


def _read_island(island: str, operator: StoredOperator, progress: Progress) -> None:
    """An operator of a layer that is left float: whatever it does, no integers are part of it."""
    given = [tensor for tensor in operator.inputs if tensor is not None and tensor.values is None]
    where = f"{operator.name} {operator.outputs[0].name}"
    if any(tensor.type in ("INT8", "UINT8") for tensor in (*operator.outputs, *given)):
        raise NotUnderstoodError(f"{where}: it is left float, and has codes")
    if any(tensor.name not in progress.known for tensor in given):
        raise NotUnderstoodError(f"{where}: its tensors are not in order")
    names = tuple(tensor.name for tensor in given)
    for output in operator.outputs:
        if output.name in progress.known:
            raise NotUnderstoodError(f"{where}: its tensors are not in order")
        progress.operations.append(ir.Foreign(names, output.name, progress.islands[island]))
        progress.tensors[output.name] = Tensor(output.name, output.shape[1:], None)


def _check_shape(operation: ir.Operation, progress: Progress) -> None:
    """Runs the operation on no image at all, which costs nothing and gives its shape."""
    shapes = {image.name: image.shape[1:] for image in progress.images}
    shapes |= {name: tensor.shape for name, tensor in progress.tensors.items()}
    graph = dataclasses.replace(_EMPTY, tensors=progress.tensors)
    inputs = [np.zeros((0, *shapes[name]), np.int32) for name in operation.inputs]
    try:
        found = run_operation(operation, graph, *inputs).shape[1:]
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        raise NotUnderstoodError(f"its tensors do not fit each other: {error}") from error
    if found != shapes[operation.output]:
        raise NotUnderstoodError(
            f"its tensor has the shape {shapes[operation.output]}, expected {found}"
        )
