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
from typing import ClassVar

from sat_tf.arguments import is_number
from sat_tf.core.gradients import straight_through
from sat_tf.core.grid import (
    LARGEST_INT8,
    SMALLEST_SIZE,
    axes_within,
    check_bits,
    range_shape,
    round_half_up,
)
from sat_tf.core.tensors import Namespace, Tensor, in_float32, namespace
from sat_tf.quantizers.scaled import LevelsOfWeights
from sat_tf.quantizers.values import Variables

# A basis vector that no weight tells from another one moves by so little towards the solution.
_RIDGE = 1e-4
# The first basis is the best of these reaches, in parts of the largest weight, fitted so often.
_FIRST_REACHES = tuple(percent / 100.0 for percent in range(100, 0, -10))
_FIRST_FITS = 8


@functools.cache
def lq_patterns(num_bits: int) -> list[list[float]]:
    """All e in {-1, 1}^b, one a row, by which LQ-Nets adds up a basis.

    >>> lq_patterns(2)
    [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]
    """
    check_bits(num_bits)
    return [
        [1.0 if number >> place & 1 else -1.0 for place in range(num_bits)]
        for number in range(2**num_bits)
    ]


def snapped_basis(basis: Tensor) -> tuple[Tensor, Tensor]:
    """The basis as integers: v = s · n / 2, so that all levels are integers times s.

    With t = sum|v| / (254 - b/2): n = round(v / t), of which the sum of magnitudes is at most 254;
    where that sum is odd the largest of them gets smaller by 1, which makes every level
    (n · e) / 2 an integer from -127 to 127. s / 2 = v · n / n · n, the best for these n.

    The basis has one v a row, float32; one that is not finite counts as zeros. Returned are n,
    float32 and shaped like the basis, and s, positive: one number in each row.

    >>> import numpy as np
    >>> integers, scale = snapped_basis(np.float32([[0.5, 1.0]]))
    >>> integers.numpy().tolist(), scale.numpy().round(4)
    ([[84.0, 168.0]], array([[0.0119]], dtype=float32))
    """
    n = namespace(basis)
    bits = basis.shape[-1]
    size = n.abs(basis)
    reach = n.sum(size, axis=-1, keepdims=True)
    # A basis that is not finite counts as zeros too, because codes are sorted and NaN has no order.
    is_zero = ~(n.isfinite(reach) & (reach >= SMALLEST_SIZE))
    largest_sum = 2.0 * LARGEST_INT8
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


