"""LQ-Nets: weights whose levels are sums and differences of a basis that is learnt.

Zhang et al., "LQ-Nets", ECCV 2018. A range of weights has a basis v of b numbers, and the levels
v · e, e in {-1, 1}^b. The basis has no gradient: every training step fits it to the weights by
least squares (`next_basis`), which are then in other levels, and so on.

In a file the levels are integers times a scale, and so they are here, always: the forward pass and
the file have the basis that `snapped_basis` gives, of which every level is an int8 code.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from sat_tf.configs import (
    LevelsOfWeights,
    Tensor,
    Variables,
    axes_within,
    namespace,
    range_shape,
    round_half_up,
)

# The ridge, by which v stays as it is where the weights do not determine it.
_RIDGE = 1e-4
# The first basis has the best of these reaches, shares of the largest weight, and this many fits.
_FIRST_REACHES = tuple(percent / 100.0 for percent in range(100, 0, -10))
_FIRST_FITS = 8


@functools.cache
def lq_patterns(num_bits: int) -> list[list[float]]:
    """All e in {-1, 1}^b, one a row, by which LQ-Nets adds up a basis."""
    return [
        [1.0 if number >> place & 1 else -1.0 for place in range(num_bits)]
        for number in range(2**num_bits)
    ]


def snapped_basis(basis: Tensor) -> tuple[Tensor, Tensor]:
    """The basis as integers: v = s · n / 2, so that all levels are integers times s.

    With t = sum|v| / (254 - b/2): n = round(v / t), of which the sum of magnitudes is at most 254;
    where that sum is odd the largest of them gets smaller by 1, which makes every level
    (n · e) / 2 an integer from -127 to 127. s / 2 = v · n / n · n, the best for these n.

    The basis has one v a row; one that is not finite counts as zeros.
    """
    n = namespace(basis)
    bits = basis.shape[-1]
    size = n.abs(basis)
    reach = n.sum(size, axis=-1, keepdims=True)
    # A basis that is not finite counts as zeros too, because codes are sorted and NaN has no order.
    is_zero = ~(n.isfinite(reach) & (reach >= 2.0**-63))
    largest_sum = 2.0 * 127
    reach = n.where(is_zero, 1.0, reach)
    unit = reach / n.exact_divisor(largest_sum - bits / 2.0, reach)
    count = round_half_up(size / unit)
    odd = n.mod(n.sum(count, axis=-1, keepdims=True), 2.0)
    largest = n.one_hot(n.argmax(count, axis=-1), bits, dtype="float32")
    count = n.where(is_zero, 0.0, count - odd * largest)
    integers = n.where(is_zero, 0.0, n.sign(basis) * count)
    fit = n.divide_no_nan(
        n.sum(size * count, axis=-1, keepdims=True), n.sum(n.square(count), axis=-1, keepdims=True)
    )
    return integers, n.where(is_zero, 2.0 / largest_sum, 2.0 * fit)


def levels_of(basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of each row of a basis in ascending order, float32.

    Returned with them are the rows of `lq_patterns` that make them, and the scales.
    """
    n = namespace(basis)
    patterns = n.tensor(lq_patterns(basis.shape[-1]), "float32")
    integers, scale = snapped_basis(basis)
    codes = n.matmul(integers, n.transpose(patterns)) / 2.0
    order = n.argsort(codes, axis=-1)
    return n.take_along_axis(codes, order, axis=-1), order, scale


def next_basis(
    kernel: Tensor, basis: Tensor, *, range_axes: tuple[int, ...] = (), momentum: float = 0.9
) -> Tensor:
    """The basis of the next step: the paper's quantization error minimization, QEM.

    With B the e of the nearest levels, one a column: v* = (B B^T)^-1 B w, and
    v <- m v + (1 - m) v*.
    A small ridge keeps what B does not determine: v* minimizes
    mean (w - v* · e)² + 1e-4 |v* - v|². NaN and infinite weights are left out, and v stays as it is
    where float32 does not hold the new value.
    """
    n = namespace(kernel)
    kernel, basis = n.tensor(kernel), n.tensor(basis)
    rows = _rows(n, kernel, range_axes)
    codes, order, scale = levels_of(basis)
    finite, (ranges, number), size = n.isfinite(rows), codes.shape, basis.shape[-1]
    offsets = n.reshape(n.arange(ranges, dtype="int32") * number, [ranges, 1])
    ids = n.cast(_nearest(n, kernel, codes, scale, range_axes), "int32") + offsets
    values = n.where(finite, rows, 0.0), finite
    of_ids = [n.reshape(n.sums_by_id(term, ids, ranges * number), codes.shape) for term in values]
    # They are put in the order of the patterns, whose products are the same for all ranges.
    back = n.argsort(order, axis=-1)
    sums, counts = (n.take_along_axis(by_id, back, axis=-1) for by_id in of_ids)
    total = n.maximum(n.sum(counts, axis=-1, keepdims=True), 1.0)
    sums, counts = sums / total, counts / total
    signs = n.in_widest(n.tensor(lq_patterns(size), "float32"))
    products = n.reshape(signs[:, :, None] * signs[:, None, :], [number, -1])
    gram = n.reshape(n.matmul(counts, products), [ranges, size, size])
    old = n.in_widest(basis)
    right = n.matmul(sums, signs) + _RIDGE * old
    best = n.solve(gram + _RIDGE * n.in_widest(n.eye(size, dtype="float32")), right)
    new_basis = n.cast(momentum * old + (1.0 - momentum) * best, "float32")
    return n.where(n.isfinite(new_basis), new_basis, basis)


