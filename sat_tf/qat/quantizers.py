"""TFMOT quantizers: they hold settings and make variables; the arithmetic is in `sat_tf.core`."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.core import dorefa, pact, rescale
from sat_tf.core.compiler import compiles_with_xla
from sat_tf.core.observed import quantize_observed
from sat_tf.messages import warn
from sat_tf.qat.constraints import AtLeast
from sat_tf.qat.input_ranges import InputRange
from sat_tf.qat.seen_values import USUAL, SeenValues, has_channels, misfit, pixel_doubt

_register = keras.utils.register_keras_serializable(package="sat_tf")

SMALLEST_CLIPPING_LEVEL = 1e-3
# Among the variables a quantizer is called with, where its layer has a floor under its bits.
BIT_FLOOR = "bit_floor"
# The variable of observers that counts batches; 0 means never observed.
COUNT = "observations"

_IMAGE_MOMENTUM = 0.99
# Whether values are pixels is told from so many images of a batch.
_FEW_IMAGES = 4
# When values of another range are warned of: a first batch may be all black.
_WARNING_BATCHES = (0.0, 15.0)


class SatQuantizer(tfmot.quantization.keras.quantizers.Quantizer):
    """What all quantizers of sat-tf share: they are equal when their settings are."""

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes no variables."""
        del tensor_shape, name, layer
        return {}

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((type(self), repr(sorted(self.get_config().items()))))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({settings})"


