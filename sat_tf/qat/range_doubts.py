"""Whether a model seems to be trained on values of another range than it is fed.

Values that are those of the policy's `input_range` can still be wrong for the model: nothing in its
graph says what it was trained on. Two signs are clear. Layers at its entrance that convert pixels,
such as Rescaling(1 / 255), leave next to nothing of values from 0 to 1, or make hundreds of pixels.
And a classifier that gives every image one class with a probability of 1, to the last bit of
float32, is fed values hundreds of times too large, if it tells the classes apart on smaller ones:
training by cross-entropy has no gradient that would take it there.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node
from sat_tf.qat.layout import inner_layer
from sat_tf.quantizers.input_range import NAMED, PIXELS, InputRange

_USUAL = (PIXELS, InputRange((0.0,), (1.0,)), NAMED["tf"])
# How far apart the pixels 0 and 255 may be behind the layers that convert them. To subtract a mean
# leaves 255; Normalization makes 2 to 25, or 100 of pictures without contrast.
_LEAST_SPAN, _MOST_SPAN = 0.1, 500.0

# A class is certain if its logit leads by this: logarithms of probabilities differ by 87 at most,
# where float32 ends. In a trained classifier the lead of the median image is between the other two.
_CERTAIN, _TOLD_APART = 69.0, (1.5, 30.0)
_TINY = float(np.finfo(np.float32).tiny)
# All of so many images but this percentage are certain.
_MOST_IMAGES, _OTHERS = 64, 10.0
# Other ranges are those that make values so many times smaller.
_FACTOR = 50.0

# The outputs of a network, by the names of its nodes, for images.
Run = Callable[[np.ndarray], Mapping[str, np.ndarray]]


def conversion_doubt(network: Network, node: Node, fed: InputRange) -> str | None:
    """Says that a model's own layers convert other values than it is fed; None if they do not."""
    entrance = _converted(network, node)
    if entrance is None:
        return None
    layer, span = inner_layer(entrance[0].layer).name, _span(entrance, node, fed)
    if span is None or _LEAST_SPAN <= span <= _MOST_SPAN:
        return None
    spans = {other: _span(entrance, node, other) or 0.0 for other in _USUAL}
    fits = [other for other, found in spans.items() if _LEAST_SPAN <= found <= _MOST_SPAN]
    advice = f"input_range={fits[0]} fits that layer" if fits else "check that layer"
    return (
        f"the model's own layer {layer} makes values that lie {span:.3g} apart of "
        f"input_range={fed}, which seems not to be what it was made for: {advice}"
    )


def converting_layer(network: Network, node: Node, fed: InputRange) -> str | None:
    """Returns the name of the model's own layer that converts pixels, and was made for a range."""
    entrance = _converted(network, node)
    if entrance is None or conversion_doubt(network, node, fed) is not None:
        return None
    return str(inner_layer(entrance[0].layer).name)


def _converted(network: Network, node: Node) -> list[Node] | None:
    """The layers behind an input that convert it one after the other; None where none do."""
    found: list[Node] = []
    while True:
        readers = network.consumers(node.name)
        if len(readers) != 1:
            break
        (node,) = readers
        layer = inner_layer(node.layer)
        if layer_kinds.role_of(layer) in (Role.AFFINE, Role.SCALING):
            found.append(node)
        elif not layer_kinds.is_identity(layer, node.arguments):
            break
    return found or None


def _span(layers: list[Node], node: Node, fed: InputRange) -> float | None:
    """How far the ends of a range are apart behind layers, on the widest channel."""
    shape = tuple(size or 1 for size in node.shape)
    if fed.channels not in (None, shape[-1] if shape else None):
        return None
    ends = np.stack([np.broadcast_to(end, shape) for end in (fed.low, fed.high)])
    values: Any = tf.constant(ends, tf.float32)
    for one in layers:
        values = inner_layer(one.layer)(values)
    low, high = tf.cast(values, tf.float32).numpy()
    return float(np.max(np.abs(high - low)))


def certainty_doubt(
    network: Network, images: np.ndarray, run: Run, fed: InputRange, *, is_stated: bool
) -> str | None:
    """Says that a classifier is as certain as float32 allows, and not in another range; else None.

    `run` computes the outputs of the network without rounding anything. Where the policy does not
    state the range, linear outputs are taken for logits too, which nothing tells from coordinates.
    """
    readers = {name: _reader(network, name, is_stated=is_stated) for name in network.outputs}
    smaller = [one for one in _USUAL if _FACTOR * np.max(one.scales) <= np.min(fed.scales)]
    images = images[:_MOST_IMAGES].astype(np.float32)
    if not smaller or not any(readers.values()):
        return None

    def are_certain(images: np.ndarray, percentage: float) -> dict[str, Callable[..., np.ndarray]]:
        outputs = run(images)
        return {
            name: gaps
            for name, gaps in readers.items()
            if gaps is not None and np.percentile(gaps(outputs[name]), percentage) >= _CERTAIN
        }

    # If none of these few is certain, too few of all are.
    few = math.ceil(_OTHERS / 100.0 * (len(images) - 1)) + 1
    certain = are_certain(images[:few], 100.0) and are_certain(images, _OTHERS)
    if not certain:
        return None
    pixels = (images - np.asarray(fed.low)) / fed.scales
    if fed.reversed_channels:
        pixels = pixels[..., ::-1]
    for other in smaller:
        outputs = run(other.fed(pixels))
        apart = [float(np.median(gaps(outputs[name]))) for name, gaps in certain.items()]
        if any(_TOLD_APART[0] <= gap <= _TOLD_APART[1] for gap in apart):
            return (
                f"fed input_range={fed}, the model is as certain of a class as float32 allows, for "
                f"nine in ten images, and fed input_range={other} it is not. It may have been "
                "trained on that: then give quantize_model a BitPolicy with it, and calibrate with "
                f"such images. If it was trained on {fed}, all is well"
                + ("" if is_stated else f", and BitPolicy(input_range={fed}) says so")
            )
    return None


def _reader(
    network: Network, name: str, *, is_stated: bool
) -> Callable[[np.ndarray], np.ndarray] | None:
    """The function that gives of an output by how much a class leads, for each image; or None."""
    maker = network.origin(
        name, lambda node: layer_kinds.role_of(inner_layer(node.layer)).keeps_codes
    )
    layer, size = inner_layer(maker.layer), (network[name].shape or (None,))[-1]
    config = getattr(maker.layer, "quantize_config", None)
    # A quantizer that stands in for a function reads, and gives here, what is in front of it.
    is_before = config is not None and config.output and config.stands_at_activation(layer)
    function = layer_kinds.activation_name(layer)
    if layer_kinds.is_softmax(layer):
        return _leads if is_before else lambda shares: _leads(_logarithms(shares))
    if function == "sigmoid" and size == 1:
        if is_before:
            return lambda logit: _leads(np.concatenate([logit, np.zeros_like(logit)], axis=-1))
        return lambda share: _leads(_logarithms(np.concatenate([share, 1.0 - share], axis=-1)))
    if function == "linear" and not is_stated and size is not None and size > 1:
        return _leads
    return None


def _logarithms(shares: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(shares, _TINY)))


def _leads(logits: np.ndarray) -> np.ndarray:
    """The lead of the largest logit, in the mean over the rows of each image."""
    ordered = np.sort(logits.reshape(len(logits), -1, logits.shape[-1]), axis=-1)
    return np.asarray(np.mean(ordered[..., -1] - ordered[..., -2], axis=1))
