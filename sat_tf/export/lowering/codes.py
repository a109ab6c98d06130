"""Effective weights as integer codes, and how tensors are stored as int8."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from sat_tf.core import dorefa, grid
from sat_tf.core.asymmetric import step_and_zero
from sat_tf.export.tflite.tensors import Codes
from sat_tf.graph import layer_kinds
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.functions import OffsetQuantizer, UnitQuantizer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer

_LARGEST_INT8 = 127


def weight_problem(wrapper: QuantizedLayer) -> str | None:
    """Why this layer's weights have no int8 codes, and what to do; None where they have."""
    quantizer = wrapper.quantize_config.weights
    if quantizer is None or quantizer.num_bits is None:
        return (
            "received a layer whose weights are not quantized, expected 1 to 8 weight bits; call "
            "sat_tf.requantize(model, policy) with a policy that has weight_bits, train, and "
            "export again"
        )
    row = grid.find_grid(quantizer.grid, quantizer.num_bits)
    largest = row.largest_code(quantizer.num_bits)
    # The rounded grid reaches -128 at 8 bits, and a negative γ turns that into +128.
    if largest > _LARGEST_INT8:
        return (
            f"received {quantizer.num_bits}-bit weights on the {row.name} grid, whose codes reach "
            f"{largest}, expected at most {_LARGEST_INT8} to fit int8; requantize with "
            "weight_grid='auto' or 'narrow', or with 7 bits"
        )
    return None


class KernelOutline(NamedTuple):
    """Codes and scales that stand for those of a layer where only their number counts.

    Attributes:
        codes: integers, shaped like the Keras kernel.
        scales: one an output channel.
    """

    codes: np.ndarray
    scales: np.ndarray


class KernelTensors(NamedTuple):
    """What TensorFlow computes of a layer's weights.

    Attributes:
        codes: int32, shaped like the Keras kernel.
        factor: SAT's rescaling constant; 1 where there is none.
        effective: the weights the layer computes with.
    """

    codes: tf.Tensor
    factor: tf.Tensor
    effective: tf.Tensor


def _quantizer_of(wrapper: QuantizedLayer) -> tuple[DorefaQuantizer, int]:
    """The quantizer of a layer's weights, and its bits."""
    quantizer = wrapper.quantize_config.weights
    if quantizer is None or quantizer.num_bits is None:
        raise TypeError(f"{wrapper.layer.name}: weights without codes; see weight_problem.")
    return quantizer, quantizer.num_bits


def kernel_tensors(wrapper: QuantizedLayer) -> KernelTensors:
    """The part of `integer_kernel` that a `tf.function` can do for many layers in one call."""
    quantizer, num_bits = _quantizer_of(wrapper)
    layer = wrapper.layer
    latent = tf.convert_to_tensor(getattr(layer, layer_kinds.kernel_name(layer)), tf.float32)
    settings = (num_bits, quantizer.grid)
    codes = dorefa.weight_codes(latent, *settings, range_axes=quantizer.range_axes)
    factor = tf.constant(1.0)
    if quantizer.rescale is not None:
        values = dorefa.quantize_weights(latent, *settings, range_axes=quantizer.range_axes)
        factor = quantizer.factor(values, latent)
    return KernelTensors(codes, factor, wrapper.effective_kernel())


def _are_the_same(tensors: KernelTensors, scales: np.ndarray) -> bool:
    """Whether codes · scales are the effective weights."""
    # In TensorFlow, which takes a large layer to all cores. Both sides are a few float32 roundings
    # away from the exact product, and the smallest scale is a 127th of the largest weight or more.
    products = tf.cast(tensors.codes, tf.float32) * tf.constant(scales, tf.float32)
    size = tf.abs(tensors.effective)
    limit = 1e-5 * size + 1e-6 * tf.reduce_max(size)
    return bool(tf.reduce_all(tf.abs(products - tensors.effective) <= limit))


