"""A network computed on a batch layer by layer, each in parts that take little memory.

All that is kept of a tensor is what is still read, and beside it only some images of a layer are in
the making where they are large. So a batch takes about as much memory as its largest tensor and
those around it that later layers read.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node
from sat_tf.qat.images import Batch
from sat_tf.qat.inputs import kept_inputs
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import QuantizedLayer

# A layer is computed in parts where a tensor of it has more bytes: a part costs the time of a call,
# and smaller tensors add nothing to the peak of a network.
_MOST_BYTES = 2**26
# A part has so many bytes at most, or one image.
_BYTES_AT_ONCE = 2**24

# A tensor of a batch: as many images in each part but the last.
Parts = list[tf.Tensor]
# It computes a layer from its inputs, part by part: each is a tensor, or a list of several.
Call = Callable[[Node, Iterator[Any]], Parts]


def each_part(call: Callable[[Node, Any], tf.Tensor]) -> Call:
    """Computes every part by itself.

    Args:
        call: computes a layer.
    """
    return lambda node, parts: [call(node, inputs) for inputs in parts]


def walk(network: Network, images: Batch, call: Call, *, whole: Collection[str] = ()) -> None:
    """Computes every node of a network.

    Args:
        network: float or quantized.
        images: of a batch, for each input.
        call: computes a node.
        whole: the names of nodes that get their inputs in one part.
    """
    kept = kept_inputs(network)
    tensors: dict[str, Parts] = {
        name: [tf.cast(array, network[name].type if name in kept else tf.float32)]
        for name, array in zip(network.inputs, images, strict=True)
    }
    count = len(images[0])
    # A tensor loses its mask when it is cut into parts.
    has_masks = any(node.makes_mask for node in network)
    for node in network:
        if node.name in tensors:
            continue
        inputs = [tensors[name] for name in node.inputs]
        can_be_cut = not has_masks and node.name not in whole and _is_by_image(node)
        at_once = _images_at_once(node, inputs, count) if can_be_cut else None
        given = [_in_parts(parts, at_once) for parts in inputs]
        del inputs
        for name in network.last_read_by(node):
            del tensors[name]
        is_parted = len(given[0]) > 1 and isinstance(node.layer, QuantizedLayer)
        with node.layer.one_kernel() if is_parted else contextlib.nullcontext():
            tensors[node.name] = call(node, _taken(node, given))


def _is_by_image(node: Node) -> bool:
    """Whether a node computes each image by itself, as files do; of unknown layers nobody knows."""
    is_known = layer_kinds.role_of(inner_layer(node.layer)) is not Role.OPAQUE
    return is_known and not node.arguments.get("training")


def _images_at_once(node: Node, inputs: list[Parts], count: int) -> int | None:
    """How many images of a batch are computed in one part: a power of 2; None for all of them."""
    if any(sum(map(_images_of, parts)) != count for parts in inputs):
        return None
    sizes = [math.prod(parts[0].shape[1:]) for parts in inputs]
    if None not in node.shape:
        sizes.append(math.prod(node.shape))
    of_image = 4 * max(*sizes, 1)
    if of_image * count <= _MOST_BYTES:
        return None
    most = _BYTES_AT_ONCE // of_image
    return 2 ** max(most.bit_length() - 1, 0)


def _images_of(part: tf.Tensor) -> int:
    return int(part.shape[0]) if part.shape.rank else 0


def _in_parts(parts: Parts, at_once: int | None) -> Parts:
    """A tensor with so many images in each part, or all in one; part sizes divide each other."""
    size = _images_of(parts[0])
    if len(parts) > 1 and (at_once is None or size < at_once):
        together = len(parts) if at_once is None else at_once // size
        return [
            tf.concat(parts[start : start + together], axis=0)
            for start in range(0, len(parts), together)
        ]
    if at_once is None or size <= at_once:
        return [*parts]
    return [
        part[start : start + at_once]
        for part in parts
        for start in range(0, _images_of(part), at_once)
    ]


def _taken(node: Node, given: list[Parts]) -> Iterator[Any]:
    """The inputs of a node, part by part; each is forgotten when the next is asked for."""
    for parts in given:
        parts.reverse()
    while given[0]:
        inputs = [parts.pop() for parts in given]
        yield inputs if node.takes_list else inputs[0]
        del inputs
