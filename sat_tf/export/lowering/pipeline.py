"""The stages of the export, in order."""

import operator
from collections.abc import Sequence
from typing import Any

import tf_keras as keras

from sat_tf.export.lowering import scales
from sat_tf.export.lowering.outputs import with_softmax
from sat_tf.export.lowering.packing import pack_graph
from sat_tf.export.lowering.portable_scales import make_portable
from sat_tf.export.lowering.quantized_network import find_problems
from sat_tf.export.lowering.scales import settle_constants
from sat_tf.export.lowering.trace import trace
from sat_tf.export.operations.graph import Graph
from sat_tf.graph.flatten import copied_weights, layer_copy
from sat_tf.graph.network import Network, Node
from sat_tf.messages import ModelError
from sat_tf.qat.layout import in_inference
from sat_tf.qat.model_class import policy_of, remember


def with_image_size(model: keras.Model, image_size: Sequence[int]) -> keras.Model:
    """A copy of a model of images of any size, for images of one size.

    Args:
        model: a model with inputs (None, None, channels), or of sequences (None, channels),
            quantized by sat-tf or not; it is not changed.
        image_size: rows and columns, of every input that leaves them open; (length,) for
            sequences.

    Returns:
        A model with the same weights, to be exported, deployed and verified like any other.

    Raises:
        ValueError: an invalid size, or one that does not fit the model.
    """
    try:
        sizes = tuple(operator.index(size) for size in image_size)
    except (TypeError, ValueError):
        sizes = ()
    if len(sizes) not in (1, 2) or min(sizes) < 1:
        raise ValueError(
            f"image_size={image_size!r}: expected rows and columns, two integers of at least 1, "
            "such as (224, 224), or (length,) for sequences."
        )
    network = Network(model)
    network.refuse_problems()
    is_open = any(None in network[name].shape for name in network.inputs)

    def sized(node: Node) -> tuple[int | None, ...]:
        """The shape of an input; one of fixed size may be beside those of open size."""
        shape, expected = node.shape, "length" if len(node.shape) == 2 else "rows, columns"
        sides = zip(shape, sizes, strict=False)
        if len(shape) == len(sizes) + 1 and all(side in (None, size) for side, size in sides):
            return *sizes, shape[-1]
        if is_open and None not in shape:
            return shape
        raise ValueError(
            f"{node.name}: received image_size={sizes} for an input of shape {shape}, "
            f"expected ({expected}, channels) with sizes that are open or the same."
        )

    layers: dict[int, keras.layers.Layer] = {}
    tensors: dict[str, Any] = {}
    for node in network:
        if id(node.layer) not in layers:
            is_input = isinstance(node.layer, keras.layers.InputLayer)
            changes = {"batch_input_shape": (None, *sized(node))} if is_input else {}
            layers[id(node.layer)] = layer_copy(node.layer, **changes)
        copy = layers[id(node.layer)]
        if node.name in network.inputs:
            tensors[node.name] = copy.output
        else:
            try:
                tensors[node.name] = node.call(copy, [tensors[name] for name in node.inputs])
            except ValueError as error:
                raise ValueError(
                    f"image_size={image_size!r}: received a size that does not fit {node.name} "
                    f"({str(error).strip().splitlines()[-1].strip()}), expected a larger one, or "
                    "the one that the model was made for."
                ) from error
            copied_weights(node.layer, copy)
    assembled, policy = network.assemble(tensors), policy_of(model)
    return assembled if policy is None else remember(assembled, policy)


def is_sized(model: keras.Model) -> bool:
    """Whether the sizes of all images are fixed."""
    return all(None not in tuple(tensor.shape[1:]) for tensor in model.inputs)


def deployed_graph(
    model: keras.Model | Network,
    *,
    float_head: bool = False,
    pack: str = "auto",
    softmax: bool = False,
) -> Graph:
    """The graph of the deployed model, whose biases are integers of input scale · weight scale."""
    graph = rounded(trained_graph(model, float_head=float_head, pack=pack))
    return with_softmax(graph) if softmax else graph


def rounded(graph: Graph) -> Graph:
    """A graph from `trained_graph` as the file holds it."""
    for stage in (make_portable, settle_constants, scales.floor_scales, scales.round_biases):
        graph = stage(graph)
    return graph


def trained_graph(
    model: keras.Model | Network, *, float_head: bool = False, pack: str = "auto"
) -> Graph:
    """The same graph before anything of the model is rounded: trace, fold, pack and upscale."""
    network = in_inference(model if isinstance(model, Network) else Network(model))
    if problems := find_problems(network, float_head=float_head):
        raise ModelError(network.name, problems)
    graph = trace(network, float_head=float_head, kernels={})
    return scales.upscale(pack_graph(graph, pack))