@_register
class DorefaQuantizer(SatQuantizer):
    """Latent weights to effective weights: clamp, quantize, rescale (Eq. 5 to 10).

    Forward: Ξ = gain · c · Q, with Q from `dorefa.quantize_weights` (Ŵ where `num_bits` is None)
    and c from `rescale.rescale_factor`; c = 1 where `rescale` is None, for layers with
    BatchNormalization right behind them. Backward: as documented there; gain and c are constants.
    The gain is the fixed, positive variable `rescale_gain`, which gives a pretrained layer's
    weights the size back that the clamp takes from them; 1 is the paper.

    Args:
        num_bits: 1 to 8, or None to clamp and rescale only.
        grid: a name of `grid.GRIDS`, or "auto".
        range_axes: kernel axes with a maximum of their own; () for one maximum a layer.
        detach_max: no gradient through the maximum.
        rescale: a name of `rescale.METHODS`, or None.
        fan_out: the layer's n̂, for the rescaling.
        initial_gain: where the gain starts.
        gain_axes: kernel axes with gains of their own. None, the paper: as `range_axes` where there
            is a rescaling, and no variable where there is none.
    """

    def __init__(
        self,
        *,
        num_bits: int | None,
        grid: str = "auto",
        range_axes: tuple[int, ...] = (),
        detach_max: bool = False,
        rescale: str | None = None,
        fan_out: int = 1,
        initial_gain: float = 1.0,
        gain_axes: tuple[int, ...] | None = None,
    ) -> None:
        self.num_bits = num_bits
        self.grid = grid
        self.range_axes = tuple(range_axes)
        self.detach_max = detach_max
        self.rescale = rescale
        self.fan_out = fan_out
        self.initial_gain = initial_gain
        self.gain_axes = None if gain_axes is None else tuple(gain_axes)

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the variable `rescale_gain`, where there is a gain."""
        del name
        axes = self.gain_axes
        if axes is None:
            if self.rescale is None:
                return {}
            axes = self.range_axes
        keep = {axis % len(tensor_shape) for axis in axes}
        shape = [size if axis in keep else 1 for axis, size in enumerate(tensor_shape)]
        gain = layer.add_weight(
            name="rescale_gain",
            shape=shape if axes else (),
            dtype=tf.float32,
            initializer=keras.initializers.Constant(self.initial_gain),
            trainable=False,
        )
        return {"rescale_gain": gain}

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """Effective weights from latent weights, both in float32."""
        del training, kwargs
        if self.num_bits is None:
            values = self.clamp(inputs)
        else:
            bits = bits_of(self.num_bits, weights)
            values = dorefa.quantize_weights(
                inputs, bits, self.grid, self.detach_max, range_axes=self.range_axes
            )
        gain = weights.get("rescale_gain")
        if gain is None:
            return values
        if self.rescale is None:
            return values * gain
        return values * (self.factor(values, inputs) * gain)

    def clamp(self, latent: tf.Tensor) -> tf.Tensor:
        """The clamped weights Ŵ."""
        return dorefa.clamp_weights(latent, self.detach_max, range_axes=self.range_axes)

    def factor(self, values: tf.Tensor, latent: tf.Tensor) -> tf.Tensor:
        """The rescaling constant c of these clamped or quantized weights; 1 without rescaling."""
        return rescale.rescale_factor(
            values,
            self.fan_out,
            self.rescale or "none",
            latent=latent,
            range_axes=self.range_axes,
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "grid": self.grid,
            "range_axes": list(self.range_axes),
            "detach_max": self.detach_max,
            "rescale": self.rescale,
            "fan_out": self.fan_out,
            "initial_gain": self.initial_gain,
            "gain_axes": None if self.gain_axes is None else list(self.gain_axes),
        }


class ClippingQuantizer(SatQuantizer):
    """A quantizer with a trainable clipping level.

    Attributes:
        signed: whether what it quantizes can be negative.
    """

    signed: bool

    def __init__(
        self,
        *,
        num_bits: int,
        initial_clipping_level: float = 8.0,
        gradient: str = "calibrated",
        ceiling: float | None = None,
        rate: float = 1.0,
    ) -> None:
        """See the subclasses.

        Args:
            num_bits: bits of the codes.
            initial_clipping_level: where the trainable `clipping_level` starts.
            gradient: "calibrated" or "pact".
            ceiling: max_value of the rectifier it replaces; no clipping level taken from data or
                from a policy starts above it.
            rate: factor on the gradient of the clipping level, above 0.
        """
        self.num_bits = num_bits
        self.initial_clipping_level = initial_clipping_level
        self.gradient = gradient
        self.ceiling = ceiling
        self.rate = rate

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the trainable scalar `clipping_level`, at least 1e-3 and without weight decay."""
        del tensor_shape, name
        start = self.initial_clipping_level
        if self.ceiling is not None:
            start = max(min(start, self.ceiling), SMALLEST_CLIPPING_LEVEL)
        level = _add_scalar(
            layer,
            "clipping_level",
            keras.initializers.Constant(start),
            trainable=True,
            constraint=AtLeast(SMALLEST_CLIPPING_LEVEL),
        )
        return {"clipping_level": level}

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "initial_clipping_level": self.initial_clipping_level,
            "gradient": self.gradient,
            "ceiling": self.ceiling,
            "rate": self.rate,
        }

    @abc.abstractmethod
    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What the tensor would be without rounding, and with no clipping to the level."""

    def level(self, weights: dict[str, Any]) -> tf.Tensor:
        """The clipping level, which learns at its own rate."""
        level = weights["clipping_level"]
        return level if self.rate == 1.0 else pact.learning_at_rate(level, self.rate)


@_register
class PactQuantizer(ClippingQuantizer):
    """Rectifies, clips and quantizes to 0..2^b - 1: `pact.quantize_activation` (Eq. 11 to 13)."""

    signed = False

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        level, bits = self.level(weights), bits_of(self.num_bits, weights)
        return pact.quantize_activation(inputs, level, bits, self.gradient)

    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What it would be without rounding and with no clipping but the rectifier's own."""
        rectified = tf.nn.relu(inputs)
        if self.ceiling is None:
            return rectified
        return tf.minimum(rectified, tf.cast(self.ceiling, inputs.dtype))


