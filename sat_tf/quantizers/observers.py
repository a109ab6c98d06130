"""Observed values: ranges of outputs, of what float layers read and of inputs, and images."""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from sat_tf.core import grid
from sat_tf.core.asymmetric import quantize_observed
from sat_tf.core.tensor_ops import Tensor, in_float32, namespace
from sat_tf.exact.tflite.input_range import INPUT_TYPES, InputRange
from sat_tf.messages import warn
from sat_tf.quantizers.protocol import PixelQuantizer, Quantizer, VariableSpec
from sat_tf.quantizers.seen_values import (
    CHECKED_BY,
    TRAINING,
    USUAL,
    SeenValues,
    has_channels,
    misfit,
    pixel_doubt,
)
from sat_tf.quantizers.values import COUNT, ENDS, CodeRange, Variables

# The share of the largest values that tells how a distribution ends, and how many times as many
# values its end is extrapolated to.
_TAIL_SHARE = 0.1
_TIMES_AS_MANY = 30.0
_MOMENTUM = 0.99
_CHECKED_BY = "checked_by"
# The images of a batch that tell whether values are pixels.
_FEW_IMAGES = 4
# The batches that are warned of if their range is another one: a first batch may be all black.
_WARNING_BATCHES = (0.0, 15.0)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class RangeObserver(Quantizer):
    """Remembers the range of a tensor, for the codes of the export.

    `sat_tf.calibrate` sets the range, `lowest` and `highest`, to what its images let expect. In
    training it takes in the extremes of every batch, and never shrinks: a mean over batches would
    not be the range of any. `observations` counts the batches; 0 means never observed. The range
    always holds zero. Batches with infinite or NaN values leave it as it is.

    Forward and backward: the tensor itself; or with `rounds`, `asymmetric.quantize_observed`, once
    something was observed.
    """

    observes_range: ClassVar[bool] = True

    rounds: bool = False  # Whether it rounds the tensor, as other layers read what the file rounds.
    # Whether training leaves the tensor float: a stream that the policy leaves float is rounded by
    # the file alone, and by Keras in inference, which has to agree with the file.
    trains_float: bool = False
    # Whether training leaves the range as calibration has set it: that of a state, which is one
    # range at the input and at the output.
    is_fixed: bool = False
    num_bits: int = 8  # The bits of the codes in files, 8 or 16.

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Makes an observer of a config, which in earlier versions has an unused momentum."""
        return cls(**{name: value for name, value in config.items() if name != "momentum"})

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor; marks only where set, as older releases lack them."""
        config = super().get_config()
        unset = (name for name in ("trains_float", "is_fixed", "fed_by") if not config.get(name))
        for name in unset:
            config.pop(name, None)
        if self.num_bits == 8:
            config.pop("num_bits", None)
        return config

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        return {name: VariableSpec(follows_data=True) for name in (*ENDS, COUNT)}

    def assume_fed(self, variables: Variables, scale: float) -> None:
        self.remember(-scale, scale, variables, 1)

    def remember(self, lowest: float, highest: float, variables: Variables, batches: int) -> None:
        """Replaces the range."""
        for name, value in zip((*ENDS, COUNT), (lowest, highest, float(batches)), strict=True):
            variables[name].assign(value)

    def code_range(self, variables: Variables) -> CodeRange | None:
        """The codes of the range; None where nothing but zeros was observed."""
        low, high = (np.float64(variables[name].numpy()) for name in ENDS)
        if high - low < grid.SMALLEST_RANGE:
            return None
        if self.num_bits == grid.WIDE_BITS:
            scale = np.float32(grid.wide_scale(low, high, np.maximum))
            return CodeRange(scale, np.float32(-grid.LARGEST_INT16 - 1), 2 * grid.LARGEST_INT16 + 1)
        scale, zero_point = grid.scale_and_zero_point(low, high, np.rint)
        return CodeRange(np.float32(scale), np.float32(-128.0 - zero_point), 255)

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        if not self.is_fixed:
            when_training(training, lambda: self._observe(inputs, variables))
        is_known = training is None or isinstance(training, bool | int)
        if not self.rounds or (self.trains_float and is_known and training):
            return inputs
        n = namespace(inputs)
        lowest, highest = (n.tensor(variables[name]) for name in ENDS)
        rounded = quantize_observed(inputs, lowest, highest, self.num_bits)
        if self.trains_float and not is_known:
            return n.where(n.cast(training, "bool"), inputs, rounded)
        return rounded

    def _observe(self, inputs: Tensor, variables: Variables) -> Tensor:
        """Takes one batch into the range; returns the number of batches so far."""
        n = namespace(inputs)
        values = in_float32(n, n.stop_gradient(inputs))
        ends = {"lowest": n.min(values), "highest": n.max(values)}
        lowest, highest = over_replicas(ends, variables).values()
        finite = n.isfinite(lowest) & n.isfinite(highest)
        before, after = (n.tensor(variables[name]) for name in ENDS)
        variables["lowest"].assign(n.where(finite, n.minimum(lowest, before), before))
        variables["highest"].assign(n.where(finite, n.maximum(highest, after), after))
        count = n.tensor(variables[COUNT]) + n.cast(finite, "float32")
        variables[COUNT].assign(count)
        return count


