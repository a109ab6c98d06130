"""The quantized network that a placement gives, and how the export will lower it to a file."""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import Linear, linear_operations, map_linear
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.targets.operator_constraints import TARGETS, CpuFallback
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.export.export import file_content
from sat_tf.export.lowering.float_layer import float_layers, float_operators, spliced_bytes
from sat_tf.export.lowering.layers import KernelOutline, find_problems
from sat_tf.export.lowering.packing import FileSettings, is_trained, pack_graph
from sat_tf.export.lowering.trace import trace
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, layer_of_call
from sat_tf.messages import LayerMessage, problems_of
from sat_tf.planning.plan import Export
from sat_tf.qat.inputs import norms_behind
from sat_tf.qat.layout import arranged, in_inference, inner_layer, is_norm, user_name
from sat_tf.qat.placement import Placement
from sat_tf.qat.states import tie_states
from sat_tf.qat.wrapper import QuantizedLayer, weight_quantizer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL


def by_layer(problems: Iterable[str]) -> dict[str, list[str]]:
    """The problems of each layer, without its name; those of no layer are left out."""
    of_layers: dict[str, list[str]] = {}
    for problem in dict.fromkeys(problems):
        if isinstance(problem, LayerMessage):
            of_layers.setdefault(problem.layer, []).append(problem.text)
    return of_layers


Shape = tuple[int | None, ...]


def preview(network: Network, placement: Placement) -> Network:
    """The graph of the quantized model, with built quantizers, on the float model's own layers."""
    view = arranged(network, placement, lambda node: node.layer)
    for index, node in enumerate(view):
        if isinstance(node.layer, QuantizedLayer) and not node.layer.built:
            shapes = [tf.TensorShape((None, *view[name].shape)) for name in node.inputs]
            node.layer.build(shapes if node.takes_list or len(shapes) != 1 else shapes[0])
            assume_ranges(node.layer, index)
    tie_states(view)
    return view


def kernel_outlines(network: Network) -> dict[str, KernelOutline]:
    """Codes of the right number and shape for linear layers, which take next to no memory."""
    outlines = {}
    for node in network:
        quantizer = weight_quantizer(node.layer)
        if quantizer is None:
            continue
        layer = inner_layer(node.layer)
        kernel, axes = layer_kinds.kernel_of(layer), layer_kinds.find_support(layer).channel_axes
        shape = tuple(kernel.shape)
        channels = int(np.prod([shape[axis] for axis in axes]))
        # Channels with ranges of their own have scales of their own, and so have those whose
        # normalization is folded: its statistics, neutral before training, differ after it.
        differ = quantizer.channels_differ or norms_behind(network, node, is_norm)
        scales = np.linspace(1.0, 2.0, channels) if differ else np.ones(channels)
        inner_axes = [axis for axis, size in enumerate(shape) if axis not in axes and size > 1]
        codes = np.zeros((), np.int16)
        if quantizer.num_bits is not None and inner_axes:
            ends = np.array(quantizer.code_ends_of(kernel), np.int16)
            line_shape = [-1 if axis == inner_axes[-1] else 1 for axis in range(len(shape))]
            codes = np.resize(ends, shape[inner_axes[-1]]).reshape(line_shape)
        outlines[node.name] = KernelOutline(np.broadcast_to(codes, shape), scales)
    return outlines


def assume_ranges(layer: QuantizedLayer, index: int) -> None:
    """Gives the activations of a layer a range of its own, as after training.

    The file has operators between unequal grids.
    """
    apart = 1.0 + index * 2.0**-12
    variables = layer.output_variables
    if layer.quantize_config.output is not None:
        layer.quantize_config.output.assume_fed(variables, apart)
    if CLIPPING_LEVEL in variables:
        variables[CLIPPING_LEVEL].assign(variables[CLIPPING_LEVEL] * apart)


def planned_content(
    graph: Graph, places: Mapping[str, Sequence[int]], settings: FileSettings
) -> bytes:
    """The file, with codes of the right number and size in it."""
    numbers = {
        graph.operations[index].output: number
        for number, indices in enumerate(places.values())
        for index in indices
    }
    filled = map_linear(graph.operations, lambda op: _filled(op, numbers.get(op.output)))
    graph = settings.ended(dataclasses.replace(graph, operations=filled))
    return file_content(graph, settings.of_graph(graph))


