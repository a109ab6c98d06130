"""Images: uint8 pixels, whatever real values a model is fed for them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.on_tensorflow import compiles_with_xla
from sat_tf.messages import warn
from sat_tf.quantizers.constructors import OfImage
from sat_tf.quantizers.input_range import INPUT_TYPES, InputRange
from sat_tf.quantizers.observers import (
    add_observed,
    move_averages,
    over_replicas,
    when_training,
)
from sat_tf.quantizers.protocol import PixelQuantizer, register_quantizer
from sat_tf.quantizers.seen_values import USUAL, SeenValues, has_channels, misfit, pixel_doubt
from sat_tf.quantizers.settings import COUNT, FEW_IMAGES, IMAGE_MOMENTUM

# When values of another range are warned of: a first batch may be all black.
_WARNING_BATCHES = (0.0, 15.0)


@register_quantizer
class ImageQuantizer(OfImage, PixelQuantizer):
    """Marks the image: uint8 pixels, whose real values are those of an `InputRange`.

    Forward: what the model is fed, x, on the grid of the file, p = (x - shift) / ratio, with its
    channels in the order of the picture; see `input_range`. A pixel is on that grid already, so
    that nothing is rounded, and where a pixel stands for real 0, p is x.

    In training it remembers what it is fed: `lowest` and `highest`, a number or one for each
    channel that has a range of its own, and `off_grid`, the largest distance from a pixel's value
    in pixels, are moving averages over batches as those of `RangeObserver`; so is `off_usual`, the
    same for the pixels of each of `seen_values.USUAL`. Values that are
    certainly of another range (`seen_values.misfit`) are warned of, in the first batch and some
    later ones; what XLA compiles cannot warn.

    Args:
        low: real value of a pixel of 0; a number, or one for each channel.
        high: real value of a pixel of 255, likewise.
        reversed_channels: the model is fed the channels in reverse.
        observes: remember what it is fed.
        compares: remember `off_usual` too; False in saved models of before there was one.
        image_max: an older spelling of low=0, high=image_max, observes=False, in saved models.
    """

    input_type = INPUT_TYPES[0]
    _are_pictures = True  # until it is built

    @classmethod
    def of_range(cls, found: InputRange) -> "ImageQuantizer":
        """The quantizer of images with this range."""
        return cls(
            low=found.low,
            high=found.high,
            reversed_channels=found.reversed_channels,
            compares=True,
        )

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """What the model is fed as the file has it, in the type of `inputs`."""
        del kwargs
        if COUNT in weights:
            when_training(training, lambda: self.observe(inputs, weights))
        change = self.range.change
        if change.is_none:
            return inputs
        values = tf.cast(inputs, tf.float32)
        if np.any(change.shift):
            values -= change.shift.astype(np.float32)
        if np.any(change.ratio != 1.0):
            values /= change.ratio.astype(np.float32)
        if change.reverses:
            values = tf.reverse(values, axis=[-1])
        return tf.cast(values, inputs.dtype) if inputs.dtype.is_floating else values

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the variables `lowest`, `highest`, `off_grid`, `off_usual` and `observations`."""
        del name
        self._are_pictures = len(tensor_shape) == 4
        if not self.observes:
            return {}
        shape = () if self.range.channels is None else (self.range.channels,)
        ends = {name: add_observed(layer, name, shape) for name in ("lowest", "highest")}
        found = {**ends, **{name: add_observed(layer, name) for name in ("off_grid", COUNT)}}
        if self.compares:
            found["off_usual"] = add_observed(layer, "off_usual", (len(USUAL),))
        return found

    def observe(self, inputs: tf.Tensor, weights: dict[str, Any]) -> tf.Tensor:
        """Takes one batch into what is remembered; returns how many there were before."""
        values = tf.cast(tf.stop_gradient(inputs), tf.float32)
        axes = list(range(values.shape.rank - 1)) if self.range.channels else None
        few = values[:FEW_IMAGES]
        batch = {
            "lowest": tf.reduce_min(values, axis=axes),
            "highest": tf.reduce_max(values, axis=axes),
            "off_grid": _off_pixels(few, self.range),
        }
        if self.compares:
            batch["off_usual"] = tf.stack([_off_pixels(few, usual) for usual in USUAL])
        batch = over_replicas(batch)
        seen = move_averages(weights, batch, IMAGE_MOMENTUM)
        if not compiles_with_xla():
            arguments = [*batch.values()]
            due = tf.reduce_any([tf.equal(seen, count) for count in _WARNING_BATCHES])
            tf.cond(due, lambda: tf.numpy_function(self._warn, arguments, []), tf.no_op)
        return seen

    def seen(self, weights: Mapping[str, Any]) -> SeenValues | None:
        """What it remembers; None where it was never fed in training, or remembers nothing."""
        if COUNT not in weights or float(weights[COUNT].numpy()) == 0.0:
            return None
        lowest, highest = weights["lowest"].numpy(), weights["highest"].numpy()
        off_grid = float(weights["off_grid"].numpy())
        usual = weights["off_usual"].numpy() if self.compares else None
        return SeenValues(lowest, highest, off_grid, self._are_pictures, usual)

    def remember(self, seen: SeenValues, weights: Mapping[str, Any], batches: int) -> None:
        """Replaces what it remembers."""
        if self.observes:
            values = (seen.lowest, seen.highest, seen.off_grid, float(batches))
            for name, value in zip(("lowest", "highest", "off_grid", COUNT), values, strict=True):
                weights[name].assign(value)
            if self.compares:
                # Where it is not known, the values are on no pixels of another range.
                unknown = [seen.off_grid if found == self.range else 0.5 for found in USUAL]
                weights["off_usual"].assign(unknown if seen.off_usual is None else seen.off_usual)

    def assume_fed(self, weights: Mapping[str, Any], scale: float) -> None:
        """Pixels from 0 to 255."""
        del scale
        ends = (np.asarray(end) for end in (self.range.low, self.range.high))
        low, high = (end[0] if self.range.channels is None else end for end in ends)
        self.remember(SeenValues(low, high, 0.0, self._are_pictures), weights, 1)

    def _warn(
        self,
        lowest: np.ndarray,
        highest: np.ndarray,
        off_grid: np.ndarray,
        off_usual: np.ndarray | None = None,
    ) -> None:
        seen = SeenValues(lowest, highest, float(off_grid), self._are_pictures, off_usual)
        problem, doubt = misfit(seen, self.range), pixel_doubt(seen, self.range)
        if problem:
            warn(
                f"the model is trained on {problem}. export_tflite will refuse it; quantize the "
                "float model with a BitPolicy that says so."
            )
        elif doubt and not seen.are_pictures:
            warn(f"the model is trained on {doubt}.")


def _off_pixels(values: tf.Tensor, found: InputRange) -> tf.Tensor:
    """How far from a pixel's value the farthest is, in pixels."""
    if not has_channels(found, values.shape[-1]):
        return tf.constant(0.5)
    scales, low = (tf.constant(v, tf.float32) for v in (found.scales, found.low))
    pixels = (values - low) / scales
    return tf.reduce_max(tf.abs(pixels - tf.round(pixels)))
