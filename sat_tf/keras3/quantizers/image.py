"""Images: uint8 pixels, whatever real values a model is fed; as `sat_tf.quantizers.image`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import backend, ops

from sat_tf.keras3.core.precision import in_float32
from sat_tf.keras3.quantizers.observers import move_averages
from sat_tf.keras3.quantizers.protocol import Quantizer, Variables, VariableSpec
from sat_tf.quantizers.constructors import OfImage
from sat_tf.quantizers.input_range import InputRange
from sat_tf.quantizers.seen_values import USUAL, has_channels
from sat_tf.quantizers.settings import COUNT, FEW_IMAGES, IMAGE_MOMENTUM


class ImageQuantizer(OfImage, Quantizer):
    """Marks the image: uint8 pixels, whose real values are those of an `InputRange`.

    Forward: what the model is fed, x, on the grid of the file, p = (x - shift) / ratio, with its
    channels in the order of the picture; where a pixel stands for real 0, p is x.

    In training it remembers what it is fed, as the original does: `lowest` and `highest`,
    `off_grid` and `off_usual`. It does not warn of a misfit; the export refuses one.
    """

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """`lowest`, `highest`, `off_grid`, `observations` and `off_usual`."""
        del shape
        if not self.observes:
            return {}
        channels = () if self.range.channels is None else (self.range.channels,)
        shapes = {"lowest": channels, "highest": channels, "off_grid": (), COUNT: ()}
        if self.compares:
            shapes["off_usual"] = (len(USUAL),)
        return {name: VariableSpec(shape=of, follows_data=True) for name, of in shapes.items()}

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """What the model is fed as the file has it, in the type of `inputs`."""
        if training and COUNT in variables:
            self._observe(inputs, variables)
        change = self.range.change
        if change.is_none:
            return inputs
        values = in_float32(inputs)
        if np.any(change.shift):
            values = values - ops.convert_to_tensor(change.shift, "float32")
        if np.any(change.ratio != 1.0):
            values = values / ops.convert_to_tensor(change.ratio, "float32")
        if change.reverses:
            values = ops.flip(values, axis=-1)
        given = backend.standardize_dtype(inputs.dtype)
        return ops.cast(values, given) if "float" in given else values

    def _observe(self, inputs: Any, variables: Variables) -> None:
        """Takes one batch into what is remembered."""
        values = in_float32(ops.stop_gradient(inputs))
        axes = tuple(range(len(values.shape) - 1)) if self.range.channels else None
        few = values[:FEW_IMAGES]
        batch = {
            "lowest": ops.min(values, axis=axes),
            "highest": ops.max(values, axis=axes),
            "off_grid": _off_pixels(few, self.range),
        }
        if self.compares:
            batch["off_usual"] = ops.stack([_off_pixels(few, usual) for usual in USUAL])
        move_averages(variables, batch, IMAGE_MOMENTUM)


def _off_pixels(values: Any, found: InputRange) -> Any:
    """How far from a pixel's value the farthest is, in pixels."""
    if not has_channels(found, values.shape[-1]):
        return ops.convert_to_tensor(0.5, "float32")
    scales, low = (
        ops.convert_to_tensor(np.asarray(v, np.float32)) for v in (found.scales, found.low)
    )
    pixels = (values - low) / scales
    return ops.max(ops.abs(pixels - ops.round(pixels)))