def integer_kernel(
    wrapper: QuantizedLayer, tensors: KernelTensors | KernelOutline | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of a layer's effective weights: Ξ = code · scale.

    The scale is the grid's, times SAT's rescaling constant and the layer's gain where it has them.

    Args:
        wrapper: a built linear layer without a `weight_problem`.
        tensors: its `kernel_tensors`, where they have been computed already, or what stands for
            codes and scales.

    Returns:
        int32 codes shaped like the Keras kernel, and float64 scales, one an output channel.

    Raises:
        ArithmeticError: codes and scales do not give the weights the layer computes with, which
            would be a defect of sat-tf.
    """
    if isinstance(tensors, KernelOutline):
        return tensors.codes, tensors.scales
    tensors = kernel_tensors(wrapper) if tensors is None else tensors
    (quantizer, num_bits), layer = _quantizer_of(wrapper), wrapper.layer
    codes = tensors.codes.numpy()
    scale = np.float64(grid.find_grid(quantizer.grid, num_bits).step(num_bits))
    scales = np.reshape(scale, [1] * codes.ndim)
    gain = wrapper.kernel_variables.get("rescale_gain")
    if gain is not None:
        scales = (
            scales * tensors.factor.numpy().astype(np.float64) * gain.numpy().astype(np.float64)
        )
    if not _are_the_same(tensors, scales):
        raise ArithmeticError(f"{layer.name}: codes and scales do not give the effective weights.")
    return codes, np.array(layer_kinds.along_channels(layer, scales, codes.shape), np.float64)


# float32 divides and multiplies scales of such ranges without loss.
_SMALLEST_RANGE, _LARGEST_RANGE = 1e-24, 1e24


def unsigned_codes(highest: float, num_bits: int) -> Codes:
    """Codes 0..a, a = 2^b - 1, for real values 0..highest.

    Stored as code + 127 - a: int8 saturates exactly where the quantizer clips.

    >>> codes = unsigned_codes(3.0, 2)
    >>> float(codes.scale), codes.zero_point, codes.lowest, codes.highest
    (1.0, 124, 124, 127)
    """
    levels = 2**num_bits - 1
    zero_point = 127 - levels
    return Codes(np.float32(highest / levels), zero_point, lowest=zero_point)


def signed_codes(clipping_level: float, num_bits: int, *, unit_free: bool) -> Codes:
    """Codes -m..m, m = 2^(b-1) - 1, for real values -clipping_level..clipping_level.

    Args:
        clipping_level: r > 0.
        num_bits: bits b; 8 where `unit_free` is False, because only int8 itself saturates there.
            It does so at -128, one code below -m.
        unit_free: store r as 1, for tensors that only linear layers read.
    """
    largest = 2 ** (num_bits - 1) - 1
    if unit_free:
        return Codes(np.float32(1.0 / largest), 0, -largest, largest, unit=clipping_level)
    return Codes(np.float32(clipping_level / largest), 0)


def offset_codes(quantizer: OffsetQuantizer, clipping_level: float) -> Codes:
    """Codes -z..a - z of `offset.quantize_offset`, the largest stored as 127.

    Kernels do not clip at the smallest one; what makes these codes is a table, or a QUANTIZE.
    """
    levels = 2**quantizer.num_bits - 1
    scale, zero = step_and_zero(
        np.float32(clipping_level),
        np.float32(levels),
        quantizer.lowest,
        quantizer.share,
        np.floor,
    )
    return Codes(np.float32(scale), 127 - levels + int(zero), lowest=127 - levels)


def unit_codes(quantizer: UnitQuantizer) -> Codes:
    """Codes for real values from 0 to 1, or from -1 to 1."""
    if not quantizer.signed:
        return unsigned_codes(1.0, quantizer.num_bits)
    largest = 2 ** (quantizer.num_bits - 1) - 1
    return Codes(np.float32(1.0 / largest), 0, -largest, largest)


def range_codes(lowest: float, highest: float) -> Codes:
    """256 codes for an observed range; zero has a code of its own.

    >>> codes = range_codes(-1.0, 254.0)
    >>> float(codes.scale), codes.zero_point
    (1.0, -127)
    """
    lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    if highest - lowest < _SMALLEST_RANGE:
        return Codes(np.float32(1.0 / 255.0), -128)
    scale = (highest - lowest) / 255.0
    zero_point = int(np.clip(np.rint(-128.0 - lowest / scale), -128, 127))
    return Codes(np.float32(scale), zero_point)


def quantizer_codes(wrapper: QuantizedLayer, *, unit_free: bool) -> Codes:
    """Storage of the tensor that a layer's clipping quantizer makes."""
    quantizer = wrapper.quantize_config.output
    if isinstance(quantizer, UnitQuantizer):
        return unit_codes(quantizer)
    level = float(wrapper.output_variables["clipping_level"].numpy())
    if isinstance(quantizer, OffsetQuantizer):
        return offset_codes(quantizer, level)
    if isinstance(quantizer, PactQuantizer):
        return unsigned_codes(level, quantizer.num_bits)
    if isinstance(quantizer, StreamQuantizer):
        return signed_codes(level, quantizer.num_bits, unit_free=unit_free)
    raise TypeError(f"{wrapper.name}: {quantizer!r} has no clipping level.")


def quantizer_problem(wrapper: QuantizedLayer, *, unit_free: bool) -> str | None:
    """Why a layer's quantized output cannot be stored, and what to do; None where it can."""
    quantizer = wrapper.quantize_config.output
    level = float(wrapper.output_variables["clipping_level"].numpy())
    if not _SMALLEST_RANGE <= level <= _LARGEST_RANGE:
        return (
            f"received the clipping level {level:g}, expected one from {_SMALLEST_RANGE:g} to "
            f"{_LARGEST_RANGE:g}; call sat_tf.calibrate, or go back to an earlier checkpoint"
        )
    if isinstance(quantizer, StreamQuantizer) and quantizer.num_bits < 8 and not unit_free:
        return (
            f"received a signed stream of {quantizer.num_bits} bits that a sum, a mean or the "
            "output reads, expected 8 bits, where int8 itself saturates; requantize with "
            "stream_bits=8"
        )
    return None


def observed_range(wrapper: QuantizedLayer) -> tuple[float, float] | None:
    """What the layer's `RangeObserver` has seen; None if nothing."""
    if not isinstance(wrapper.quantize_config.output, RangeObserver):
        return None
    variables = {name: float(v.numpy()) for name, v in wrapper.output_variables.items()}
    if variables["observations"] == 0.0:
        return None
    return variables["lowest"], variables["highest"]