@_register
class StreamQuantizer(ClippingQuantizer):
    """Clips and quantizes a tensor that can be negative: `pact.quantize_stream`."""

    signed = True

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        level, bits = self.level(weights), bits_of(self.num_bits, weights)
        return pact.quantize_stream(inputs, level, bits, self.gradient)

    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What it would be without clipping and rounding: its input."""
        return inputs


@_register
class ImageQuantizer(SatQuantizer):
    """Marks the image: uint8 pixels, whose real values are those of an `InputRange`.

    Forward: what the model is fed, x, on the grid of the file, p = (x - shift) / ratio, with its
    channels in the order of the picture; see `sat_tf.qat.input_ranges`. A pixel is on that grid
    already, so that nothing is rounded, and where a pixel stands for real 0, p is x.

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

    def __init__(
        self,
        *,
        low: float | Sequence[float] = 0.0,
        high: float | Sequence[float] = 255.0,
        reversed_channels: bool = False,
        observes: bool = True,
        compares: bool = False,
        image_max: float | None = None,
    ) -> None:
        if image_max is not None:
            low, high, observes = 0.0, image_max, False
        self.range = InputRange(_as_floats(low), _as_floats(high), reversed_channels)
        self.observes = observes
        self.compares = compares
        self._are_pictures = True

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
            _when_training(training, lambda: self.observe(inputs, weights))
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
        ends = {name: _add_observed(layer, name, shape) for name in ("lowest", "highest")}
        found = {**ends, **{name: _add_observed(layer, name) for name in ("off_grid", COUNT)}}
        if self.compares:
            found["off_usual"] = _add_observed(layer, "off_usual", (len(USUAL),))
        return found

    def observe(self, inputs: tf.Tensor, weights: dict[str, Any]) -> tf.Tensor:
        """Takes one batch into what is remembered; returns how many there were before."""
        values = tf.cast(tf.stop_gradient(inputs), tf.float32)
        axes = list(range(values.shape.rank - 1)) if self.range.channels else None
        few = values[:_FEW_IMAGES]
        batch = {
            "lowest": tf.reduce_min(values, axis=axes),
            "highest": tf.reduce_max(values, axis=axes),
            "off_grid": _off_pixels(few, self.range),
        }
        if self.compares:
            batch["off_usual"] = tf.stack([_off_pixels(few, usual) for usual in USUAL])
        seen = _move_averages(weights, batch, _IMAGE_MOMENTUM)
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
                unknown = np.full(len(USUAL), 0.5)
                weights["off_usual"].assign(unknown if seen.off_usual is None else seen.off_usual)

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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "low": list(self.range.low),
            "high": list(self.range.high),
            "reversed_channels": self.range.reversed_channels,
            "observes": self.observes,
            "compares": self.compares,
        }


@_register
class RangeObserver(SatQuantizer):
    """Passes a tensor through and remembers its range, for the 8-bit codes of the export.

    In training, `lowest` and `highest` follow the batch's minimum and maximum: the mean over the
    first batches, then a moving average. `observations` counts the batches; 0 means never observed.
    The range always holds zero. Infinite and NaN values leave it as it is.

    Args:
        momentum: weight of the past in the moving average, in [0, 1).
    """

    def __init__(self, *, momentum: float = 0.99) -> None:
        self.momentum = momentum

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the variables `lowest`, `highest` and `observations`."""
        del tensor_shape, name
        return {name: _add_observed(layer, name) for name in ("lowest", "highest", COUNT)}

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """Returns `inputs`; in training, the range has taken them in."""
        del kwargs
        _when_training(training, lambda: self.observe(inputs, weights))
        return inputs

    def observe(self, inputs: tf.Tensor, weights: dict[str, Any]) -> tf.Tensor:
        """Takes one batch into the range; returns how many there were before."""
        values = tf.cast(tf.stop_gradient(inputs), tf.float32)
        lowest, highest = tf.reduce_min(values), tf.reduce_max(values)
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            # The range of the whole batch, so that it does not depend on the number of devices.
            pieces = context.all_gather(tf.stack([lowest, highest])[None], axis=0)
            lowest, highest = tf.reduce_min(pieces[:, 0]), tf.reduce_max(pieces[:, 1])
        batch = {"lowest": tf.minimum(lowest, 0.0), "highest": tf.maximum(highest, 0.0)}
        return _move_averages(weights, batch, self.momentum)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"momentum": self.momentum}


def _off_pixels(values: tf.Tensor, found: InputRange) -> tf.Tensor:
    """How far from a pixel's value the farthest is, in pixels."""
    if not has_channels(found, values.shape[-1]):
        return tf.constant(0.5)
    steps, low = (tf.constant(v, tf.float32) for v in (found.steps, found.low))
    pixels = (values - low) / steps
    return tf.reduce_max(tf.abs(pixels - tf.round(pixels)))


