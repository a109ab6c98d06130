"""The costs of each layer: multiply-adds, and bytes of the file."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.operation import Operation
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import LayerKind, Role
from sat_tf.graph.network import Network, Node, layer_of_call
from sat_tf.planning.deployment import Deployment
from sat_tf.planning.preview import Shape

FLOAT_BITS = 32


def multiply_adds(node: Node, input_shapes: list[Shape]) -> int | None:
    """Products of weights and inputs for one image; None if they are not known.

    One multiply-add for each weight and each place where it is used. Layers without weights, and
    those with one for each channel, such as a normalization, count as 0.

    Args:
        node: the layer.
        input_shapes: of the tensors it reads, without the batch.
    """
    kind = layer_kinds.find_kind(node.layer)
    if kind is not None and kind.kernels:
        return _products(node, kind, input_shapes[0]) if input_shapes else None
    by_channel = kind is not None and kind.weights_by_channel
    if by_channel or all(len(weight.shape) <= 1 for weight in node.layer.weights):
        return 0
    return None


def _products(node: Node, kind: LayerKind, read: Shape) -> int | None:
    """Counts the multiply-adds of all kernels of a layer; None where a size is open."""
    channels_first = getattr(node.layer, "data_format", None) == "channels_first"
    axes = slice(1, None) if channels_first else slice(None, -1)
    places = _places(read, axes), _places(node.shape, axes)
    shapes = [getattr(node.layer, kernel.attribute).shape for kernel in kind.kernels]
    found = [
        kernel.products(shape, *places) for kernel, shape in zip(kind.kernels, shapes, strict=True)
    ]
    return None if None in found else sum(count for count in found if count is not None)


def bit_operations(
    products: int | None, weight_bits: int | None, reading_bits: int | None
) -> int | None:
    """BOPs: multiply-adds times the bits of both factors; None, for float values, counts as 32.

    >>> bit_operations(100, 4, 8), bit_operations(100, None, None), bit_operations(None, 4, 4)
    (3200, 102400, None)
    """
    if products is None:
        return None
    return products * (weight_bits or FLOAT_BITS) * (reading_bits or FLOAT_BITS)


def _places(shape: Shape, axes: slice) -> int | None:
    sizes = shape[axes]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


# Bytes are those of the flatbuffer. A file without operators has an input, a signature, metadata.
_HEADER = 782
_OPERATOR = 71
_CONSTANT = 151
_FLOAT = 4
# An input or output beside the first takes these.
_END = 200


def header_bytes(graph: Graph | None) -> int:
    """The bytes of a file besides its operators."""
    if graph is None:
        return 0
    ends = len(graph.images) - 1 + len(graph.more_outputs)
    return _HEADER + ends * _END + 4 * sum(len(image.name) for image in graph.images)


def operation_bytes(
    operation: Operation,
    graph: Graph,
    *,
    again: bool = False,
    float_layer_bytes: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """The bytes of an operation, its constants and its output tensor.

    Args:
        operation: the operation.
        graph: that it belongs to.
        again: it is another call of a layer whose kernel is already in the file.
        float_layer_bytes: of what the converter writes, by the names of layers.
    """
    parts = operation.file_parts(graph, shares_kernel=again)
    name = len(operation.output)
    tables = parts.operators * (_OPERATOR + name) + parts.constants * (_CONSTANT + name)
    return tables + float_layer_bytes.get(operation.float_layer or "", parts.data_bytes)


def bytes_of(deployed: Deployment) -> dict[str, int]:
    """The bytes of each layer, and of each inserted quantizer, by its name.

    An operator into which several layers are fused counts for the linear one, if there is one.
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
            elsewhere = operation.num_weights and name not in deployed.linear_layers
            owner = heads.get(name, name) if elsewhere else name
            found[owner] += operation_bytes(
                operation,
                deployed.graph,
                again=layer_of_call(owner) != owner,
                float_layer_bytes=deployed.float_layer_bytes,
            )
    return found


def float_bytes(network: Network, node: Node) -> int:
    """The bytes of the layer in a float TFLite file, with normalizations folded.

    Args:
        network: the float model.
        node: the layer.
    """
    role = layer_kinds.role_of(node.layer)
    if role is Role.INPUT:
        return _HEADER
    if role is Role.NORM:
        producers = [network[name] for name in node.inputs]
        folded = all(layer_kinds.role_of(producer.layer) is Role.LINEAR for producer in producers)
        channels = node.shape[-1] or 0
        return 0 if folded else 2 * (_OPERATOR + _CONSTANT + _FLOAT * channels)
    if role is Role.LINEAR:
        biases = 0 if getattr(node.layer, "bias", None) is not None else (node.shape[-1] or 0)
        weights = _FLOAT * (int(node.layer.count_params()) + biases)
        return _OPERATOR + 2 * _CONSTANT + weights
    if role in (Role.RECTIFIER, Role.IDENTITY):
        return 0
    return _OPERATOR + _FLOAT * (int(node.layer.count_params()) if node.layer.built else 0)
