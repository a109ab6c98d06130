"""How the tensors of quantizers and observers are stored as int8."""

import numpy as np

from sat_tf.core.offset import step_and_zero
from sat_tf.export.graph import Codes
from sat_tf.qat.function_quantizers import OffsetQuantizer, UnitQuantizer
from sat_tf.qat.quantizers import PactQuantizer, RangeObserver, StreamQuantizer
from sat_tf.qat.wrapper import QuantizedLayer

# float32 divides and multiplies steps of such ranges without loss.
_SMALLEST_RANGE, _LARGEST_RANGE = 1e-24, 1e24


def unsigned_codes(highest: float, num_bits: int) -> Codes:
    """Codes 0..a, a = 2^b - 1, for real values 0..highest.

    Stored as code + 127 - a: int8 saturates exactly where the quantizer clips.

    >>> codes = unsigned_codes(3.0, 2)
    >>> float(codes.step), codes.zero_point, codes.lowest, codes.highest
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
    step, zero = step_and_zero(
        np.float32(clipping_level),
        np.float32(levels),
        quantizer.lowest,
        quantizer.share,
        np.floor,
    )
    return Codes(np.float32(step), 127 - levels + int(zero), lowest=127 - levels)


def unit_codes(quantizer: UnitQuantizer) -> Codes:
    """Codes for real values from 0 to 1, or from -1 to 1."""
    if not quantizer.signed:
        return unsigned_codes(1.0, quantizer.num_bits)
    largest = 2 ** (quantizer.num_bits - 1) - 1
    return Codes(np.float32(1.0 / largest), 0, -largest, largest)


def range_codes(lowest: float, highest: float) -> Codes:
    """256 codes for an observed range; zero has a code of its own.

    >>> codes = range_codes(-1.0, 254.0)
    >>> float(codes.step), codes.zero_point
    (1.0, -127)
    """
    lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    if highest - lowest < _SMALLEST_RANGE:
        return Codes(np.float32(1.0 / 255.0), -128)
    step = (highest - lowest) / 255.0
    zero_point = int(np.clip(np.rint(-128.0 - lowest / step), -128, 127))
    return Codes(np.float32(step), zero_point)


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
