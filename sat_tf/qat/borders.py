"""The borders of images whose range does not hold real 0 as a pixel of all channels.

Layers pad with real 0. Kernels on integers pad with the zero point, which is one pixel for all
channels, the nearest to their zeros: where 0 is no pixel of the range, as in (1, 2), or another one
in each channel, what is around an image is another value in the file, and in the quantized Keras
model, than in the float one. How far that moves the answers is measured here, on the float model.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, call_in_inference
from sat_tf.messages import first_ones
from sat_tf.quantizers.input_range import InputRange

_IMAGES = 4
# Pictures change slowly: neighbours have one value.
_SAME_BESIDE = 3
# Below this share of a standard deviation the rounding of 8 bits is as large.
_SMALL = 0.05


class AnotherBorderWarning(UserWarning):
    """A quantized model pads its images with another value than 0."""


@dataclasses.dataclass(frozen=True)
class Border:
    """What is around the images of an input instead of 0."""

    input: str  # Its name.
    range: InputRange  # Of its pixels.
    layers: tuple[str, ...]  # Those that pad.
    # How far outputs are off by it, the root mean square in standard deviations of the output that
    # is off most.
    error: float

    @property
    def is_small(self) -> bool:
        """Whether rounding alone moves answers as far."""
        return self.error < _SMALL

    def __str__(self) -> str:
        values = [f"{value:.3g}" for value in np.atleast_1d(self.range.change.shift)]
        filled = values[0] if len(set(values)) == 1 else f"({', '.join(values)})"
        return (
            f"{first_ones(self.layers)} pads with {filled} instead of 0, which is no pixel of all "
            f"channels: outputs are off by {self.error:.2g} standard deviations"
        )

    @property
    def fix(self) -> str:
        """What a user can do."""
        return (
            "give the layer padding='valid'; or feed the model images of a range that holds 0; or "
            "leave input_range at (0, 255) and put a Rescaling or a Normalization in front that "
            "makes this range of pixels, which are then rounded to 8 bits from 0 on"
        )


def borders(network: Network, ranges: Mapping[str, InputRange]) -> list[Border]:
    """Returns the borders that are not 0 in the file of a float model, each with its error."""
    found = []
    for name, pixels in ranges.items():
        shape, change = network[name].shape, pixels.change
        fits = pixels.channels is None or (bool(shape) and shape[-1] == pixels.channels)
        if not np.any(change.shift) or change.is_rounding or None in shape or not fits:
            continue
        padded = _Padded(network, name, np.asarray(change.shift, np.float32))
        if padded.layers:
            images = {
                other: _images(network[other].shape, ranges.get(other)) for other in network.inputs
            }
            plain, moved = padded.run(images, moves=False), padded.run(images, moves=True)
            errors = []
            for made, expected in zip(moved, plain, strict=True):
                deviation = float(np.std(expected))
                error = float(np.sqrt(np.mean((made - expected) ** 2)))
                errors.append(error / deviation if deviation else 0.0)
            found.append(Border(name, pixels, tuple(padded.layers), max(errors)))
    return found


def _images(shape: tuple[int | None, ...], pixels: InputRange | None) -> tf.Tensor:
    """Coarse noise, of the range of an input if that is images."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (_IMAGES, *(size or 1 for size in shape)), np.uint8)
    for axis in range(1, len(shape)):
        coarse = np.repeat(coarse, _SAME_BESIDE, axis=axis).take(range(shape[axis - 1] or 1), axis)
    values = coarse / np.float32(255.0) if pixels is None else pixels.fed(coarse)
    return tf.constant(values, tf.float32)


class _Padded:
    """A float model, on images as they are or with another border.

    The layers that pad the image are known by their names, `layers`.
    """

    def __init__(self, network: Network, image: str, value: np.ndarray) -> None:
        self._network = network
        # What stands for 0 in the tensors that are the image, moved or not.
        self._values: dict[str, np.ndarray] = {image: value}
        self.layers: list[str] = []
        ones = {image: tf.ones((1, *network[image].shape))}
        for node in network:
            value_read = self._values.get(node.inputs[0]) if len(node.inputs) == 1 else None
            if value_read is None:
                continue
            if layer_kinds.role_of(node.layer) in (Role.MOVEMENT, Role.IDENTITY):
                ones[node.name] = call_in_inference(node, node.layer, [ones[node.inputs[0]]])
                if float(tf.reduce_min(ones[node.name])) < 1.0:
                    self.layers.append(node.name)
                alike = value_read.size == 1 or np.all(value_read == value_read.flat[0])
                if alike or layer_kinds.find_support(node.layer).keeps_channels:
                    self._values[node.name] = value_read.reshape(-1)[:1] if alike else value_read
            elif any(map(any, _margins(node, network[node.inputs[0]].shape))):
                self.layers.append(node.name)

    def run(self, images: Mapping[str, tf.Tensor], *, moves: bool) -> list[np.ndarray]:
        """Returns the outputs, where it moves with the other border."""
        tensors = {name: tf.cast(image, self._network[name].type) for name, image in images.items()}
        for node in self._network:
            if node.name in tensors:
                continue
            read = [tensors[name] for name in node.inputs]
            value = self._values.get(node.inputs[0]) if moves and len(read) == 1 else None
            tensors[node.name] = (
                call_in_inference(node, node.layer, read)
                if value is None
                else self._moved(node, read[0], value)
            )
            for name in self._network.last_read_by(node):
                if name not in self._network.outputs:
                    del tensors[name]
        return [tensors[name].numpy().astype(np.float64) for name in self._network.outputs]

    def _moved(self, node: Node, image: tf.Tensor, value: np.ndarray) -> tf.Tensor:
        """A layer on an image with another border."""
        if node.name in self._values:  # it moves values, and fills in 0
            made = call_in_inference(node, node.layer, [image - value])
            return made + value
        margins = _margins(node, image.shape[1:])
        if not any(map(any, margins)):
            return call_in_inference(node, node.layer, [image])
        filled = tf.pad(image - value, [(0, 0), *margins, (0, 0)]) + value
        before, node.layer.padding = node.layer.padding, "valid"
        try:
            return call_in_inference(node, node.layer, [filled])
        finally:
            node.layer.padding = before


def _margins(node: Node, shape: tuple[int | None, ...]) -> list[tuple[int, int]]:
    """How many places a convolution pads in front and behind, for each axis but the channels."""
    layer, kernel = node.layer, layer_kinds.quantized_kernel(node.layer)
    padding = getattr(layer, "padding", "valid")
    if kernel is None or kernel.transposed or padding not in ("same", "causal"):
        return []
    margins = []
    sizes = zip(shape, layer.kernel_size, layer.strides, layer.dilation_rate, strict=False)
    for length, size, stride, dilation in sizes:
        reach, length = (size - 1) * dilation, int(length or 0)
        lacking = max((-(-length // stride) - 1) * stride + reach + 1 - length, 0)
        margins.append((reach, 0) if padding == "causal" else (lacking // 2, -(-lacking // 2)))
    return margins
