"""How the export will lower a network: its operations, and its refusals."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import tf_keras as keras

from sat_tf.export.converter.float_layers import Signature, float_operators
from sat_tf.export.lowering.packing import pack_graph
from sat_tf.export.lowering.refusals import find_problems
from sat_tf.export.lowering.trace import trace_network
from sat_tf.export.operations.float_layer import float_layers
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.operation import Operation
from sat_tf.export.tflite.splice import spliced_bytes
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network, Node
from sat_tf.planning.planned_model import Export
from sat_tf.planning.preview import by_layer, kernel_outlines, user_name
from sat_tf.qat.layout import in_inference

_FLOAT_BYTES = 4


class Conversions(NamedTuple):
    """The conversions of layers left float, by their names.

    Attributes:
        problems: why layers cannot be written into a file.
        bytes: of the others in the file.
    """

    problems: dict[str, str]
    bytes: dict[str, int]


def conversions(graph: Graph) -> Conversions:
    """Converts the layers that are left float; layers that are alike only once.

    Args:
        graph: of known shapes.
    """
    found = Conversions({}, {})
    tried: dict[str, tuple[bytes, int] | str] = {}
    for operation in float_layers(graph.operations):
        layers, signature = operation.layers, operation.signature(graph)
        weights = _FLOAT_BYTES * sum(int(layer.count_params()) for layer in layers)
        kind = _kind(layers, signature)
        if kind not in tried:
            try:
                tried[kind] = float_operators(operation.function(), layers, signature), weights
            except ValueError as error:
                tried[kind] = str(error).removeprefix(f"{layers[-1].name}: ")
        outcome, name = tried[kind], operation.calls[-1].name
        if isinstance(outcome, str):
            found.problems[name] = f"{name}: {outcome}"
        else:
            content, of_content = outcome
            spliced = spliced_bytes(content, operation.output)
            found.bytes[operation.float_layer] = spliced - of_content + weights
    return found


def _kind(layers: Sequence[keras.layers.Layer], signature: Signature) -> str:
    # A conversion takes most of a second: layers that give the same operators at every size share
    # one.
    known = [layer_kinds.find_kind(layer) for layer in layers]
    alike = all(kind is not None and kind.alike_at_all_sizes for kind in known)
    sizes = [(len(shape) if alike else shape, kind) for shape, kind in signature]
    settings = [
        {key: value for key, value in layer.get_config().items() if key != "name"}
        for layer in layers
    ]
    names = [type(layer).__qualname__ for layer in layers]
    return json.dumps([names, settings, sizes], default=str)


@dataclasses.dataclass(frozen=True)
class Deployed:
    """How one layer gets into the file.

    Attributes:
        export: in which form.
        fused_into: the layers into whose operators it is fused, if it has none of its own.
        operations: its own operations.
        reason: why it is not integer.
    """

    export: Export
    fused_into: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    reason: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of its operators, as the file calls them."""
        return tuple(name for operation in self.operations for name in operation.operators)


@dataclasses.dataclass(frozen=True)
class Deployment:
    """How a model gets into a file.

    Attributes:
        layers: by the names of the user's layers and of inserted quantizers.
        graph: of the file; None if it cannot be lowered.
        problems: why it is not exported.
        linear_layers: which of the layers are quantized linear layers.
        float_layer_bytes: bytes in the file of the layers left float, by their names.
    """

    layers: Mapping[str, Deployed]
    graph: Graph | None
    problems: tuple[str, ...]
    linear_layers: frozenset[str]
    float_layer_bytes: Mapping[str, int]


