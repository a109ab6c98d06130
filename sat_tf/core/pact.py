"""Activations with a trainable clipping level: PACT, and its calibrated gradient (Eq. 11 to 13)."""

from typing import Any

import tensorflow as tf

from sat_tf.core import grid as grids
from sat_tf.core.backward_pass import JUST_BELOW_ONE, in_few_passes
from sat_tf.core.clipping_gradients import find_clipping_gradient
from sat_tf.core.custom_gradient import compiles_with_xla, with_gradient
from sat_tf.core.surrogate_gradients import passed_back
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of

# The neighbours of 0 and 1 among the normal float32 numbers. A closed range that starts at the
# first leaves out 0, and one that ends at the second times a clipping level leaves out that level.
_JUST_ABOVE_ZERO = 2.0**-126


def quantize_activation(
    x: tf.Tensor,
    clipping_level: tf.Tensor,
    num_bits: grids.Bits,
    gradient: str = "calibrated",
    *,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> tf.Tensor:
    """Rectifies, clips and quantizes an activation (Eq. 11 to 13): CG-PACT.

    Forward, with a = 2^b - 1 and the scale α/a:  q = α · round(a · clip(x, 0, α) / α) / a.
    Backward:  dq/dx = 1 where 0 < x < α, else 0;
               dq/dα = 1 where x >= α;  q/α - x/α where 0 < x < α ("calibrated", Eq. 13) or 0
               there ("pact", the original); 0 where x <= 0.

    It is a rectifier itself: put it in the place of a ReLU, not behind one. Computed in float32,
    returned in the type of `x`, with the same bits under XLA. Infinities are clipped like any value
    and add no NaN to a gradient. NaN stays NaN in its own element of q, and has no part in either
    gradient.

    Args:
        x: pre-activations, any shape; float32, float16 or bfloat16.
        clipping_level: α > 0, a scalar tensor or variable.
        num_bits: bits b of the codes n = 0..2^b - 1; 1 to 8; see `grid.Bits`.
        gradient: a row of `clipping_gradients`.
        surrogate: a row of `surrogate_table`; with another one than "ste", dq/dx is its factor
            between the ends, times x/α in dq/dα there.
        strength: see there.

    Returns:
        A tensor like `x` with values n · α / a.

    Raises:
        ValueError: bits out of range, or an unknown gradient or surrogate.

    >>> quantize_activation(tf.constant([-1.0, 0.4, 0.6, 9.0]), 3.0, 2).numpy().tolist()
    [0.0, 0.0, 1.0, 3.0]
    """
    intervals = grids.levels(num_bits)
    find_clipping_gradient(gradient)
    strength_of(surrogate, strength)

    x, values, alpha = _in_float32(x, clipping_level)
    if tf.is_tensor(num_bits) or num_bits == 1 or compiles_with_xla():
        quantized = round_on_range(values, alpha, intervals)
    else:
        quantized = tf.quantization.fake_quant_with_min_max_vars(values, 0.0, alpha, num_bits)
    if surrogate == STRAIGHT_THROUGH:
        made = with_gradient(_of_activation, quantized, [values, alpha], gradient=gradient)
    else:
        made = with_gradient(
            _by_surrogate,
            quantized,
            [values, alpha],
            kept=[tf.constant(0.0), tf.cast(intervals, tf.float32)],
            gradient=gradient,
            surrogate=surrogate,
            strength=strength,
        )
    return tf.cast(made, x.dtype)


def quantize_stream(
    x: tf.Tensor,
    clipping_level: tf.Tensor,
    num_bits: grids.Bits,
    gradient: str = "calibrated",
    *,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> tf.Tensor:
    """Clips and quantizes a tensor that can be negative, on the narrow grid that holds zero.

    Forward, with a = 2^b - 2 and the scale s = 2r/a:  q = s · round(clip(x, -r, r) / s).
    Backward:  dq/dx = 1 where -r < x < r, else 0;
               dq/dr = 1 where x >= r;  -1 where x <= -r;  between them q/r - x/r ("calibrated",
               the signed form of Eq. 13) or 0 ("pact").

    Types, infinities and NaN: as in `quantize_activation`.

    Args:
        x: any shape; float32, float16 or bfloat16.
        clipping_level: r > 0, a scalar tensor or variable; the range is [-r, r].
        num_bits: bits b of the codes n = -(2^(b-1) - 1)..2^(b-1) - 1; 2 to 8; see
            `grid.Bits`.
        gradient: a row of `clipping_gradients`.
        surrogate: as in `quantize_activation`.
        strength: see there.

    Returns:
        A tensor like `x` with values n · 2r / a.

    Raises:
        ValueError: bits out of range, or an unknown gradient or surrogate.

    >>> quantize_stream(tf.constant([-9.0, -0.4, 0.6, 9.0]), 3.0, 3).numpy().tolist()
    [-3.0, 0.0, 1.0, 3.0]
    """
    intervals = grids.levels(num_bits, "narrow")
    find_clipping_gradient(gradient)
    strength_of(surrogate, strength)

    x, values, limit = _in_float32(x, clipping_level)
    if tf.is_tensor(num_bits) or compiles_with_xla():
        quantized = round_on_range(values, limit, intervals, signed=True)
    else:
        quantized = tf.quantization.fake_quant_with_min_max_vars(
            values, -limit, limit, num_bits, narrow_range=True
        )
    if surrogate == STRAIGHT_THROUGH:
        made = with_gradient(_of_stream, quantized, [values, limit], gradient=gradient)
    else:
        made = with_gradient(
            _by_surrogate,
            quantized,
            [values, limit],
            kept=[-limit, tf.cast(intervals, tf.float32)],
            gradient=gradient,
            surrogate=surrogate,
            strength=strength,
        )
    return tf.cast(made, x.dtype)


def learning_at_rate(clipping_level: tf.Tensor, rate: float) -> tf.Tensor:
    """The clipping level itself, with another gradient: dα = rate · upstream.

    A clipping level gets gradient from every element of its tensor, many more than a weight does;
    at the learning rate of the weights it jumps about.

    Args:
        clipping_level: a scalar tensor or variable.
        rate: above 0.

    >>> level = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     doubled = 2.0 * learning_at_rate(level, 0.25)
    >>> float(doubled), float(tape.gradient(doubled, level))
    (6.0, 0.5)
    """
    level = tf.convert_to_tensor(clipping_level)
    return with_gradient(_at_rate, tf.identity(level), [level], rate=rate)


def round_on_range(
    x: tf.Tensor, clipping_level: tf.Tensor, intervals: Any, signed: bool = False
) -> tf.Tensor:
    """The forward arithmetic from elementary operations: what the FakeQuant kernel computes.

    It serves bits in a tensor and 1 bit, which the kernel does not take, and XLA, whose own
    FakeQuant turns NaN into a number and 0 into nearly 0; and it pins the kernel's bits in the
    tests.

    Forward: s · round_half_up((clip(x) - low) / s - zero), with the scale s = range / intervals,
    zero = 0 (half of the intervals where `signed`) and low = -zero · s. It has no gradient.

    Args:
        x: float32, any shape.
        clipping_level: upper end of the range, a float32 scalar.
        intervals: of the range, a number or a float32 scalar; even where `signed`.
        signed: the range is [-clipping_level, clipping_level] instead of [0, clipping_level].

    Returns:
        A tensor like `x`.
    """
    zero = intervals / 2 if signed else 0.0
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    divisor = intervals + 0.0 * clipping_level
    scale = (clipping_level + clipping_level if signed else clipping_level) / divisor
    low, high = -scale * zero, scale * (intervals - zero)
    above_low = tf.maximum(tf.minimum(x, high), low) - low
    return grids.round_half_up(above_low / scale - zero) * scale


def _in_float32(x: tf.Tensor, clipping_level: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The tensor as it is; the same, and the clipping level, in float32."""
    x = tf.convert_to_tensor(x)
    level = tf.cast(tf.convert_to_tensor(clipping_level), tf.float32)
    return x, tf.cast(x, tf.float32), level


def _of_activation(
    upstream: tf.Tensor, quantized: tf.Tensor, x: tf.Tensor, alpha: tf.Tensor, *, gradient: str
) -> tuple[tf.Tensor, tf.Tensor]:
    lowest, highest = tf.constant(_JUST_ABOVE_ZERO), alpha * JUST_BELOW_ONE
    inside, total = _gradients(upstream, x, quantized, lowest, highest, gradient)
    return inside, total / alpha


def _of_stream(
    upstream: tf.Tensor, quantized: tf.Tensor, x: tf.Tensor, limit: tf.Tensor, *, gradient: str
) -> tuple[tf.Tensor, tf.Tensor]:
    edge = limit * JUST_BELOW_ONE
    inside, total = _gradients(upstream, x, quantized, -edge, edge, gradient)
    return inside, total / limit


def _by_surrogate(
    upstream: tf.Tensor,
    quantized: tf.Tensor,
    x: tf.Tensor,
    level: tf.Tensor,
    lowest: tf.Tensor,
    intervals: tf.Tensor,
    *,
    gradient: str,
    surrogate: str,
    strength: float | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """As `_gradients`, by definition, where rounding passes back a surrogate's gradient.

    Between the ends q = s round(x/s), so that s · dq/ds = q - f x with the surrogate's factor f.
    The original PACT has no gradient there, whatever rounding passes back.
    """
    inside = (x > lowest) & (x < level)
    error = (x - quantized) * (intervals / (level - lowest))
    passed = passed_back(upstream, error, intervals, surrogate, strength)
    dx = tf.where(inside, passed, 0.0)
    r = find_clipping_gradient(gradient)(x, quantized)
    through = tf.where(inside, upstream, 0.0) if r is quantized else dx
    q = tf.where(tf.math.is_nan(quantized), 0.0, quantized)
    total = tf.reduce_sum(upstream * q - through * tf.where(inside, r, 0.0))
    return dx, total / level


def _at_rate(
    upstream: tf.Tensor, value: tf.Tensor, level: tf.Tensor, *, rate: float
) -> tuple[tf.Tensor]:
    del value, level
    return (upstream * rate,)


def _gradients(
    upstream: tf.Tensor,
    x: tf.Tensor,
    quantized: tf.Tensor,
    lowest: tf.Tensor,
    highest: tf.Tensor,
    gradient: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradients dx and α · dα: Eq. 13, all its cases in one sum.

        dx = g where lowest <= x <= highest, else 0
        α · dα = Σ g q - Σ dx r,  with r = x ("calibrated", Eq. 13) or r = q ("pact")

    Where x is clipped at the top q is α, so g q / α is g; where it is rectified q is 0; between,
    g (q - x) / α remains, which with r = q vanishes: the original PACT.
    """

    def total(dx: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        r = reference(x, quantized)
        # 0 · inf is NaN: where dx is 0, a non-finite x must not count.
        q = tf.where(tf.math.is_nan(quantized), 0.0, quantized)
        return tf.reduce_sum(upstream * q - dx * tf.where(tf.math.is_finite(r), r, 0.0))

    reference = find_clipping_gradient(gradient)
    return in_few_passes(total, upstream, x, quantized, lowest, highest, reference)
