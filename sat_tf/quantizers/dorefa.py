"""DoReFa weights: the quantizer, latent weights of a float kernel, weights held at their codes."""

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core import dorefa, rescale
from sat_tf.quantizers.base import SatQuantizer, bits_of, register_quantizer


@register_quantizer
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


# The largest |tanh(W)| of a start: kernels that reach 1 or more have no latent weights of their own
# size. At 0.9 the slope of tanh is 1 - 0.9² = 0.19, so that the largest weights still learn.
_LARGEST_TANH = 0.9


def latent_kernel(
    kernel: np.ndarray, range_axes: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Latent weights whose clamped value is the kernel divided by its maximum.

    W = atanh(r K / m), m = max|K| over all axes but `range_axes`, r = min(m, 0.9). An all-zero
    range has m = 1 and stays zero.

    Args:
        kernel: finite float weights, any shape.
        range_axes: the axes that keep a maximum of their own.

    Returns:
        The latent weights, and m with the reduced axes kept at length 1; both float64.

    >>> latent, maximum = latent_kernel(np.array([[0.5, -2.0]]))
    >>> clamped = np.tanh(latent) / np.abs(np.tanh(latent)).max()
    >>> clamped.round(9).tolist(), maximum.item()
    ([[0.25, -1.0]], 2.0)
    """
    kernel = np.asarray(kernel, np.float64)
    maximum = _maximum(kernel, range_axes)
    return np.arctanh(np.minimum(maximum, _LARGEST_TANH) * (kernel / maximum)), maximum


def describe_start(kernel: np.ndarray, range_axes: tuple[int, ...] = ()) -> str:
    """In words, how the latent weights of `latent_kernel` start, and why.

    >>> describe_start(np.array([[0.5, -0.25]]))
    "keeps function and gradients: latent weights of the kernel's own size"
    """
    if np.max(_maximum(np.asarray(kernel), range_axes)) <= _LARGEST_TANH:
        return "keeps function and gradients: latent weights of the kernel's own size"
    return (
        f"keeps the function: weights reach beyond {_LARGEST_TANH:g}, so latent weights are smaller"
    )


def _maximum(kernel: np.ndarray, range_axes: tuple[int, ...]) -> np.ndarray:
    """max|K| of each range, with the reduced axes kept at length 1; 1 where all of it is 0."""
    keep = {axis % kernel.ndim for axis in range_axes}
    reduced = tuple(axis for axis in range(kernel.ndim) if axis not in keep)
    maximum = np.max(np.abs(kernel), axis=reduced, keepdims=True)
    return np.where(maximum > 0.0, maximum, 1.0)


def units(quantizer: DorefaQuantizer, kernel: tf.Tensor) -> tf.Tensor:
    """The integers n = 0..top that a quantizer makes of latent weights; `dorefa.weight_units`."""
    return dorefa.weight_units(
        kernel, _bits(quantizer), quantizer.grid, range_axes=quantizer.range_axes
    )


def hold(
    quantizer: DorefaQuantizer, kernel: tf.Tensor, units: tf.Tensor, held: tf.Tensor
) -> tf.Tensor:
    """Latent weights of which those that are held have given integers; `dorefa.held_weights`."""
    return dorefa.held_weights(
        kernel,
        units,
        held,
        _bits(quantizer),
        quantizer.grid,
        range_axes=quantizer.range_axes,
    )


def can_be_held(quantizer: DorefaQuantizer, kernel: tf.Tensor) -> tf.Tensor:
    """Which weights may be held: not those that give their range its size."""
    return ~dorefa.largest_weights(kernel, range_axes=quantizer.range_axes)


def _bits(quantizer: DorefaQuantizer) -> int:
    if quantizer.num_bits is None:
        raise ValueError(f"{quantizer!r}: received a quantizer that does not round; give it bits.")
    return quantizer.num_bits