def _as_floats(value: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, np.atleast_1d(value)))


def _when_training(training: Any, observe: Callable[[], tf.Tensor]) -> None:
    """Calls a function where a layer is called in training, which a tensor may say."""
    if isinstance(training, bool | int):
        if training:
            observe()
    elif training is not None:
        tf.cond(tf.cast(training, tf.bool), observe, lambda: tf.constant(0.0))


def _add_observed(layer: keras.layers.Layer, name: str, shape: tuple[int, ...] = ()) -> tf.Variable:
    # Like the statistics of BatchNormalization: every replica keeps its own, and their mean is
    # what is read and saved.
    return layer.add_weight(
        name=name,
        shape=shape,
        dtype=tf.float32,
        initializer=keras.initializers.Zeros(),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


def _move_averages(
    weights: Mapping[str, Any], batch: Mapping[str, tf.Tensor], momentum: float
) -> tf.Tensor:
    """Takes the values of a batch, if all are finite, into averages: the mean over the first ones.

    Returns:
        How many batches there were before.
    """
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in batch.values()])
    seen = tf.convert_to_tensor(weights[COUNT])
    share = tf.where(finite, tf.maximum(1.0 / (seen + 1.0), 1.0 - momentum), 0.0)
    for name, value in batch.items():
        step = tf.math.multiply_no_nan(value - weights[name], share)
        weights[name].assign_add(step)
    weights[COUNT].assign_add(tf.cast(finite, tf.float32))
    return seen


@_register
class InputQuantizer(RangeObserver):
    """Quantizes an input that is no image to 8 bits, on the range that it has observed.

    Forward and backward: `observed.quantize_observed`, once something was observed; until then its
    input. The range follows the data as that of any `RangeObserver`.

    Args:
        input_type: what the file takes: "int8", the codes, or "float32", of which it makes them.
        momentum: see `RangeObserver`.
    """

    def __init__(self, *, input_type: str, momentum: float = 0.99) -> None:
        super().__init__(momentum=momentum)
        self.input_type = input_type

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        inputs = super().__call__(inputs, training, weights, **kwargs)
        ends = (tf.convert_to_tensor(weights[name]) for name in ("lowest", "highest"))
        return quantize_observed(inputs, *ends)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"input_type": self.input_type, **super().get_config()}


def bits_of(num_bits: int, weights: dict[str, Any]) -> Any:
    """The bits of a quantizer; a tensor where there is a floor that comes down in training."""
    floor = weights.get(BIT_FLOOR)
    if floor is None or num_bits == 8:  # nothing is above
        return num_bits
    return tf.maximum(tf.convert_to_tensor(floor), num_bits)


def _add_scalar(
    layer: keras.layers.Layer, name: str, initializer: Any, *, trainable: bool, **options: Any
) -> tf.Variable:
    return layer.add_weight(
        name=name,
        shape=(),
        dtype=tf.float32,
        initializer=initializer,
        trainable=trainable,
        **options,
    )


QUANTIZERS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        DorefaQuantizer,
        PactQuantizer,
        StreamQuantizer,
        ImageQuantizer,
        RangeObserver,
        InputQuantizer,
    )
}


def serialize_quantizer(quantizer: SatQuantizer | None) -> dict[str, Any] | None:
    """A quantizer as plain values.

    Keras has one format for objects inside the configuration of a layer in `.keras` files, another
    in SavedModels and none that both read; plain values pass through all of them.
    """
    if quantizer is None:
        return None
    return {"quantizer": type(quantizer).__name__, **quantizer.get_config()}


def deserialize_quantizer(values: dict[str, Any] | None) -> Any:
    """The quantizer that `serialize_quantizer` wrote."""
    if values is None:
        return None
    settings = dict(values)
    return QUANTIZERS[settings.pop("quantizer")](**settings)
