"""The quantized network that a placement gives, and its file with other numbers in it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.arguments import is_integer
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import Linear, linear_operations, map_linear
from sat_tf.exact.targets.table import TARGETS, Elsewhere
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.export.export import file_content
from sat_tf.export.lowering.layers import KernelOutline
from sat_tf.export.lowering.packing import FileSettings, is_trained
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network, Node
from sat_tf.qat.layout import arranged, inner_layer
from sat_tf.qat.placement import Placement
from sat_tf.qat.wrapper import QuantizedLayer, weight_quantizer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL


def by_layer(problems: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """The problems of each layer, without its name; those of no layer are left out."""
    # The longest name first: names may hold slashes.
    layers = sorted(names, key=len, reverse=True)
    of_layers: dict[str, list[str]] = {}
    for problem in problems:
        for name in layers:
            if problem.startswith((f"{name}: ", f"{name}/")):
                text = problem[len(name) + 1 :].strip()
                if text not in of_layers.setdefault(name, []):
                    of_layers[name].append(text)
                break
    return of_layers


Shape = tuple[int | None, ...]

# Error texts of Keras and TensorFlow for layers larger than their images.
_NOTHING_LEFT = ("dimensions in the output is <= 0", "must be >= 0")


def with_image_size(network: Network, image_size: int | Sequence[int] | None) -> Network:
    """The network with shapes for images of a size: rows and columns, or one number for both."""
    if image_size is None:
        return network
    sizes: Any = (image_size, image_size) if is_integer(image_size, lowest=1) else image_size
    is_known = isinstance(sizes, tuple | list) and len(sizes) in (1, 2)
    if not (is_known and all(is_integer(side, lowest=1) for side in sizes)):
        raise ValueError(
            f"image_size={image_size!r}: expected a positive integer, or rows and columns; write "
            "224 or (224, 224), or (length,) for sequences."
        )
    size = tuple(map(int, sizes))
    shapes: dict[str, Shape] = {name: network[name].shape for name in network.inputs}
    sized = {
        name: (*size, shape[-1])
        for name, shape in shapes.items()
        if len(shape) == len(size) + 1
        and all(own in (None, asked) for own, asked in zip(shape, size, strict=False))
    }
    if not sized or any(None in shapes[name] for name in shapes.keys() - sized.keys()):
        listed = ", ".join(str(shape) for shape in shapes.values())
        raise ValueError(
            f"image_size={image_size!r}: received a size for a model of inputs {listed}, expected "
            "one of images or sequences with open sizes; leave it out."
        )
    shapes |= sized
    nodes = []
    for node in network:
        if node.name not in shapes:
            shapes[node.name] = _output_shape(node, [shapes[name] for name in node.inputs])
            if any(side is not None and side < 1 for side in shapes[node.name]):
                raise ValueError(
                    f"image_size={image_size!r}: received images that are too small for "
                    f"{node.name}, whose output would be empty; give a larger size."
                )
        nodes.append(dataclasses.replace(node, shape=shapes[node.name]))
    return network.rearranged(nodes, {})


def input_shape(node: Node, shapes: Sequence[Shape]) -> Any:
    """A layer's input shape as Keras takes it: with the batch, in a list for several inputs."""
    whole = [tf.TensorShape((None, *shape)) for shape in shapes]
    return whole if node.takes_list or len(whole) != 1 else whole[0]


def _output_shape(node: Node, shapes: list[Shape]) -> Shape:
    """The shape of a layer's output; unknown sizes are None."""
    if any(None in shape for shape in shapes):
        return node.shape
    try:
        found = node.layer.compute_output_shape(input_shape(node, shapes))
        return tuple(tf.TensorShape(found).as_list()[1:])
    except Exception as error:  # A layer of the user's own raises whatever it does.
        if isinstance(error, ValueError) and any(text in str(error) for text in _NOTHING_LEFT):
            return (0,) * len(node.shape)
        return node.shape


def preview(network: Network, placement: Placement) -> Network:
    """The graph of the quantized model, with built quantizers, on the float model's own layers."""
    view = arranged(network, placement, lambda node: node.layer)
    for index, node in enumerate(view):
        if isinstance(node.layer, QuantizedLayer) and not node.layer.built:
            shapes = [view[name].shape for name in node.inputs]
            node.layer.build(input_shape(node, shapes))
            assume_ranges(node.layer, index)
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
        # Channels with their own ranges have their own scales.
        scales = np.linspace(1.0, 2.0, channels) if quantizer.channels_differ else np.ones(channels)
        inside = [axis for axis, size in enumerate(shape) if axis not in axes and size > 1]
        codes = np.zeros((), np.int16)
        if quantizer.num_bits is not None and inside:
            ends = np.array(quantizer.code_ends_of(kernel), np.int16)
            lined = [-1 if axis == inside[-1] else 1 for axis in range(len(shape))]
            codes = np.resize(ends, shape[inside[-1]]).reshape(lined)
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
    filled = map_linear(graph.operations, lambda one: _filled(one, numbers.get(one.output)))
    graph = settings.ended(dataclasses.replace(graph, operations=filled))
    return file_content(graph, settings.of_graph(graph))


def names_in_file(graph: Graph, settings: FileSettings) -> dict[str, str]:
    """Returns the names in the file of tensors that have others in the graph."""
    return {former: name for name, former in settings.ended(graph).former_names.items()}


def planned_elsewhere(graph: Graph, settings: FileSettings) -> tuple[list[Elsewhere], int]:
    """The operators of the planned file that its target leaves to the CPU, and how many it has."""
    trained = [one.output for one in linear_operations(graph.operations) if is_trained(one)]
    outputs = [operation.output for operation in graph.operations]
    places = {output: [outputs.index(output)] for output in trained}
    contents = read_contents(planned_content(graph, places, settings), graph.name)
    return TARGETS[settings.target].elsewhere(contents), len(contents.operators)


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