def first_basis(kernel: Tensor, num_bits: int, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """A basis that fits a kernel: 2^(k-1) times the number of least error, and QEM from there."""
    n = namespace(kernel)
    kernel = n.where(n.isfinite(kernel), kernel, 0.0)
    rows = _rows(n, kernel, range_axes)
    intervals = 2.0**num_bits - 1.0
    powers = n.tensor([2.0**place / intervals for place in range(num_bits)], "float32")
    largest = n.max(n.abs(rows), axis=-1, keepdims=True)
    best, smallest = largest, float("inf")
    for share in _FIRST_REACHES:
        reach = largest * share
        position = n.divide_no_nan(rows, reach)
        position = n.maximum(n.minimum(position, 1.0), -1.0)
        units = round_half_up((position + 1.0) * (intervals / 2.0))
        off = rows - reach * (units * (2.0 / intervals) - 1.0)
        error = n.mean(n.square(off), axis=-1, keepdims=True)
        best = n.where(error < smallest, reach, best)
        smallest = n.minimum(error, smallest)
    basis = best * powers
    for _ in range(_FIRST_FITS):
        basis = next_basis(kernel, basis, range_axes=range_axes, momentum=0.0)
    return basis


def _nearest(
    n: Any, kernel: Tensor, codes: Tensor, scale: Tensor, range_axes: tuple[int, ...]
) -> Tensor:
    """The places of the nearest levels, int32, one range a row."""
    middle = (codes[:, 1:] + codes[:, :-1]) * (0.5 * scale)
    return n.search_rows(middle, _rows(n, kernel, range_axes), side="right")


def _kept_first(rank: int, range_axes: tuple[int, ...]) -> list[int]:
    within = axes_within(rank, range_axes)
    return [axis for axis in range(rank) if axis not in within] + within


def _rows(n: Any, kernel: Tensor, range_axes: tuple[int, ...]) -> Tensor:
    """The weights of each range in a row."""
    order = _kept_first(len(kernel.shape), range_axes)
    ranges = math.prod(range_shape(kernel.shape, range_axes))
    return n.reshape(n.transpose(kernel, order), [ranges, -1])


def _unrows(n: Any, rows: Tensor, shape: Sequence[int], range_axes: tuple[int, ...]) -> Tensor:
    order = _kept_first(len(shape), range_axes)
    tensor = n.reshape(rows, [shape[axis] for axis in order])
    return n.transpose(tensor, [order.index(axis) for axis in range(len(order))])


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LqNetsQuantizer(LevelsOfWeights):
    """Weights at levels of a basis that is learnt (Zhang et al. 2018).

    The variable `basis` has one row of `num_bits` numbers for the layer or for each channel. It
    starts at what fits the latent weights, and follows them in training.

    Forward: q = s · (n · e) / 2 with the integers n and the scale s of `snapped_basis`, and e that
    makes it the nearest to w; halfway between two levels it is the upper one. A NaN stays NaN.
    Backward: dq/dw = 1, and the basis has no gradient.
    """

    policy_name: ClassVar[str] = "lq_nets"
    method: ClassVar[str] = "LQ-Nets"
    levels_name: ClassVar[str] = "basis"
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits", "range_axes")
    follows = True

    momentum: float = 0.9  # The basis' share kept in a step; at 0 it is what fits, at 1 it stays.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.momentum = float(self.momentum)
        if not 0.0 <= self.momentum <= 1.0:
            raise ValueError(
                f"momentum={self.momentum}: expected a number from 0 to 1; the paper has 0.9."
            )

    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        return (math.prod(range_shape(kernel_shape, self.range_axes)), self.bits)

    def first_levels(self, kernel: Tensor) -> Tensor:
        return first_basis(kernel, self.bits, range_axes=self.range_axes)

    def next_levels(self, latent: Tensor, levels: Tensor) -> Tensor:
        return next_basis(latent, levels, range_axes=self.range_axes, momentum=self.momentum)

    def codes_and_scales(
        self, latent: Tensor, variables: Variables, num_bits: Any
    ) -> tuple[Tensor, Tensor]:
        n, axes = namespace(latent), self.range_axes
        codes, _, scale = levels_of(n.tensor(variables[self.levels_name]))
        nearest = n.take_along_axis(codes, _nearest(n, latent, codes, scale, axes), axis=-1)
        nearest = n.where(n.isnan(latent), latent, _unrows(n, nearest, latent.shape, axes))
        return nearest, n.reshape(scale, range_shape(latent.shape, axes))

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0: where all weights of its range are 0, and by chance."""
        return self.num_bits is None

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        """The places 0..2^b - 1 of the weights' levels; equal levels have the first one's place."""
        n = namespace(latent)
        codes, _, scale = levels_of(n.tensor(variables[self.levels_name]))
        places = _nearest(n, latent, codes, scale, self.range_axes)
        units = n.search_rows(codes, n.take_along_axis(codes, places, axis=-1), side="left")
        return _unrows(n, n.cast(units, "float32"), latent.shape, self.range_axes)

    def can_be_held(self, latent: Tensor, variables: Variables) -> Tensor:
        return namespace(latent).ones_like(latent, dtype="bool")

    def hold(self, latent: Tensor, variables: Variables, units: Tensor, held: Tensor) -> Tensor:
        n = namespace(latent)
        codes, _, scale = levels_of(n.tensor(variables[self.levels_name]))
        places = n.cast(_rows(n, units, self.range_axes), "int32")
        values = n.take_along_axis(codes * scale, places, axis=-1)
        return n.where(held, _unrows(n, values, units.shape, self.range_axes), latent)
