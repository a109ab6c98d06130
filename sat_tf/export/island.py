"""Layers that are left float: what TensorFlow's converter makes of them, inside another file."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers
import tensorflow as tf
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.runtime import Runtime
from sat_tf.messages import kind_of
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.network import Node, call_on_floats

_INPUT = "island_input_"


def float_operators(node: Node, shapes: Sequence[tuple[int, ...]]) -> bytes:
    """A TFLite file of one float layer.

    Args:
        node: the layer, and how it is called.
        shapes: of its inputs, without the batch dimension.

    Raises:
        ValueError: TensorFlow's converter has no builtin operators for the layer, LiteRT does not
            run them, or the layer mixes the images of a batch.
    """
    try:
        content = _converted(node, shapes, None)
        # Of some layers, the converter's file for any batch runs on none.
        batch = _batch_of_output(content)
        if batch is None:
            content = _converted(node, shapes, 1)
            batch = _batch_of_output(content)
    except Exception as error:  # The converter raises whatever its passes do.
        raise ValueError(
            f"{_received(node)} TensorFlow's converter does not convert ({_first_line(error)}), "
            "expected a layer with builtin TFLite operators; replace it, or end the model before "
            "it."
        ) from error
    if batch is None:
        raise ValueError(
            f"{_received(node)} LiteRT does not run in what TensorFlow's converter makes of it, "
            "expected a layer that it does; replace it, or end the model before it."
        )
    if batch != 1:
        raise ValueError(
            f"{_received(node)} makes {batch} of one image, expected a layer that takes each image "
            "of a batch by itself; replace it, or end the model before it."
        )
    parsed = tfl.ModelT.InitFromPackedBuf(content, 0)
    if len(parsed.subgraphs) != 1 or any(code.customCode for code in parsed.operatorCodes):
        raise ValueError(
            f"{_received(node)} becomes more than builtin operators in a row, such as a loop, "
            "expected a layer that does not; replace it, or end the model before it."
        )
    return content


def _received(node: Node) -> str:
    layer = inner_layer(node.layer)
    return f"{layer.name}: received {kind_of(layer)} that is left float and that"


def _converted(node: Node, shapes: Sequence[tuple[int, ...]], batch: int | None) -> bytes:
    layer = inner_layer(node.layer)
    signature = [
        tf.TensorSpec([batch, *shape], tf.float32, name=f"{_INPUT}{i}")
        for i, shape in enumerate(shapes)
    ]
    # A function, and no Keras model, in which the user's layer would be called once more.
    function = tf.function(lambda *tensors: call_on_floats(node, layer, list(tensors)), signature)
    concrete = [function.get_concrete_function()]
    content: bytes = tf.lite.TFLiteConverter.from_concrete_functions(concrete, layer).convert()
    return content


def _batch_of_output(content: bytes) -> int | None:
    """How many rows the output for one image has; None where LiteRT does not run the file."""
    try:
        return len(Runtime(content, keep_tensors=False).rehearse())
    except ValueError:
        return None


def splice(
    content: bytes,
    model: Any,
    subgraph: Any,
    inputs: Sequence[int],
    output: int,
    name_of: Callable[[str], str],
) -> int:
    """Puts the operators of a file into another one.

    Args:
        content: the file, with one subgraph and one output.
        model: where they go, as the schema's ModelT.
        subgraph: its SubGraphT.
        inputs: the tensors of `subgraph` that stand for the file's inputs.
        output: the one that its output becomes.
        name_of: gives a tensor a name that no other has.

    Returns:
        The tensor with the result: `output`, or, where no operator makes it, the input or the
        constant that it equals.
    """
    source = tfl.ModelT.InitFromPackedBuf(content, 0)
    (graph,) = source.subgraphs
    result = graph.outputs[0]
    where = dict(zip(_in_order(graph), inputs, strict=True))
    if any(result in operator.outputs for operator in graph.operators):
        where[result] = output
    for index, tensor in enumerate(graph.tensors):
        if index in where:
            continue
        model.buffers.append(source.buffers[tensor.buffer])
        tensor.buffer = len(model.buffers) - 1
        # The converter's own names count how often it was called.
        tensor.name = name_of(f"{subgraph.tensors[output].name}/island_{index}")
        subgraph.tensors.append(tensor)
        where[index] = len(subgraph.tensors) - 1
    for operator in graph.operators:
        model.operatorCodes.append(source.operatorCodes[operator.opcodeIndex])
        operator.opcodeIndex = len(model.operatorCodes) - 1
        operator.inputs = [where.get(index, -1) for index in operator.inputs]
        operator.outputs = [where[index] for index in operator.outputs]
        subgraph.operators.append(operator)
    return where[result]


def spliced_bytes(content: bytes, output: str) -> int:
    """How many bytes longer `splice` makes a file, beside the tensor that the operators make.

    Args:
        content: the file that is spliced into another one.
        output: the name of that tensor, which others are named after.
    """
    model, subgraph = tfl.ModelT(), tfl.SubGraphT()
    source = tfl.ModelT.InitFromPackedBuf(content, 0).subgraphs[0]
    model.buffers, model.operatorCodes, model.subgraphs = [tfl.BufferT()], [], [subgraph]
    subgraph.operators, subgraph.tensors = [], []
    for _ in (*source.inputs, source.outputs[0]):
        tensor = tfl.TensorT()
        tensor.name = output
        subgraph.tensors.append(tensor)
    before = _packed_bytes(model)
    *inputs, made = range(len(subgraph.tensors))
    splice(content, model, subgraph, inputs, made, lambda name: name)
    return _packed_bytes(model) - before


def _packed_bytes(model: Any) -> int:
    builder = flatbuffers.Builder(1 << 10)
    builder.Finish(model.Pack(builder))
    return len(builder.Output())


def _in_order(graph: Any) -> list[int]:
    """The file's inputs in the order of the layer's: the converter may list them otherwise."""
    return sorted(graph.inputs, key=lambda index: _number(graph.tensors[index].name))


def _number(name: bytes | str) -> int:
    text = name.decode() if isinstance(name, bytes) else name
    return int(text.rsplit(_INPUT, 1)[-1].split(":")[0])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if lines and lines[0] == "in user code:":  # AutoGraph puts the code in front of what it raised
        lines = [line for line in lines if re.match(r"\w+(Error|Exception): ", line)] or lines
    return lines[0][:200] if lines else type(error).__name__
