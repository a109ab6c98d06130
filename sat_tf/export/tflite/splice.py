"""The operators of one TFLite file inside another."""

from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as tfl

# This stands in front of the numbers that name the inputs of a file to be spliced.
INPUT_NAME = "island_input_"
# This stands between the name of a float layer's output and the numbers of its other tensors.
INNER_NAME = "/island_"


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
    # The converter may list the file's inputs otherwise than the layer does.
    in_order = sorted(graph.inputs, key=lambda index: _number(graph.tensors[index].name))
    where = dict(zip(in_order, inputs, strict=True))
    if any(result in operator.outputs for operator in graph.operators):
        where[result] = output
    for index, tensor in enumerate(graph.tensors):
        if index in where:
            continue
        model.buffers.append(source.buffers[tensor.buffer])
        tensor.buffer = len(model.buffers) - 1
        # The converter's own names count how often it was called.
        tensor.name = name_of(f"{subgraph.tensors[output].name}{INNER_NAME}{index}")
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


def _number(name: bytes | str) -> int:
    text = name.decode() if isinstance(name, bytes) else name
    return int(text.rsplit(INPUT_NAME, 1)[-1].split(":")[0])