def names_in_file(graph: Graph, settings: FileSettings) -> dict[str, str]:
    """Returns the names in the file of tensors that have others in the graph."""
    return {former: name for name, former in settings.ended(graph).former_names.items()}


def planned_cpu_fallback(graph: Graph, settings: FileSettings) -> tuple[list[CpuFallback], int]:
    """The operators of the planned file that its target leaves to the CPU, and how many it has."""
    trained = [op.output for op in linear_operations(graph.operations) if is_trained(op)]
    outputs = [operation.output for operation in graph.operations]
    places = {output: [outputs.index(output)] for output in trained}
    contents = read_contents(planned_content(graph, places, settings), graph.name)
    return TARGETS[settings.target].cpu_fallback(contents), len(contents.operators)


def _filled(operation: Linear, number: int | None) -> Linear:
    """The operation with a kernel that no other layer has: a file holds equal ones once."""
    bias = np.zeros(np.shape(operation.bias))
    if number is None:
        return dataclasses.replace(operation, bias=bias)
    kernel = np.zeros(operation.kernel.shape, np.int8)
    # The number in base 2, a byte a digit: -1 has all its bits set in every storage, so that bytes
    # of different storages differ too.
    digits = np.array([int(digit) for digit in f"{number:b}"][::-1])
    codes = np.repeat(-digits, 8 // operation.storage.value)[: kernel.size]
    kernel.reshape(-1)[: len(codes)] = codes
    return dataclasses.replace(operation, kernel=kernel, bias=bias)


_FLOAT_BYTES = 4


def conversions(graph: Graph) -> tuple[dict[str, str], dict[str, int]]:
    """Converts the layers that are left float: why some cannot be, and the bytes of the others."""
    problems: dict[str, str] = {}
    sizes: dict[str, int] = {}
    tried: dict[str, tuple[bytes, int] | str] = {}
    for operation in float_layers(graph.operations):
        layers, signature = operation.layers, operation.signature(graph)
        weights = _FLOAT_BYTES * sum(int(layer.count_params()) for layer in layers)
        # A conversion takes most of a second: layers that give the same operators at every size
        # share one.
        alike = all(layer_kinds.find_kind(layer).alike_at_all_sizes for layer in layers)
        shapes = [(len(shape) if alike else shape, type_) for shape, type_ in signature]
        settings = [
            [type(layer).__qualname__, {**layer.get_config(), "name": ""}] for layer in layers
        ]
        key = json.dumps([settings, shapes], default=str)
        if key not in tried:
            try:
                tried[key] = float_operators(operation, graph), weights
            except ValueError as error:
                tried[key] = getattr(next(iter(error.args), None), "text", str(error))
        outcome, name = tried[key], operation.calls[-1].name
        if isinstance(outcome, str):
            problems[name] = LayerMessage(name, outcome)
        else:
            content, of_content = outcome
            spliced = spliced_bytes(content, operation.output)
            sizes[operation.float_layer] = spliced - of_content + weights
    return problems, sizes


@dataclasses.dataclass(frozen=True)
class Deployed:
    """How one layer gets into the file; all except its operations are fields of its `LayerPlan`."""

    export: Export  # The form in which it gets there.
    # The layers into whose operators it is fused, if it has none of its own.
    fused_into: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()  # Its own operations.
    export_reason: str = ""  # Why it is not integer.

    def fields(self) -> dict[str, Any]:
        """The fields of a `LayerPlan` that are known here."""
        fields = vars(self) | {
            "operators": tuple(name for op in self.operations for name in op.operators)
        }
        del fields["operations"]
        return fields


@dataclasses.dataclass(frozen=True)
class Deployment:
    """How a model gets into a file."""

    layers: Mapping[str, Deployed]  # The user's layers and inserted quantizers, by name.
    graph: Graph | None  # The graph of the file; None if it cannot be lowered.
    problems: tuple[str, ...]  # Why it is not exported.
    linear_layers: frozenset[str]  # The names of the quantized linear layers.
    # Bytes in the file of the layers left float, by their names.
    float_layer_bytes: Mapping[str, int]


def deployment(preview: Network, settings: FileSettings, *, tolerant: bool = False) -> Deployment:
    """How a previewed network, with shapes for one image size if sizes are open, is exported."""
    names = {node.name: user_name(node) for node in preview}
    view = in_inference(preview)
    problems = find_problems(view, float_head=False)
    refused = by_layer(problems)
    outlines = kernel_outlines(preview)
    try:
        graph = pack_graph(trace(view, kernels=outlines), settings.packing)
        if settings.processor.native:
            graph = settings.typed(graph)
    except Exception as error:  # a model that cannot be quantized may lack what this needs
        if not (tolerant or isinstance(error, ValueError) or problems):
            raise
        problems = problems or problems_of(error)
        graph = None
    if problems and any(None in node.shape for node in preview):
        graph = None
    layers: dict[str, Deployed] = {}
    float_layer_bytes: Mapping[str, int] = {}
    if graph is not None:
        reading = _Reading(graph, view, names)
        layers = {names[node.name]: reading.deployed(node) for node in view}
        for node in preview:
            if node.name not in view:
                deployed = layers[names[node.inputs[0]]]
                if deployed.operations or not deployed.fused_into:
                    deployed = Deployed(Export.NOTHING, export_reason="it acts in training alone")
                layers[names[node.name]] = deployed
        reasons, float_layer_bytes = conversions(graph)
        for name, reason in reasons.items():
            refused.setdefault(name, []).append(reason)
            problems.append(reason)
    for name in names.values():
        if name in refused:
            texts = " ".join(refused[name])
            layers[name] = Deployed(Export.REFUSED, export_reason=texts)
        elif name not in layers:
            layers[name] = Deployed(Export.UNKNOWN)
    linear = frozenset(names[name] for name in outlines)
    return Deployment(layers, graph, tuple(problems), linear, float_layer_bytes)


class _Reading:
    """Finds the operations of each layer in a graph."""

    def __init__(self, graph: Graph, network: Network, names: Mapping[str, str]) -> None:
        self.graph, self.network, self.names = graph, network, names
        self.tensors = {names[name]: tensor for name, tensor in graph.layer_outputs.items()}
        makers: dict[str, str] = {}
        for layer, tensor in self.tensors.items():
            makers.setdefault(tensor, layer)
        # A layer that acts in training alone makes no tensor, though one may have its name.
        makers |= {name: name for name in (names[node.name] for node in network)}
        # The operations of each layer: up to the one that makes its tensor.
        self.operations: dict[str, list[Operation]] = {}
        waiting: list[Operation] = []
        last = ""
        for operation in graph.operations:
            waiting.append(operation)
            if operation.output in makers:
                last = makers[operation.output]
                self.operations.setdefault(last, []).extend(waiting)
                waiting = []
        self.operations.setdefault(last, []).extend(waiting)  # they dequantize the output

    def deployed(self, node: Node) -> Deployed:
        """How one layer of the network gets into the file."""
        name = self.names[node.name]
        if node.name in self.network.inputs:
            return Deployed(Export.INTEGER)
        operations = tuple(self.operations.get(name, ()))
        if operations:
            left_float = "left float; it needs builtin TFLite operators"
            reason = left_float if float_layers(operations) else ""
            return Deployed(self._way(operations, name), (), operations, reason)
        if node.name in self.graph.layer_outputs:
            return Deployed(Export.NOTHING, export_reason="it does not change the codes")
        into = self._fused_into(node)
        ways = [self._way(self.operations.get(name, []), name) for name in into]
        worst = next((way for way in ways if way is not Export.INTEGER), Export.INTEGER)
        return Deployed(worst if into else Export.NOTHING, into)

    def _fused_into(self, node: Node) -> tuple[str, ...]:
        """The layers whose tensors this one is fused into."""
        layer_names: list[str] = []
        for reader in self.network.consumers(node.name):
            name = self.names[reader.name]
            if name in self.operations:
                layer_names.append(name)
            elif reader.name not in self.graph.layer_outputs:
                layer_names += self._fused_into(reader)
        return tuple(dict.fromkeys(layer_names))

    def _way(self, operations: Sequence[Operation], name: str) -> Export:
        """The way of a layer into the file, by the operation that makes its tensor, or the last."""
        if float_layers(operations):
            return Export.CONVERTER
        makers = [operation for operation in operations if operation.output == name]
        floats = any(operation.is_float(self.graph) for operation in makers or operations[-1:])
        return Export.FLOAT if floats else Export.INTEGER


FLOAT_BITS = 32


def multiply_adds(node: Node, input_shapes: list[Shape]) -> int | None:
    """Products of weights and inputs for one image; None if they are not known.

    Layers without weights, and those with one for each channel, count as 0.
    """
    spec = layer_kinds.find_kind(node.layer)
    if spec.kernels and input_shapes:
        channels_first = getattr(node.layer, "data_format", None) == "channels_first"
        axes = slice(1, None) if channels_first else slice(None, -1)
        sizes = [shape[axes] for shape in (input_shapes[0], node.shape)]
        places = [None if None in size else math.prod(side or 0 for side in size) for size in sizes]
        counts = [
            kernel.products(getattr(node.layer, kernel.attribute).shape, *places)
            for kernel in spec.kernels
        ]
        return None if None in counts else sum(count for count in counts if count is not None)
    if spec.kernels:
        return None
    if spec.weights_by_channel or all(len(weight.shape) <= 1 for weight in node.layer.weights):
        return 0
    return None


def bit_operations(
    products: int | None, weight_bits: int | None, reading_bits: int | None
) -> int | None:
    """BOPs: multiply-adds times the bits of both factors; None, for float values, counts as 32."""
    if products is None:
        return None
    return products * (weight_bits or FLOAT_BITS) * (reading_bits or FLOAT_BITS)


# Bytes are those of the flatbuffer. A file without operators has an input, a signature, metadata.
_HEADER = 782
_OPERATOR = 71
_CONSTANT = 151
# Each input or output after the first takes these.
_END = 200
_ZERO_POINT = 8


def bytes_of(deployed: Deployment) -> dict[str, int]:
    """The bytes of each layer and inserted quantizer, by its name, with their constants.

    Bytes of a fused operator count for the linear layer, those of no operator for the first input.
    """
    if deployed.graph is None:
        return {}
    images = deployed.graph.images
    ends = len(images) - 1 + len(deployed.graph.more_outputs)
    header = _HEADER + ends * _END + 4 * sum(len(image.name) for image in images)
    # The zero points of kernels are all 0: those of equal length are in the file once.
    linear = linear_operations(deployed.graph.operations)
    header += _ZERO_POINT * sum({operation.stored_scales().size for operation in linear})
    heads = {
        name: layer
        for layer in deployed.linear_layers
        for name in deployed.layers[layer].fused_into
    }
    layer_bytes = {**dict.fromkeys(deployed.layers, 0), images[0].name: header}
    for name, layer in deployed.layers.items():
        for operation in layer.operations:
            elsewhere = operation.num_weights and name not in deployed.linear_layers
            owner = heads.get(name, name) if elsewhere else name
            # Another call of a layer has its kernel in the file already.
            again = layer_of_call(owner) != owner
            size = len(operation.output)
            layer_bytes[owner] += len(operation.operators) * (_OPERATOR + size)
            layer_bytes[owner] += (operation.num_constants - again) * (_CONSTANT + size)
            layer_bytes[owner] += deployed.float_layer_bytes.get(
                operation.float_layer or "", operation.constant_bytes(shares_kernel=again)
            )
    return layer_bytes


def float_bytes(network: Network, node: Node) -> int:
    """The bytes of the layer in a float TFLite file, with normalizations folded."""
    role = layer_kinds.role_of(node.layer)
    if role is Role.INPUT:
        return _HEADER
    if role is Role.NORM:
        producers = [network[name] for name in node.inputs]
        folded = all(layer_kinds.role_of(producer.layer) is Role.LINEAR for producer in producers)
        channels = node.shape[-1] or 0
        return 0 if folded else 2 * (_OPERATOR + _CONSTANT + _FLOAT_BYTES * channels)
    if role is Role.LINEAR:
        biases = 0 if getattr(node.layer, "bias", None) is not None else (node.shape[-1] or 0)
        weights = _FLOAT_BYTES * (int(node.layer.count_params()) + biases)
        return _OPERATOR + 2 * _CONSTANT + weights
    if role in (Role.RECTIFIER, Role.IDENTITY):
        return 0
    return _OPERATOR + _FLOAT_BYTES * (int(node.layer.count_params()) if node.layer.built else 0)
