"""Activations with a trainable clipping level: PACT, and its calibrated gradient (Eq. 11 to 13)."""

import functools
from typing import Any

from sat_tf.core import grid as grids
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate, find_clipping_gradient, passed_back
from sat_tf.core.tensor_ops import Namespace, Tensor, computed_in_float32, namespace


def quantize_activation(
    x: Tensor,
    clipping_level: Tensor,
    num_bits: grids.Bits,
    gradient: str = "calibrated",
    *,
    signed: bool = False,
    surrogate: Surrogate = STRAIGHT_THROUGH,
) -> Tensor:
    """CG-PACT: rectifies, clips and quantizes an activation (Eq. 11 to 13).

    Forward, with a = 2^b - 1 and the scale α/a:  q = α · round(a · clip(x, 0, α) / α) / a.
    Backward:  dq/dx = 1 where 0 < x < α, else 0;
               dq/dα = 1 where x >= α;  q/α - x/α where 0 < x < α ("calibrated", Eq. 13) or 0
               there ("pact", the original); 0 where x <= 0.

    It is a rectifier itself: put it in the place of a ReLU, not after one. A tensor that is
    `signed` may be below zero, and is clipped to [-α, α] on the narrow grid:

    Forward, with a = 2^b - 2 and the scale s = 2α/a:  q = s · round(clip(x, -α, α) / s).
    Backward:  dq/dx = 1 where -α < x < α, else 0;
               dq/dα = 1 where x >= α;  -1 where x <= -α;  between them q/α - x/α ("calibrated",
               the signed form of Eq. 13) or 0 ("pact").

    Computed in float32, returned in the type of `x`, with the same bits under XLA. Infinities are
    clipped like any value and add no NaN to a gradient. NaN stays NaN in its own element of q, and
    adds nothing to either gradient.

    The clipping level α > 0 is a scalar tensor or variable. The codes are n = 0..2^b - 1, or where
    `signed` -(2^(b-1) - 1)..2^(b-1) - 1, of 2 bits or more. The gradient is a row of
    `gradients.CLIPPING_GRADIENTS`. With another surrogate than straight-through, dq/dx is its
    factor between the ends, times x/α in dq/dα there.
    """
    grid = "narrow" if signed else "dorefa"
    grids.levels(num_bits, grid)  # which refuses other bits
    find_clipping_gradient(gradient)
    return computed_in_float32(
        round_to_level,
        _backward,
        [x, clipping_level],
        num_bits=num_bits,
        grid=grid,
        gradient=gradient,
        surrogate=surrogate,
    )


quantize_stream = functools.partial(quantize_activation, signed=True)


def round_on_range(
    x: Tensor, clipping_level: Tensor, intervals: Any, signed: bool = False
) -> Tensor:
    """The forward arithmetic from elementary operations: what the FakeQuant kernel computes.

    It serves bits in a tensor and 1 bit, which the kernel does not take, and XLA, whose own
    FakeQuant turns NaN into a number and 0 into nearly 0; and it pins the kernel's bits in the
    tests.

    Forward: s · round_half_up((clip(x) - low) / s - zero), with the scale s = range / intervals,
    zero = 0 (half of the intervals where `signed`) and low = -zero · s. It has no gradient.
    """
    zero = intervals / 2 if signed else 0.0
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    divisor = intervals + 0.0 * clipping_level
    scale = (clipping_level + clipping_level if signed else clipping_level) / divisor
    low, high = -scale * zero, scale * (intervals - zero)
    n = namespace(x)
    above_low = n.maximum(n.minimum(x, high), low) - low
    return grids.round_half_up(above_low / scale - zero) * scale


def round_to_level(
    n: Namespace, x: Tensor, level: Tensor, *, num_bits: grids.Bits, grid: str, **settings: Any
) -> tuple[Tensor, tuple[()]]:
    """The forward arithmetic on one of the two grids, which keeps nothing for the gradient."""
    signed = grid == "narrow"
    lowest = -level if signed else 0.0
    quantized = n.fake_quant(x, lowest, level, num_bits, narrow_range=signed)
    if quantized is None:
        quantized = round_on_range(x, level, grids.levels(num_bits, grid), signed)
    return quantized, ()


def _backward(
    n: Namespace,
    upstream: Tensor,
    quantized: Tensor,
    x: Tensor,
    level: Tensor,
    *,
    num_bits: grids.Bits,
    grid: str,
    gradient: str,
    surrogate: Surrogate,
) -> tuple[Tensor, Tensor]:
    """The gradients dx and dα: Eq. 13, all its cases in the one sum of `gradients`.

    Where x is clipped at the top q is α, so g q / α is g; where it is rectified q is 0; between,
    g (q - x) / α remains, which with r = q vanishes: the original PACT.
    """
    lowest = -level if grid == "narrow" else 0.0
    passed = upstream
    if surrogate != STRAIGHT_THROUGH:
        intervals = grids.levels(num_bits, grid)
        error = (x - quantized) * (intervals / (level - lowest))
        passed = passed_back(upstream, error, intervals, surrogate)
    reference = find_clipping_gradient(gradient)
    dx, total = n.clipped_gradients(upstream, passed, x, quantized, lowest, level, reference)
    return dx, total / level
