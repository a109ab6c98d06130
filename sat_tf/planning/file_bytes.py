"""How many bytes of a TFLite file each layer takes: an estimate.

What fills a file is counted as the writer stores it: one byte a weight code, four a bias, and for
every step twelve, itself and the zero point beside it, for the kernel and again for the bias. The
rest, tables of the flatbuffer, is a number of bytes for each operator and each constant, fitted to
files of the writer; layers that are left float take what TensorFlow's converter makes of them. See
`tests/planning/test_file_bytes.py` for how far off the sums are.
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import tf_keras as keras

from sat_tf.export import graph as ir
from sat_tf.export.lookup import Lookup
from sat_tf.export.movements import Movement
from sat_tf.planning.deployment import Deployment
from sat_tf.qat import registry
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.network import Network, Node
from sat_tf.qat.registry import Role

# Of a file without operators: its input, its signature and what it says of itself.
_HEADER = 782
_OPERATOR = 71
_CONSTANT = 151
_STEP = 12
_BIAS, _FLOAT = 4, 4
# Of an input or output beside the first.
_END = 200
# Of a layer that TensorFlow's converter would write, and does not.
_ISLAND = 400

# How the graph names calls of a layer from the second on.
_ANOTHER_CALL = re.compile(r"@\d+$")

_CONSTANTS: dict[type, int] = {
    ir.Linear: 2,
    ir.Mean: 1,
    ir.Pad: 1,
    ir.AddConstant: 1,
    ir.Reshape: 1,
    ir.WithConstant: 1,
    Lookup: 2,
}


def header_bytes(graph: ir.Graph | None) -> int:
    """What a file has that is no operator's."""
    if graph is None:
        return 0
    ends = len(graph.images) - 1 + len(graph.more_outputs)
    return _HEADER + ends * _END + 4 * sum(len(image.name) for image in graph.images)


def operation_bytes(
    operation: ir.Operation,
    graph: ir.Graph,
    *,
    again: bool = False,
    island_bytes: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """What an operation, its constants and the tensor it makes take.

    Args:
        operation: the operation.
        graph: what it is part of.
        again: it is another call of a layer, whose kernel is in the file already.
        island_bytes: of what the converter writes, by the names of layers.
    """
    if isinstance(operation, ir.Island):
        unknown = _ISLAND + _FLOAT * int(inner_layer(operation.node.layer).count_params())
        spliced = island_bytes.get(operation.layer, unknown)
        return _OPERATOR + len(operation.output) + spliced
    constants = _CONSTANTS.get(type(operation), 0)
    tables = _OPERATOR + constants * _CONSTANT + (1 + constants) * len(operation.output)
    if isinstance(operation, ir.Linear):
        return tables + _linear_bytes(operation, again=again)
    if isinstance(operation, Lookup):  # a CAST, an ADD and a GATHER
        return tables + 2 * (_OPERATOR + len(operation.output)) + operation.table.nbytes
    if isinstance(operation, Movement):
        shape = graph.tensors[operation.inputs[0]].shape
        return tables + sum(
            _CONSTANT + len(operation.output) + constant.nbytes
            for constant in operation.constants(shape).values()
        )
    if isinstance(operation, ir.AddConstant):
        return tables + operation.constant.size
    if isinstance(operation, ir.WithConstant):
        return tables + _FLOAT * int(np.size(operation.constant))
    return tables


def _linear_bytes(operation: ir.Linear, *, again: bool) -> int:
    dense = operation.kind is ir.LinearKind.FULLY_CONNECTED
    steps = operation.steps.astype(np.float32)
    count = 1 if dense and bool(np.all(steps == steps[0])) else steps.size
    codes = 0 if again else math.ceil(operation.kernel.size * operation.storage.value / 8)
    if operation.real:  # a float bias, and a DEQUANTIZE of the kernel
        return codes + _STEP * count + _FLOAT * operation.bias.size + _OPERATOR
    return codes + 2 * _STEP * count + _BIAS * operation.bias.size


def bytes_of(deployed: Deployment) -> dict[str, int]:
    """The bytes of each layer, and of each inserted quantizer, by its name.

    An operator into which several layers are fused counts for the linear one of them, as long as
    there is one.
    """
    if deployed.graph is None:
        return {}
    heads = {
        name: layer
        for layer in deployed.linear_layers
        for name in deployed.layers[layer].fused_into
    }
    found = dict.fromkeys(deployed.layers, 0)
    for name, layer in deployed.layers.items():
        for operation in layer.operations:
            elsewhere = isinstance(operation, ir.Linear) and name not in deployed.linear_layers
            owner = heads.get(name, name) if elsewhere else name
            found[owner] += operation_bytes(
                operation,
                deployed.graph,
                again=_ANOTHER_CALL.search(owner) is not None,
                island_bytes=deployed.island_bytes,
            )
    return found


def float_bytes(network: Network, node: Node) -> int:
    """What the layer takes in a float TFLite file, into which normalizations are folded.

    Args:
        network: the float model.
        node: the layer.
    """
    if isinstance(node.layer, keras.layers.InputLayer):
        return _HEADER
    role = registry.role_of(node.layer)
    if role is Role.NORM:
        producers = [network[name] for name in node.inputs]
        folded = all(registry.role_of(producer.layer) is Role.LINEAR for producer in producers)
        channels = node.shape[-1] or 0
        return 0 if folded else 2 * (_OPERATOR + _CONSTANT + _FLOAT * channels)
    if role is Role.LINEAR:
        biases = 0 if getattr(node.layer, "bias", None) is not None else (node.shape[-1] or 0)
        weights = _FLOAT * (int(node.layer.count_params()) + biases)
        return _OPERATOR + 2 * _CONSTANT + weights
    if role in (Role.RECTIFIER, Role.IDENTITY):
        return 0
    return _OPERATOR + _FLOAT * (int(node.layer.count_params()) if node.layer.built else 0)
