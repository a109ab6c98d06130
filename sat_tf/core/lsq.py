"""LSQ: learnt scales of weights and activations, and LSQ+: a learnt offset as well.

Esser et al., "Learned Step Size Quantization", ICLR 2020, and Bhalgat et al., "LSQ+", CVPRW 2020.
The step of the papers is the scale s here. They multiply the gradient of s by

    g = 1 / sqrt(N · highest),

with the N weights or features that share s and their highest code, so that s moves about as fast,
for its size, as what it quantizes.

The variables of this package are not the scales themselves, but numbers that mean the same at all
bits, so that bits can change: the magnitude m = s · sqrt(highest) of weights, which starts at
2 mean|v| whatever the bits are, and the clipping level α = s · highest of activations. Their
gradients are scaled so that under SGD, with or without momentum, s is in every step what it is in
the papers: a variable c · s gets g c² times its own gradient.
"""

import math
from typing import Any

from sat_tf.core import grid as grids
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate, passed_back
from sat_tf.core.tensor_ops import (
    Namespace,
    Tensor,
    computed_in_float32,
    in_float32,
    is_tensor,
    namespace,
    sum_as,
)


def lsq_code_ends(num_bits: int) -> tuple[int, int]:
    """The ends of LSQ's codes: two's complement, without -128, whose negative does not fit int8."""
    grids.check_bits(num_bits)
    if num_bits < grids.FEWEST_SIGNED_BITS:
        raise ValueError(
            f"num_bits={num_bits}: LSQ's weights have the codes -1 and 0 at 1 bit, and no scale "
            f"can be learnt; give them {grids.FEWEST_SIGNED_BITS} bits or more, or use "
            "weight_quantizer='dorefa' or 'l1'."
        )
    highest = 2 ** (num_bits - 1) - 1
    return (-highest if num_bits == 8 else -highest - 1), highest


# -- weights -----------------------------------------------------------------------------------