def deployment(preview: Network, *, tolerant: bool = False) -> Deployment:
    """How a previewed network is exported.

    Args:
        preview: the network, with shapes for one image size if sizes are open.
        tolerant: the model cannot be quantized, and its graph may lack what the export needs.
    """
    names = {node.name: user_name(node) for node in preview}
    view = in_inference(preview)
    problems = find_problems(view, float_head=False)
    refused = by_layer(problems, names.values())
    outlines = kernel_outlines(preview)
    try:
        graph = pack_graph(trace_network(view, kernels=outlines), "auto")
    except Exception as error:
        if not (tolerant or isinstance(error, ValueError) or problems):
            raise
        if not problems:
            lines = str(error).splitlines()
            listed = [line.removeprefix("  - ") for line in lines if line.startswith("  - ")]
            problems = listed or lines
        graph = None
    if problems and not _sizes_are_known(preview):
        graph = None
    layers: dict[str, Deployed] = {}
    float_layer_bytes: Mapping[str, int] = {}
    if graph is not None:
        layers = _Reading(graph, view, names).layers()
        for node in preview:
            if node.name not in view:
                layers[names[node.name]] = _of_training(layers[names[node.inputs[0]]])
        reasons, float_layer_bytes = conversions(graph)
        for name, reason in reasons.items():
            refused.setdefault(name, []).append(reason)
            problems.append(reason)
    for name in names.values():
        if name in refused:
            texts = " ".join(refused[name])
            layers[name] = Deployed(Export.REFUSED, reason=texts)
        elif name not in layers:
            layers[name] = Deployed(Export.UNKNOWN)
    linear = frozenset(names[name] for name in outlines)
    return Deployment(layers, graph, tuple(problems), linear, float_layer_bytes)


def _of_training(read: Deployed) -> Deployed:
    """How a layer that is the identity in inference gets into the file."""
    if read.fused_into and not read.operations:
        return read
    return Deployed(Export.NOTHING, reason="it acts in training alone")


def _sizes_are_known(network: Network) -> bool:
    return all(None not in node.shape for node in network)


class _Reading:
    """Finds the operations of each layer in a graph."""

    def __init__(self, graph: Graph, network: Network, names: Mapping[str, str]) -> None:
        self.graph, self.network, self.names = graph, network, names
        self.tensors = {names[name]: tensor for name, tensor in graph.layer_outputs.items()}
        self.operations = self._by_maker()

    def layers(self) -> dict[str, Deployed]:
        return {self.names[node.name]: self._deployed(node) for node in self.network}

    def _by_maker(self) -> dict[str, list[Operation]]:
        """The operations of each layer: up to the one that makes its tensor."""
        makers: dict[str, str] = {}
        for layer, tensor in self.tensors.items():
            makers.setdefault(tensor, layer)
        makers |= {name: name for name in self.names.values()}
        found: dict[str, list[Operation]] = {}
        waiting: list[Operation] = []
        last = ""
        for operation in self.graph.operations:
            waiting.append(operation)
            if operation.output in makers:
                last = makers[operation.output]
                found.setdefault(last, []).extend(waiting)
                waiting = []
        found.setdefault(last, []).extend(waiting)  # those that dequantize the output
        return found

    def _deployed(self, node: Node) -> Deployed:
        name = self.names[node.name]
        if node.name in self.network.inputs:
            return Deployed(Export.INTEGER)
        operations = tuple(self.operations.get(name, ()))
        if operations:
            return Deployed(self._way(operations, name), (), operations, self._reason(operations))
        if node.name in self.graph.layer_outputs:
            return Deployed(Export.NOTHING, reason="it does not change the codes")
        into = self._fused_into(node)
        ways = [self._way(self.operations.get(name, []), name) for name in into]
        worst = next((way for way in ways if way is not Export.INTEGER), Export.INTEGER)
        return Deployed(worst if into else Export.NOTHING, into)

    def _fused_into(self, node: Node) -> tuple[str, ...]:
        """The layers whose tensors this one is fused into."""
        found: list[str] = []
        for reader in self.network.consumers(node.name):
            name = self.names[reader.name]
            if name in self.operations:
                found.append(name)
            elif reader.name not in self.graph.layer_outputs:
                found += self._fused_into(reader)
        return tuple(dict.fromkeys(found))

    def _way(self, operations: Iterable[Operation], name: str) -> Export:
        """The way of a layer into the file, by the operation that makes its tensor, or the last."""
        made = list(operations)
        if float_layers(made):
            return Export.CONVERTER
        own = [operation for operation in made if operation.output == name] or made[-1:]
        floats = any(self.graph.is_float(operation) for operation in own)
        return Export.FLOAT if floats else Export.INTEGER

    def _reason(self, operations: Iterable[Operation]) -> str:
        if float_layers(operations):
            return "left float; it needs builtin TFLite operators"
        return ""
