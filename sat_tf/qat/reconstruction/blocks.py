"""The blocks that `reconstruct` fits a quantized network in, and the tensors between them."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, check_model
from sat_tf.graph.rewrite import rewritten
from sat_tf.messages import first_ones
from sat_tf.qat.images import BATCH_SIZE, FileArray, Rows
from sat_tf.qat.inputs import kept_inputs
from sat_tf.qat.layout import call_name, inner_layer, is_quantized, name_in_front_of_insertions
from sat_tf.qat.model_class import processor_of
from sat_tf.qat.walk import call_node
from sat_tf.qat.wrapper import QuantizedLayer, weight_quantizer

# The most linear layers of a block that no single tensor cuts, where it can be parted.
_MOST_KERNELS = 8

# Kernels of fewer weights are not compared; the others are unlike below a correlation of 0.1, or of
# four deviations of chance.
_FEWEST_COMPARED, _LEAST_CORRELATION, _CHANCE_DEVIATIONS = 64, 0.1, 4.0

# Layers of these roles are in one block with the linear layer in front.
_BESIDE_A_LAYER = {
    *(Role.NORM, Role.RECTIFIER, Role.SCALING, Role.SUM, Role.PRODUCT),
    *(Role.FUNCTION, Role.IDENTITY, Role.SOFTMAX, Role.MATRIX_PRODUCT),
}


def find_blocks(network: Network, reference: Network) -> dict[str, str]:
    """The nodes that end the blocks of a quantized network, in order, with their float nodes."""
    ends = dict(zip(network.outputs, reference.outputs, strict=True))
    blocks: dict[str, str] = {}
    # The nodes that the float network has computed up to the ends that were found.
    passed: set[str] = set()
    open_tensors: set[str] = set()
    unread = {node.name: len(network.consumers(node.name)) for node in network}
    since_end = 0
    # A mask goes with the tensor, and not with its values.
    has_masks = any(node.makes_mask for node in network)
    for node in network:
        for name in node.inputs:
            unread[name] -= 1
        open_tensors = {name for name in (*open_tensors, node.name) if unread[name]}
        open_tensors -= set(network.inputs)
        since_end += weight_quantizer(node.layer) is not None
        # The float node that computes the same, up to rounding.
        float_name = ends.get(node.name, name_in_front_of_insertions(network, node.name))
        is_cut = open_tensors == {node.name} or since_end > _MOST_KERNELS
        roles = [layer_kinds.role_of(inner_layer(r.layer)) for r in network.consumers(node.name)]
        goes_on = len(roles) == 1 and roles[0] in _BESIDE_A_LAYER
        is_end = is_cut and since_end and not has_masks and not goes_on
        if node.name in ends or (is_end and float_name in reference and float_name not in passed):
            blocks[node.name] = float_name
            passed |= {float_name, *reference.before(float_name)}
            since_end = 0
    return blocks


def find_reference(network: Network, float_model: Any) -> tuple[Network | None, list[str]]:
    """The float network that a quantized one was made from, and why it is not the one.

    It has the names of the quantized layers. It is None where there is no network at all.
    """
    quantized = [node for node in network if isinstance(node.layer, QuantizedLayer)]
    annotated = [inner_layer(node.layer).name for node in quantized]
    processor = processor_of(network.model)
    candidates: list[tuple[Network, list[str]]] = []
    try:
        check_model(float_model)
        # A model with annotations of some layers alone was rewritten in part.
        for names in (None, annotated):
            rewriting = rewritten(float_model, names, processor=processor)
            reference = _renamed(Network(rewriting.model), network)
            candidates.append((reference, _differences(network, reference)))
            if not candidates[-1][1]:
                break
    except ValueError as error:
        return None, [f"float_model: {error}"]
    return min(candidates, key=lambda candidate: len(candidate[1]))


def _renamed(reference: Network, network: Network) -> Network:
    """The float network with the names of a quantized one: Keras 3 has no slashes in them."""
    call_names = {call_name(node) for node in network}
    renamed = {
        node.name: new_name
        for node in reference
        if node.name not in call_names and (new_name := node.name.replace("/", "_")) in call_names
    }
    nodes = []
    for node in reference:
        name, *inputs = (renamed.get(name, name) for name in (node.name, *node.inputs))
        nodes.append(dataclasses.replace(node, name=name, inputs=tuple(inputs)))
    return reference.rearranged(nodes, renamed)


def _differences(network: Network, reference: Network) -> list[str]:
    """Why a float network is not the one that a quantized network was made from."""
    if is_quantized(reference):
        return ["float_model: received a quantized model, expected the one that it was made from."]
    counts, expected = ((len(graph.inputs), len(graph.outputs)) for graph in (reference, network))
    if counts != expected:
        return [
            f"float_model: received {counts[0]} inputs and {counts[1]} outputs, expected "
            f"{expected[0]} and {expected[1]}; pass the model that was quantized."
        ]
    problems, unlike = [], []
    for node in network:
        name, shapes = call_name(node), _shapes(inner_layer(node.layer))
        float_shapes = _shapes(reference[name].layer) if name in reference else None
        if shapes == float_shapes and _are_unlike(inner_layer(node.layer), reference[name].layer):
            unlike.append(name)
        if shapes and shapes != float_shapes:
            received = (
                "no such layer" if float_shapes is None else f"weights of the shapes {float_shapes}"
            )
            problems.append(
                f"float_model: {name}: received {received}, expected weights of the shapes "
                f"{shapes}; pass the model that was quantized."
            )
    if unlike:
        problems.append(
            f"float_model: received weights that have nothing in common with those of the "
            f"quantized model in {first_ones(unlike)}, expected those that it was made from; pass "
            "the model that was quantized, with the weights that it had."
        )
    return problems


def _are_unlike(layer: Any, float_layer: Any) -> bool:
    """Whether the kernels of two layers are no more alike than chance makes them.

    The correlation of n numbers drawn by lot deviates from 0 by 1 / sqrt(n).
    """
    if layer_kinds.quantized_kernel(layer) is None:
        return False
    kernels = [np.ravel(layer_kinds.kernel_of(owner).numpy()) for owner in (layer, float_layer)]
    kernel, float_kernel = (values.astype(np.float64) - np.mean(values) for values in kernels)
    size = math.sqrt(float(np.dot(kernel, kernel)) * float(np.dot(float_kernel, float_kernel)))
    least = max(_LEAST_CORRELATION, _CHANCE_DEVIATIONS / math.sqrt(len(kernel)))
    return len(kernel) >= _FEWEST_COMPARED and float(np.dot(kernel, float_kernel)) < least * size


def _shapes(layer: Any) -> list[tuple[int, ...]]:
    return [tuple(variable.shape) for variable in layer.weights]


class Span(NamedTuple):
    """Nodes that are computed in one go."""

    nodes: Sequence[Node]  # Producers before consumers.
    given: Mapping[str, Rows]  # The tensors that they read from nodes in front, of all images.
    # The function from these tensors, of some images, to those that the nodes make, by name, in
    # inference.
    compute: Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]


class Front:
    """The tensors at the point up to which a network is computed, of all images.

    Only those that are still read are kept: in memory, and above 64 MiB each in a temporary file.
    """

    def __init__(self, network: Network, images: Sequence[Rows]) -> None:
        self._network = network
        float_inputs = kept_inputs(network)
        self._done = set(network.inputs)
        self.tensors: dict[str, Rows] = {
            name: _cast(array, network[name].type if name in float_inputs else tf.float32)
            for name, array in zip(network.inputs, images, strict=True)
        }

    def up_to(self, names: Collection[str]) -> Span:
        """The nodes with some names, and those that are still to be computed for them."""
        needed = {*names}.union(*map(self._network.before, names)) - self._done
        nodes = [node for node in self._network if node.name in needed]
        read_names = dict.fromkeys(name for node in nodes for name in node.inputs)
        input_rows = {name: self.tensors[name] for name in read_names if name in self._done}
        outputs = [node.name for node in nodes if node.name in names or self._is_read(node, needed)]
        signature = {
            name: tf.TensorSpec((None, *array.shape[1:]), array.dtype)
            for name, array in input_rows.items()
        }

        @tf.function(input_signature=[signature])
        def compute(inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
            tensors = computed(nodes, inputs)
            return {name: tensors[name] for name in outputs}

        return Span(nodes, input_rows, compute)

    def advance(self, span: Span, *, keep: Collection[str] = ()) -> None:
        """Computes a span for all images, and forgets what no later node reads."""
        self._done |= {node.name for node in span.nodes}
        count, output_rows = len(next(iter(self.tensors.values()))), dict[str, Rows]()
        for start in range(0, count if span.nodes else 0, BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            inputs = {name: tf.constant(array[batch]) for name, array in span.given.items()}
            for name, tensor in span.compute(inputs).items():
                value = tensor.numpy()
                if name not in output_rows:
                    output_rows[name] = FileArray((count, *value.shape[1:]), value.dtype)
                output_rows[name][batch] = value
        self.tensors = {
            name: array
            for name, array in {**self.tensors, **output_rows}.items()
            if name in keep or self._is_read(self._network[name])
        }

    def _is_read(self, node: Node, done: Collection[str] = ()) -> bool:
        """Whether a node that is not computed yet reads the tensor."""
        readers = {reader.name for reader in self._network.consumers(node.name)}
        return not readers <= self._done.union(done)


def computed(
    nodes: Sequence[Node], given: Mapping[str, Any], *, on_batch_statistics: bool = False
) -> dict[str, Any]:
    """The tensors of nodes in inference, or with normalizations as in training, unless frozen."""
    tensors = dict(given)
    for node in nodes:
        inputs = [tensors[name] for name in node.inputs]
        argument = inputs if node.takes_list else inputs[0]
        tensors[node.name] = call_node(node, argument, on_batch_statistics)
    return tensors


def _cast(rows: Rows, dtype: tf.DType) -> Rows:
    """Rows of a type; those that have it already are not copied."""
    if rows.dtype == dtype.as_numpy_dtype:
        return rows
    cast_rows = FileArray(rows.shape, dtype.as_numpy_dtype)
    for start in range(0, len(rows), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        cast_rows[batch] = tf.cast(rows[batch], dtype).numpy()
    return cast_rows