def weight_magnitude(kernel: Tensor, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """The first magnitude, 2 mean|v|, of each range: the paper's scale times sqrt(highest)."""
    n = namespace(kernel)
    axes = tuple(grids.axes_within(len(kernel.shape), range_axes))
    return 2.0 * n.mean(n.abs(kernel), axis=axes, keepdims=bool(range_axes))


def best_magnitude(kernel: Tensor, num_bits: int, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """The magnitude with the smallest mean square error, of 100 up to what clips no weight."""
    n = namespace(kernel)
    kernel = n.tensor(kernel)
    _, highest = lsq_code_ends(num_bits)
    axes, has_ranges = tuple(grids.axes_within(len(kernel.shape), range_axes)), bool(range_axes)
    largest = n.max(n.abs(kernel), axis=axes, keepdims=has_ranges) / highest**0.5
    best, smallest = largest, float("inf")
    for percent in range(100, 0, -1):
        magnitude = largest * (percent / 100.0)
        off = quantize_weights(kernel, n.maximum(magnitude, grids.SMALLEST_SIZE), num_bits) - kernel
        error = n.mean(n.square(off), axis=axes, keepdims=has_ranges)
        best = n.where(error < smallest, magnitude, best)
        smallest = n.minimum(error, smallest)
    return best


def weight_scale(magnitude: Tensor, num_bits: grids.Bits) -> Tensor:
    """The real value of one code, s = m / sqrt(highest)."""
    n = namespace(magnitude)
    return _scale(n, in_float32(n, magnitude), _weight_ends(num_bits)[1])


def quantize_weights(
    kernel: Tensor,
    magnitude: Tensor,
    num_bits: grids.Bits,
    *,
    surrogate: Surrogate = STRAIGHT_THROUGH,
) -> Tensor:
    """Quantizes latent weights by a learnt scale (Esser et al. 2020, Eq. 1 to 5).

    Forward, with s = m / sqrt(highest):  q = s · clip(round(v / s), lowest, highest).
    Backward:  dq/dv = 1 where lowest < v/s < highest, else 0;
               dq/ds = the code where clipped, else round(v/s) - v/s (Eq. 3);
               dq/dm = dq/ds / sqrt(N), which is g c² times its own gradient, c = sqrt(highest).

    With another surrogate dq/dv is its factor, times v/s in dq/ds. Computed in float32, returned in
    the type of `kernel`. A NaN weight stays NaN and adds nothing to dm; infinite ones are clipped.
    The magnitude m > 0 is a scalar, or of the rank of the kernel with length 1 along the axes that
    share a scale; N is how many weights do.
    """
    lowest, highest = _weight_ends(num_bits)
    return computed_in_float32(
        _weights,
        _of_weights,
        [kernel, magnitude],
        lowest=lowest,
        highest=highest,
        surrogate=surrogate,
    )


def weight_codes(kernel: Tensor, magnitude: Tensor, num_bits: grids.Bits) -> Tensor:
    """The codes of `quantize_weights`, int32; NaN is an error."""
    n = namespace(kernel)
    units = in_float32(n, kernel) / weight_scale(magnitude, num_bits)
    codes = n.clip(grids.round_half_up(units), *_weight_ends(num_bits))
    return n.cast(n.check_numerics(codes, "lsq: NaN has no integer code"), "int32")


def _weight_ends(num_bits: grids.Bits) -> tuple[Any, Any]:
    """`lsq_code_ends` as numbers, or as float32 tensors where the bits are one."""
    if not is_tensor(num_bits):
        lowest, highest = lsq_code_ends(num_bits)
        return float(lowest), float(highest)
    n = namespace(num_bits)
    table = [lsq_code_ends(max(bits, grids.FEWEST_SIGNED_BITS)) for bits in range(9)]
    ends = n.take(n.constant(table, "float32"), num_bits, axis=0)
    return ends[0], ends[1]


def _scale(n: Namespace, magnitude: Tensor, highest: Any) -> Tensor:
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    return magnitude / (n.sqrt(in_float32(n, highest)) + 0.0 * magnitude)


def _weights(
    n: Namespace, latent: Tensor, magnitude: Tensor, *, lowest: Any, highest: Any, **settings: Any
) -> tuple[Tensor, tuple[Tensor]]:
    scale = _scale(n, magnitude, highest)
    return n.clip(grids.round_half_up(latent / scale), lowest, highest) * scale, (scale,)


def _of_weights(
    n: Namespace,
    upstream: Tensor,
    value: Tensor,
    latent: Tensor,
    magnitude: Tensor,
    scale: Tensor,
    *,
    lowest: Any,
    highest: Any,
    surrogate: Surrogate,
) -> tuple[Tensor, Tensor]:
    by_latent, by_scale = _slopes(
        n, upstream, latent / scale, lowest, highest, surrogate, like=magnitude
    )
    count = math.prod(latent.shape) / math.prod(magnitude.shape)
    return by_latent, by_scale * n.inverse_root(count)


def _slopes(
    n: Namespace,
    upstream: Tensor,
    units: Tensor,
    lowest: Any,
    highest: Any,
    surrogate: Surrogate,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradient of the tensor before rounding, and of a scale shaped as `like` (Eq. 3)."""
    codes = n.clip(grids.round_half_up(units), lowest, highest)
    passed = upstream
    if surrogate != STRAIGHT_THROUGH:
        passed = passed_back(upstream, units - codes, highest - lowest, surrogate)
    return n.range_gradients(
        upstream,
        passed,
        codes,
        units,
        (units > lowest) & (units < highest),
        lambda slopes: sum_as(n, slopes, like),
    )


# -- activations -------------------------------------------------------------------------------


def gradient_factor(x: Tensor, highest: Any, *, counts_batch: bool = False) -> Tensor:
    """The factor g = 1 / sqrt(N · highest) on the gradient of a scale.

    N is the number of features of one sample. With `counts_batch` it is that of the batch of all
    replicas, as in many implementations, whose rate then depends on the batch size.
    """
    n = namespace(x)
    samples, features = n.count_samples_and_features(n.tensor(x))
    features = n.maximum(features, 1.0)
    if counts_batch:
        features *= n.maximum(samples, 1.0) * float(n.replicas())
    return n.rsqrt(features * in_float32(n, highest))


def quantize_with_offset(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    num_bits: grids.Bits,
    *,
    surrogate: Surrogate = STRAIGHT_THROUGH,
) -> Tensor:
    """Clips and quantizes a tensor with a scale and an offset that are learnt: LSQ+.

    Forward, with a = 2^b - 1 and z = clip(round(-β / s), 0, a) codes below zero:
               q = s · clip(round(x / s), -z, a - z).
    Backward, as in Bhalgat et al. 2020, Eq. 5 to 7, where z is -β / s:
               dq/dx = 1 where -z < x/s < a - z, else 0;
               dq/ds = round(x/s) - x/s between the ends, 0 below, a above;
               dq/dβ = 0 between the ends, 1 beyond them.

    The paper's offset is any number. Here it is on the grid, which makes 0 one of the values, so
    that padding has a code and integer kernels are exact; its gradient is straight-through.
    Types and NaN as in `quantize_weights`; the gradients are not scaled by g. An offset above 0
    counts as 0.
    """
    return computed_in_float32(
        _with_offset,
        _of_offset,
        [x, scale, offset],
        levels=grids.levels(num_bits),
        surrogate=surrogate,
    )


def codes_below_zero(scale: Tensor, offset: Tensor, levels: Any) -> Tensor:
    """The codes below zero of `quantize_with_offset`, z = clip(round(-β / s), 0, a)."""
    n = namespace(scale)
    below = grids.count_below_zero(-offset, scale, n.floor)
    return n.maximum(n.minimum(below, levels), 0.0)


def _with_offset(
    n: Namespace, x: Tensor, scale: Tensor, offset: Tensor, *, levels: Any, **settings: Any
) -> tuple[Tensor, tuple[()]]:
    below = codes_below_zero(scale, offset, levels)
    return n.clip(grids.round_half_up(x / scale), -below, levels - below) * scale, ()


def _of_offset(
    n: Namespace,
    upstream: Tensor,
    value: Tensor,
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    *,
    levels: Any,
    surrogate: Surrogate,
) -> tuple[Tensor, Tensor, Tensor]:
    below = codes_below_zero(scale, offset, levels)
    units, above = x / scale, levels - below
    by_x, by_scale = _slopes(n, upstream, units, -below, above, surrogate, like=scale)
    outside = (units <= -below) | (units >= above)
    clipped = n.sum(n.where(outside, upstream, 0.0))
    # q is (code + z) s + β beyond the ends.
    return by_x, by_scale + below * clipped, clipped
