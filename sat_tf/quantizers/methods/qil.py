"""QIL: weights whose interval is learnt, which prunes below it and clips above it.

Jung et al., "Learning to Quantize Deep Networks by Optimizing Quantization Intervals With Task
Loss", CVPR 2019, Eq. 2 to 5, with γ = 1. They learn an interval of activations as well, which is
another method here.

The paper's weights lie in [-1, 1], because BatchNormalization after the layer gives them any size.
Here they are multiplied by the end of the interval, c + d, without a gradient: they have the size
of the latent weights, so that a pretrained layer keeps its function, with or without normalization.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from sat_tf.configs import (
    ScaledWithSurrogate,
    Tensor,
    Variables,
    VariableSpec,
    axes_within,
    computed_in_float32,
    levels,
    namespace,
    passed_back,
    round_half_up,
    sum_as,
)


def first_end(kernel: Tensor, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """The first end of the interval, max|w|, which begins at 0. Non-finite weights are left out."""
    n = namespace(kernel)
    axes = tuple(axes_within(len(kernel.shape), range_axes))
    finite = n.where(n.isfinite(kernel), n.abs(kernel), 0.0)
    return n.max(finite, axis=axes, keepdims=bool(range_axes))


def _highest(num_bits: Any) -> Any:
    """The highest code, 2^(b-1) - 1; a tensor where the bits are one."""
    return levels(num_bits, "narrow") / 2.0


def _position(n: Any, latent: Tensor, center: Tensor, distance: Tensor) -> Tensor:
    """The transformed magnitude t, before it is clipped."""
    return (n.abs(latent) - center) / (2.0 * distance) + 0.5


def _codes(n: Any, latent: Tensor, position: Tensor, highest: Any) -> Tensor:
    clipped = n.maximum(n.minimum(position, 1.0), 0.0)
    codes = n.sign(latent) * round_half_up(highest * clipped)
    return n.where(n.isnan(latent), latent, codes)


def _scale(center: Tensor, distance: Tensor, highest: Any) -> Tensor:
    """The real value of one code, (c + d) / h."""
    end = center + distance
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    return end / (highest + 0.0 * end)


def _forward(
    n: Any, latent: Tensor, center: Tensor, distance: Tensor, *, highest: Any, **settings: Any
) -> tuple[Tensor, tuple[()]]:
    codes = _codes(n, latent, _position(n, latent, center, distance), highest)
    return codes * _scale(center, distance, highest), ()


def _backward(
    n: Any,
    upstream: Tensor,
    value: Tensor,
    latent: Tensor,
    center: Tensor,
    distance: Tensor,
    *,
    highest: Any,
    gradient_factor: float,
    surrogate: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    position = _position(n, latent, center, distance)
    in_interval = (position > 0.0) & (position < 1.0)
    sign = n.sign(latent)
    error = sign * highest * position - _codes(n, latent, position, highest)
    upstream = passed_back(upstream, error, 2.0 * highest, surrogate)
    slopes = n.where(in_interval, upstream * (center + distance) / (2.0 * distance), 0.0)
    outwards = n.where(in_interval, -gradient_factor * slopes * sign, 0.0)
    from_center = n.where(in_interval, (n.abs(latent) - center) / distance, 0.0)
    return slopes, sum_as(n, outwards, center), sum_as(n, outwards * from_center, center)


CENTER, DISTANCE = "interval_center", "interval_distance"
# No distance is shorter: what is divided by it stays finite.
SMALLEST_DISTANCE = 1e-8


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class QilQuantizer(ScaledWithSurrogate):
    """Weights with an interval that is learnt (Jung et al. 2019, Eq. 2 to 5, γ = 1).

    Forward, with h = 2^(b-1) - 1:
               t = clip((|w| - (c - d)) / (2 d), 0, 1),
               q = (c + d) / h · sgn(w) · round(h t).
    Backward, with c + d in front as a constant, where 0 < t < 1, and 0 elsewhere:
               dq/dw = (c + d) / (2 d),
               dq/dc = -dq/dw · sgn(w) · f,
               dq/dd = -dq/dw · sgn(w) · (|w| - c) / d · f, with f the `gradient_factor`.

    With another surrogate its factor comes on top of all three. A NaN weight stays NaN and adds
    nothing to dc and dd. The trainable variables `interval_center`, c, and `interval_distance`, d,
    for the layer or for each channel, start at c = d = max|w| / 2, which prunes and clips nothing.
    c is kept at 0 or above, d positive; they have no weight decay.
    """

    policy_name: ClassVar[str] = "qil"
    method: ClassVar[str] = "QIL"
    fewest_bits: ClassVar[int] = 2  # At 1 bit there is the code 0 alone.

    gradient_factor: float = 0.01  # The factor on the gradients of c and d, sums over all weights.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gradient_factor = float(self.gradient_factor)
        if not 0.0 <= self.gradient_factor < math.inf:
            raise ValueError(
                f"gradient_factor={self.gradient_factor}: expected a number of 0 or more, as 0.01."
            )

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        specs = super().variables(shape)
        if self.num_bits is None:
            return specs
        # Three deviations from end to end, until `begin` sees the kernel.
        for name, lowest in ((CENTER, 0.0), (DISTANCE, SMALLEST_DISTANCE)):
            specs[name] = self.learnt(shape, deviations=1.5, lowest=lowest)
        return specs

    def begin(self, kernel: Any, variables: Variables) -> None:
        """Lets the interval of each range, or else its layer, go from 0 to the largest weight."""
        if CENTER not in variables:
            return
        n = namespace(kernel)
        latent = n.cast(n.tensor(kernel), "float32")
        of_range, of_layer = (
            first_end(latent, range_axes=axes) / 2.0 for axes in (self.range_axes, ())
        )
        for variable in (variables[CENTER], variables[DISTANCE]):
            variable.assign(self.of_range_or_layer(of_range, of_layer, variable, SMALLEST_DISTANCE))

    def quantized(self, latent: Tensor, variables: Variables, num_bits: Any) -> Tensor:
        return computed_in_float32(
            _forward,
            _backward,
            [latent, variables[CENTER], variables[DISTANCE]],
            highest=_highest(num_bits),
            gradient_factor=self.gradient_factor,
            surrogate=self.estimator,
        )

    def codes_and_scales(
        self, latent: Tensor, variables: Variables, num_bits: Any
    ) -> tuple[Tensor, Tensor]:
        n, highest = namespace(latent), _highest(num_bits)
        center, distance = n.tensor(variables[CENTER]), n.tensor(variables[DISTANCE])
        codes = _codes(n, latent, _position(n, latent, center, distance), highest)
        return codes, _scale(center, distance, highest)

    @property
    def largest_code(self) -> int:
        return 2 ** (self.bits - 1) - 1
