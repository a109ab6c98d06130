"""Images: uint8 pixels, whatever real values a model is fed for them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from sat_tf.core.tensors import Tensor, in_float32, namespace
from sat_tf.exact.tflite.input_range import INPUT_TYPES, InputRange
from sat_tf.messages import warn
from sat_tf.quantizers.observers import move_averages, over_replicas, tensorflow_of, when_training
from sat_tf.quantizers.protocol import PixelQuantizer, VariableSpec
from sat_tf.quantizers.seen_values import (
    CHECKED_BY,
    TRAINING,
    USUAL,
    SeenValues,
    has_channels,
    misfit,
    pixel_doubt,
)
from sat_tf.quantizers.values import COUNT, Variables

_MOMENTUM = 0.99
_CHECKED_BY = "checked_by"
# The images of a batch that tell whether values are pixels.
_FEW_IMAGES = 4
# The batches that are warned of if their range is another one: a first batch may be all black.
_WARNING_BATCHES = (0.0, 15.0)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ImageQuantizer(PixelQuantizer):
    """Marks the image: uint8 pixels, whose real values are those of an `InputRange`.

    Forward: what the model is fed, x, on the grid of the file, p = (x - shift) / ratio, with its
    channels in the order of the picture. A pixel is on that grid already, so that nothing is
    rounded, and where a pixel stands for real 0, p is x.

    In training it remembers what it is fed, as moving averages: `lowest` and `highest`, a number or
    one for each channel that has a range of its own; `off_grid`, the largest distance from a
    pixel's value in pixels; and `off_usual`, the same for the pixels of each of
    `seen_values.USUAL`. Values that are certainly of another range are warned of once, in the first
    batch or a later one, and so are doubtful ones before; what XLA compiles cannot warn. It also
    remembers, as a place in `seen_values.CHECKED_BY`, what tells that the range is the model's.
    """

    input_type = INPUT_TYPES[0]
    _are_pictures = True  # until `variables` sees the shape
    _told = 0  # a doubt 1, a problem 2

    low: Any = 0.0  # Real value of a pixel of 0; a number, or one for each channel.
    high: Any = 255.0  # Real value of a pixel of 255, likewise.
    reversed_channels: bool = False  # The model is fed the channels in reverse.
    observes: bool = True  # Remember what it is fed.
    compares: bool = False  # Remember `off_usual`, too; False in models saved before it existed.
    is_checked: bool = False  # Remember what has checked the range; False likewise.

    def __post_init__(self) -> None:
        self.low, self.high = (tuple(map(float, np.atleast_1d(v))) for v in (self.low, self.high))
        self.range = InputRange(self.low, self.high, self.reversed_channels)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Makes a quantizer of a config, which in earlier versions was the highest value alone."""
        if "image_max" in config:
            return cls(high=config["image_max"], observes=False)
        return cls(**config)

    @classmethod
    def of_range(cls, found: InputRange) -> "ImageQuantizer":
        """The quantizer of images with this range."""
        marks = {"compares": True, "is_checked": True}
        reverses = found.reversed_channels
        return cls(low=found.low, high=found.high, reversed_channels=reverses, **marks)

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        if COUNT in variables:
            when_training(training, lambda: self._observe(inputs, variables))
        change = self.range.change
        if change.is_none:
            return inputs
        n = namespace(inputs)
        values = in_float32(n, inputs)
        if np.any(change.shift):
            values = values - n.tensor(change.shift.astype(np.float32))
        if np.any(change.ratio != 1.0):
            values = values / n.tensor(change.ratio.astype(np.float32))
        if change.reverses:
            values = n.flip(values, axis=-1)
        return n.cast(values, inputs.dtype) if "float" in str(inputs.dtype) else values

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        self._are_pictures = len(shape) == 4
        if not self.observes:
            return {}
        channels = () if self.range.channels is None else (self.range.channels,)
        shapes = {"lowest": channels, "highest": channels, "off_grid": (), COUNT: ()}
        if self.compares:
            shapes["off_usual"] = (len(USUAL),)
        if self.is_checked:
            shapes[_CHECKED_BY] = ()
        return {name: VariableSpec(shape=of, follows_data=True) for name, of in shapes.items()}

    def _observe(self, inputs: Tensor, variables: Variables) -> Tensor:
        """Takes one batch into what is remembered; returns the number of batches before it."""
        n = namespace(inputs)
        values = in_float32(n, n.stop_gradient(inputs))
        axes = tuple(range(len(values.shape) - 1)) if self.range.channels else None
        # TensorFlow computes in place on a slice that nothing reads any more, even where its memory
        # is the user's array, as batches of a Keras 3 `PyDataset` are; two parts joined are a copy.
        half = _FEW_IMAGES // 2
        few = n.concatenate([values[:half], values[half:_FEW_IMAGES]], axis=0)
        batch = {
            "lowest": n.min(values, axis=axes),
            "highest": n.max(values, axis=axes),
            "off_grid": _off_pixels(few, self.range),
        }
        if self.compares:
            batch["off_usual"] = n.stack([_off_pixels(few, usual) for usual in USUAL])
        batch = over_replicas(batch, variables)
        seen = move_averages(variables, batch, _MOMENTUM)
        if self.is_checked:
            by_training = n.tensor(np.float32(CHECKED_BY.index(TRAINING)))
            variables[_CHECKED_BY].assign(by_training)
        tf = tensorflow_of(variables)
        if tf is None:
            return seen
        from sat_tf.core.on_tensorflow import compiles_with_xla

        if not compiles_with_xla():
            due = tf.reduce_any([tf.equal(seen, count) for count in _WARNING_BATCHES])
            tf.cond(due, lambda: tf.numpy_function(self._warn, [*batch.values()], []), tf.no_op)
        return seen

    def seen(self, variables: Variables) -> SeenValues | None:
        if COUNT not in variables or float(variables[COUNT].numpy()) == 0.0:
            return None
        lowest, highest = variables["lowest"].numpy(), variables["highest"].numpy()
        off_grid = float(variables["off_grid"].numpy())
        usual = variables["off_usual"].numpy() if self.compares else None
        return SeenValues(lowest, highest, off_grid, self._are_pictures, usual)

    def checked_by(self, variables: Variables) -> str:
        variable = variables.get(_CHECKED_BY)
        return CHECKED_BY[0 if variable is None else int(variable.numpy())]

    def forget_check(self, variables: Variables) -> None:
        if _CHECKED_BY in variables:
            variables[_CHECKED_BY].assign(0.0)

    def remember(
        self, seen: SeenValues, variables: Variables, batches: int, *, checked_by: str = ""
    ) -> None:
        if _CHECKED_BY in variables and self.seen(variables) is None:
            variables[_CHECKED_BY].assign(float(CHECKED_BY.index(checked_by)))
        if self.observes:
            values = (seen.lowest, seen.highest, seen.off_grid, float(batches))
            for name, value in zip(("lowest", "highest", "off_grid", COUNT), values, strict=True):
                variables[name].assign(value)
            if self.compares:
                # Values are half a step off the grid of a range that was not compared: none fits.
                unknown = [seen.off_grid if usual == self.range else 0.5 for usual in USUAL]
                variables["off_usual"].assign(unknown if seen.off_usual is None else seen.off_usual)

    def assume_fed(self, variables: Variables, scale: float) -> None:
        """Takes the model to be fed pixels from 0 to 255."""
        ends = (np.asarray(end) for end in (self.range.low, self.range.high))
        low, high = (end[0] if self.range.channels is None else end for end in ends)
        self.remember(SeenValues(low, high, 0.0, self._are_pictures), variables, 1)

    def _warn(
        self,
        lowest: np.ndarray,
        highest: np.ndarray,
        off_grid: np.ndarray,
        off_usual: np.ndarray | None = None,
    ) -> None:
        seen = SeenValues(lowest, highest, float(off_grid), self._are_pictures, off_usual)
        problem, doubt = misfit(seen, self.range), pixel_doubt(seen, self.range)
        severity = 2 if problem else 1 if doubt and not seen.are_pictures else 0
        if severity <= self._told:
            return
        self._told = severity
        warn(
            f"the model is trained on {problem}. export_tflite will refuse it; quantize the "
            "float model with a BitPolicy that says so."
            if problem
            else f"the model is trained on {doubt}."
        )


def _off_pixels(values: Tensor, candidate: InputRange) -> Tensor:
    """How far from a pixel's value the farthest is, in pixels."""
    n = namespace(values)
    if not has_channels(candidate, values.shape[-1]):
        return n.tensor(np.float32(0.5))
    scales, low = (n.tensor(np.asarray(v, np.float32)) for v in (candidate.scales, candidate.low))
    pixels = (values - low) / scales
    return n.max(n.abs(pixels - n.round(pixels)))
