"""The ends of a graph: its outputs as float values, probabilities or codes."""

import dataclasses
from collections.abc import Sequence

from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.operation import Operation
from sat_tf.export.operations.quantize import ShiftOutput
from sat_tf.export.operations.softmax import Softmax
from sat_tf.export.tflite.tensors import Tensor
from sat_tf.messages import list_problems

FLOAT = "float32"
UNSIGNED = "uint8"


def with_softmax(graph: Graph) -> Graph:
    """The graph with a float softmax behind its output; the same where it has one already.

    The codes stay what they are: only the float values behind the last DEQUANTIZE change.
    """
    if any(operation.makes_probabilities for operation in graph.operations):
        return graph
    graph.expect_one_of_each("softmax=True")
    name = _unused(graph, f"{graph.output}_probabilities")
    output = Tensor(name, graph.tensors[graph.output].shape, None)
    return dataclasses.replace(
        graph,
        tensors={**graph.tensors, name: output},
        operations=(*graph.operations, Softmax((graph.output,), name)),
        output=name,
    )


def with_output_type(graph: Graph, output_type: str) -> Graph:
    """The graph with outputs of a type.

    Outputs of integers are the codes that DEQUANTIZE would have read, so that no code of the graph
    changes. They are its last as int8; an exact shift makes uint8 of them.

    Args:
        graph: one whose outputs are float.
        output_type: one of `sat_tf.targets.OUTPUT_TYPES`.

    Raises:
        ValueError: an output has no codes; lists every one with its fix.
    """
    if output_type == FLOAT:
        return graph
    makers = {operation.output: operation for operation in graph.operations}
    found: dict[str, str] = {}
    problems = []
    for name in graph.outputs:
        maker = makers[name]
        if maker.represented:
            found[name] = maker.represented
        else:
            reason, fix = _why_float(graph, maker)
            problems.append(
                f"output_type={output_type!r}: received the output {name}, {reason}, expected "
                f"codes; {fix}, or use output_type='float32'."
            )
    if problems:
        raise ValueError(list_problems(f"model {graph.name!r}", list(dict.fromkeys(problems))))
    tensors, shifts = dict(graph.tensors), {}
    for source in dict.fromkeys(found.values()) if output_type == UNSIGNED else ():
        name = _unused(graph, f"{source}_{UNSIGNED}")
        tensors[name] = Tensor(name, tensors[source].shape, graph.codes(source).unsigned())
        shifts[source] = ShiftOutput((source,), name)
    ends = {source: shift.output for source, shift in shifts.items()}
    outputs = [ends.get(found[name], found[name]) for name in graph.outputs]
    operations = _without_unread((*graph.operations, *shifts.values()), outputs)
    made = {operation.output for operation in operations}
    return dataclasses.replace(
        graph,
        tensors={name: tensor for name, tensor in tensors.items() if name in made},
        operations=operations,
        output=outputs[0],
        more_outputs=tuple(outputs[1:]),
    )


def fitting_type(graph: Graph, wanted: str) -> str:
    """The type of outputs that is wanted, or float32 where one of them has no codes.

    Args:
        graph: one whose outputs are float.
        wanted: one of `sat_tf.targets.OUTPUT_TYPES`.
    """
    makers = {operation.output: operation for operation in graph.operations}
    have_codes = all(name in makers and makers[name].represented for name in graph.outputs)
    return wanted if have_codes else FLOAT


def _why_float(graph: Graph, maker: Operation) -> tuple[str, str]:
    """Why what an operation makes has no codes, and the fix."""
    if all(operation.is_float(graph) or operation.of_input for operation in graph.operations):
        return "of a model that quantizes weights only", "give its policy activation_bits"
    makers = {operation.output: operation for operation in graph.operations}
    waiting, before = [maker], []
    while waiting:
        before.append(waiting.pop())
        if before[-1].is_float(graph):
            waiting += [makers[name] for name in before[-1].inputs if name in makers]
    if layers := [found for one in before if (found := one.float_layer) is not None]:
        return f"which is behind {layers[0]}, a layer left float", "end the model in front of it"
    if any(one.makes_probabilities for one in before):
        return "which is behind a float softmax", "end the model in its logits"
    return "which is a float stream", "give its policy stream_bits"


def _without_unread(
    operations: Sequence[Operation], outputs: Sequence[str]
) -> tuple[Operation, ...]:
    """The operations but for conversions to float values that nothing reads."""
    read = {*outputs, *(name for operation in operations for name in operation.inputs)}
    return tuple(one for one in operations if one.output in read or not one.represented)


def _unused(graph: Graph, name: str) -> str:
    images = {image.name for image in graph.images}
    while name in graph.tensors or name in images:
        name += "_"
    return name