def levels(basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of a basis in ascending order.

    Returned are, for each row v of the basis, a row of 2^b codes, float32; the rows of
    `lq_patterns` that make them, int32; and the scales of `snapped_basis`.

    >>> import numpy as np
    >>> codes, order, _ = levels(np.float32([[1.0, 0.5]]))
    >>> codes.numpy().tolist(), order.numpy().tolist()
    ([[-126.0, -42.0, 42.0, 126.0]], [[0, 2, 1, 3]])
    """
    n = namespace(basis)
    patterns = n.constant(lq_patterns(basis.shape[-1]), "float32")
    integers, scale = snapped_basis(basis)
    made = n.matmul(integers, n.transpose(patterns)) / 2.0
    order = n.argsort(made, axis=-1)
    return n.take_along_axis(made, order, axis=-1), order, scale


def quantize_weights(kernel: Tensor, basis: Tensor, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """Moves latent weights to the nearest level of their range.

    Forward: q = s · (n · e) / 2 with the integers n and the scale s of `snapped_basis`, and e that
    makes it the nearest to w; halfway between two levels it is the upper one.
    Backward: dq/dw = 1, and the basis has no gradient.

    Computed in float32, returned in the type of `kernel`. A NaN weight stays NaN. The basis has one
    row of b numbers for each range, in the order of its axes.

    >>> import numpy as np
    >>> quantize_weights([-3.0, 0.0, 0.4, 1.1], np.float32([[0.5, 1.0]])).numpy()
    array([-1.5,  0.5,  0.5,  1.5], dtype=float32)
    """
    n = namespace(kernel)
    given = n.tensor(kernel)
    latent, basis = in_float32(n, given), n.stop_gradient(in_float32(n, basis))
    held = n.stop_gradient(latent)
    codes, _, scale = levels(basis)
    made = n.take_along_axis(codes * scale, _nearest(n, held, codes, scale, range_axes), axis=-1)
    made = _unrows(n, made, latent.shape, range_axes)
    made = straight_through(n.where(n.isnan(held), held, made), latent)
    return n.cast(made, given.dtype)


def weight_codes(
    kernel: Tensor, basis: Tensor, *, range_axes: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """The codes of `quantize_weights`, int32, and float64 scales of ranges; NaN is an error."""
    n = namespace(kernel)
    latent = in_float32(n, kernel)
    codes, _, scale = levels(n.tensor(basis))
    made = n.take_along_axis(codes, _nearest(n, latent, codes, scale, range_axes), axis=-1)
    made = n.where(n.isnan(latent), latent, _unrows(n, made, latent.shape, range_axes))
    made = n.cast(n.check_numerics(made, "lq_nets: NaN has no integer code"), "int32")
    return made, n.in_widest(n.reshape(scale, range_shape(latent.shape, range_axes)))


def weight_units(kernel: Tensor, basis: Tensor, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """The levels 0..2^b - 1, float32, by the first one of those that are equal."""
    n = namespace(kernel)
    latent = in_float32(n, kernel)
    codes, _, scale = levels(n.tensor(basis))
    made = n.take_along_axis(codes, _nearest(n, latent, codes, scale, range_axes), axis=-1)
    units = n.cast(n.search_rows(codes, made, side="left"), "float32")
    return _unrows(n, units, latent.shape, range_axes)


def level_values(units: Tensor, basis: Tensor, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """The values of the levels that `weight_units` counts."""
    n = namespace(units)
    codes, _, scale = levels(n.tensor(basis))
    rows = n.cast(_rows(n, units, range_axes), "int32")
    made = n.take_along_axis(codes * scale, rows, axis=-1)
    return _unrows(n, made, units.shape, range_axes)


def next_basis(
    kernel: Tensor, basis: Tensor, *, range_axes: tuple[int, ...] = (), momentum: float = 0.9
) -> Tensor:
    """The basis of the next step: the paper's quantization error minimization, QEM.

    With B the e of the nearest levels, one a column: v* = (B B^T)^-1 B w, and
    v <- m v + (1 - m) v*.
    What B does not tell stays as it is, by a small ridge: v* minimizes
    mean (w - v* · e)² + 1e-4 |v* - v|². NaN and infinite weights are left out, and what
    float32 does not hold leaves v as it is.

    >>> import numpy as np
    >>> kernel = np.float32([-3.0, -1.0, 1.0, 3.0])
    >>> next_basis(kernel, np.float32([[0.8, 1.7]]), momentum=0.0).numpy().round(3).tolist()
    [[1.0, 2.0]]
    """
    n = namespace(kernel)
    kernel, basis = n.tensor(kernel), n.tensor(basis)
    rows = _rows(n, kernel, range_axes)
    codes, order, scale = levels(basis)
    finite, (ranges, number), size = n.isfinite(rows), codes.shape, basis.shape[-1]
    first = n.reshape(n.arange(ranges, dtype="int32") * number, [ranges, 1])
    ids = n.cast(_nearest(n, kernel, codes, scale, range_axes), "int32") + first
    values = n.where(finite, rows, 0.0), finite
    of_ids = [n.reshape(n.sums_by_id(each, ids, ranges * number), codes.shape) for each in values]
    # They are put in the order of the patterns, whose products are the same for all ranges.
    back = n.argsort(order, axis=-1)
    sums, counts = (n.take_along_axis(each, back, axis=-1) for each in of_ids)
    total = n.maximum(n.sum(counts, axis=-1, keepdims=True), 1.0)
    sums, counts = sums / total, counts / total
    signs = n.in_widest(n.constant(lq_patterns(size), "float32"))
    products = n.reshape(signs[:, :, None] * signs[:, None, :], [number, -1])
    gram = n.reshape(n.matmul(counts, products), [ranges, size, size])
    old = n.in_widest(basis)
    right = n.matmul(sums, signs) + _RIDGE * old
    best = n.solve(gram + _RIDGE * n.in_widest(n.eye(size, dtype="float32")), right)
    found = n.cast(momentum * old + (1.0 - momentum) * best, "float32")
    return n.where(n.isfinite(found), found, basis)


def first_basis(kernel: Tensor, num_bits: int, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """A basis that fits a kernel: 2^(k-1) times what makes the smallest error, and QEM from there.

    A range of zeros has one of zeros, which keeps them.

    >>> import numpy as np
    >>> first_basis(np.float32([-3.0, -1.0, 1.0, 3.0]), 2).numpy().round(2).tolist()
    [[1.0, 2.0]]
    """
    check_bits(num_bits)
    n = namespace(kernel)
    kernel = n.where(n.isfinite(kernel), kernel, 0.0)
    rows = _rows(n, kernel, range_axes)
    intervals = 2.0**num_bits - 1.0
    powers = n.constant([2.0**place / intervals for place in range(num_bits)], "float32")
    largest = n.max(n.abs(rows), axis=-1, keepdims=True)
    best, smallest = largest, float("inf")
    for part in _FIRST_REACHES:
        reach = largest * part
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
    n: Namespace, kernel: Tensor, codes: Tensor, scale: Tensor, range_axes: tuple[int, ...]
) -> Tensor:
    """The places of the nearest levels, int32, one range a row."""
    middle = (codes[:, 1:] + codes[:, :-1]) * (0.5 * scale)
    return n.search_rows(middle, _rows(n, kernel, range_axes), side="right")


def _kept_first(rank: int, range_axes: tuple[int, ...]) -> list[int]:
    within = axes_within(rank, range_axes)
    return [axis for axis in range(rank) if axis not in within] + within


def _rows(n: Namespace, kernel: Tensor, range_axes: tuple[int, ...]) -> Tensor:
    """The weights of each range in a row."""
    order = _kept_first(len(kernel.shape), range_axes)
    ranges = math.prod(kernel.shape[axis] for axis in {axis % len(order) for axis in range_axes})
    return n.reshape(n.transpose(kernel, order), [ranges, -1])


def _unrows(
    n: Namespace, rows: Tensor, shape: Sequence[int], range_axes: tuple[int, ...]
) -> Tensor:
    order = _kept_first(len(shape), range_axes)
    made = n.reshape(rows, [shape[axis] for axis in order])
    return n.transpose(made, [order.index(axis) for axis in range(len(order))])


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LqNetsQuantizer(LevelsOfWeights):
    """Weights at levels of a basis that is learnt: `quantize_weights` (Zhang et al. 2018).

    The variable `basis` has one row of `num_bits` numbers for the layer or for each channel. It
    starts at what fits the latent weights, and follows them in training.
    """

    policy_name: ClassVar[str] = "lq_nets"
    method: ClassVar[str] = "LQ-Nets"
    levels_name: ClassVar[str] = "basis"
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits", "range_axes")
    follows = True

    momentum: float = 0.9  # Of the basis in a training step; at 0 it is what fits, at 1 it stays.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.momentum) or not 0 <= self.momentum <= 1:
            raise ValueError(
                f"momentum={self.momentum!r}: expected a number from 0 to 1; the paper has 0.9."
            )
        self.momentum = float(self.momentum)

    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        axes = {axis % len(kernel_shape) for axis in self.range_axes}
        return (math.prod(kernel_shape[axis] for axis in axes), self.bits)

    def first_levels(self, kernel: Tensor) -> Tensor:
        return first_basis(kernel, self.bits, range_axes=self.range_axes)

    def values(self, latent: Tensor, levels: Tensor) -> Tensor:
        return quantize_weights(latent, levels, range_axes=self.range_axes)

    def next_levels(self, latent: Tensor, levels: Tensor) -> Tensor:
        return next_basis(latent, levels, range_axes=self.range_axes, momentum=self.momentum)

    def codes_and_scales(self, latent: Tensor, variables: Variables) -> tuple[Tensor, Tensor]:
        return weight_codes(latent, variables[self.levels_name], range_axes=self.range_axes)

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0: where all weights of its range are 0, and by chance."""
        return self.num_bits is None

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        return weight_units(latent, variables[self.levels_name], range_axes=self.range_axes)

    def can_be_held(self, latent: Tensor, variables: Variables) -> Tensor:
        return namespace(latent).ones_like(latent, dtype="bool")

    def hold(self, latent: Tensor, variables: Variables, units: Tensor, held: Tensor) -> Tensor:
        basis = variables[self.levels_name]
        values = level_values(units, basis, range_axes=self.range_axes)
        return namespace(latent).where(held, values, latent)