class InputQuantizer(RangeObserver):
    """Quantizes an input that is no image to 8 or 16 bits; files take codes, or "float32".

    A state is `fed_by` the output of that name. Any input that has the grid of a state `is_fixed`.
    """

    def __init__(
        self, *, input_type: str, fed_by: str = "", is_fixed: bool = False, num_bits: int = 8
    ) -> None:
        super().__init__(rounds=True, is_fixed=is_fixed, num_bits=num_bits)
        self.input_type, self.fed_by = input_type, fed_by


def when_training(training: Any, observe: Callable[[], Tensor]) -> None:
    """Calls a function where a layer is called in training, which a tensor may say."""
    if isinstance(training, bool | int):
        if training:
            observe()
    elif training is not None:
        n = namespace(training)
        n.cond(n.cast(training, "bool"), observe, lambda: n.tensor(0.0))


def tensorflow_of(variables: Variables) -> ModuleType | None:
    """TensorFlow, where the variables of an observer are those of tf_keras."""
    tensorflow = sys.modules.get("tensorflow")
    is_own = tensorflow is not None and isinstance(variables[COUNT], tensorflow.Variable)
    return tensorflow if is_own else None


def over_replicas(batch: Mapping[str, Tensor], variables: Variables) -> dict[str, Tensor]:
    """The values of a whole batch, from those of each replica's share on all devices and workers.

    Every replica assigns its own variables, which are equal then, so that any one is saved bit for
    bit. The largest of each value is taken, and the smallest of "lowest".
    """
    tf = tensorflow_of(variables)
    context = None if tf is None else tf.distribute.get_replica_context()
    if tf is None or context is None or context.num_replicas_in_sync == 1:
        return dict(batch)
    n = namespace(batch["lowest"])
    signs = {name: -1.0 if name == "lowest" else 1.0 for name in batch}
    flat = tf.concat([n.reshape(signs[name] * v, [-1]) for name, v in batch.items()], axis=0)
    largest = n.max(context.all_gather(flat[None], axis=0), axis=0)
    pieces = tf.split(largest, [value.shape.num_elements() for value in batch.values()])
    return {
        name: signs[name] * n.reshape(piece, value.shape)
        for (name, value), piece in zip(batch.items(), pieces, strict=True)
    }


def move_averages(variables: Variables, batch: Mapping[str, Tensor], momentum: float) -> Tensor:
    """Takes finite values of a batch into averages; returns how many batches there were before."""
    n = namespace(batch["lowest"])
    finite = n.all(n.stack([n.all(n.isfinite(value)) for value in batch.values()]))
    seen = n.tensor(variables[COUNT])
    share = n.maximum(1.0 / (seen + 1.0), 1.0 - momentum)
    for name, value in batch.items():
        before = n.tensor(variables[name])
        variables[name].assign(before + n.where(finite, (value - before) * share, 0.0))
    variables[COUNT].assign(seen + n.cast(finite, "float32"))
    return seen


def expected_largest(values: np.ndarray) -> float:
    """The largest value that is expected of 30 times as many as were seen, and at least 0.

        max(v) + b ln 30,  b = mean of v - t over the tenth of the values above t

    An end that falls off exponentially beyond t, the peaks-over-threshold method, has its largest
    value there. Values that all end at one bound, like probabilities, leave it where it is.
    """
    ordered = np.sort(values[np.isfinite(values)].astype(np.float64))
    if not ordered.size or ordered[-1] <= 0.0:
        return 0.0
    count = min(math.ceil(_TAIL_SHARE * ordered.size), ordered.size - 1)
    excess = np.mean(ordered[-count:] - ordered[-count - 1]) if count else 0.0
    return float(ordered[-1] + excess * math.log(_TIMES_AS_MANY))


# -- images ----------------------------------------------------------------------------------------


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
        """Makes a quantizer from a config; earlier versions saved the highest value alone."""
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
