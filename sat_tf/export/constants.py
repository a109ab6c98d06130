"""Channels that hardly vary, and why their steps are chosen by their constant.

A channel whose input is nearly always the same, such as a dead one, has hardly any variance.
BatchNormalization then multiplies it by up to γ / sqrt(ε), so that one unit of the integer sum is
worth many output codes, and so is the unit in which int32 kernels hold the bias: rounded to it, a
constant of 3 codes can become 0 in every pixel. Nothing else of the channel is ever seen. So the
step is moved to where an integer bias gives the constant exactly; what the rare other sums give
stays as near as it can, most often clipped as before. How rare they are, the normalization knows:
the more a channel varies, the more its slope counts, and the less its constant.
"""

import dataclasses

import numpy as np

from sat_tf.export.graph import Graph, Linear

# A channel whose smallest change of the sum is worth a whole output code.
_COARSE = 1.0
# How far from the next code the product of step and bias stays: float32 errors are far smaller.
_MARGIN = 0.05
# How many integers in the place of the constant are tried, the nearest ones.
_TRIED = 64
# Of the standard deviation, in units of the sum.
_SMALLEST_SPREAD = 1e-3
# No kernel has larger sums, whatever a normalization says.
_LARGEST_SUM = 2**31


@dataclasses.dataclass(frozen=True)
class Channel:
    """One channel of a linear layer in output codes: y = multiplier · sum + bias.

    Attributes:
        multiplier: output codes of one unit of the sum.
        bias: in output codes.
        usual: the sum at the operating point.
        spread: the standard deviation from there, in units of the sum; infinite where unknown.
        gap: all sums are multiples of this integer.
        lowest: smallest output code.
        highest: largest output code.
    """

    multiplier: float
    bias: float
    usual: int
    spread: float
    gap: int
    lowest: int
    highest: int

    @property
    def constant(self) -> float:
        """The output at the operating point, neither rounded nor clipped."""
        return self.multiplier * self.usual + self.bias

    def code(self, value: np.ndarray) -> np.ndarray:
        """Rounded and clipped output."""
        return np.clip(np.rint(value), self.lowest, self.highest)


def settle_constants(graph: Graph) -> Graph:
    """Moves the steps of coarse channels to where integer biases give their constants."""
    return graph.map_linear(_settled)


def _settled(graph: Graph, linear: Linear) -> Linear:
    source, output = graph.codes(linear.inputs[0]), graph.codes(linear.output)
    unit = float(source.step) * linear.steps
    multipliers = unit / float(output.step)
    gaps = np.gcd.reduce(np.abs(linear.kernel), axis=linear.inner_axes).astype(int)
    steps, bias = linear.steps.copy(), linear.bias.copy()
    centers = np.clip(linear.center / unit, -_LARGEST_SUM, _LARGEST_SUM)
    usual = np.rint(centers / np.maximum(gaps, 1))
    # Channels that share a step keep it where it is fine enough for biases: none of them is dead.
    coarse = multipliers * (1 if linear.shares_step else gaps) >= _COARSE
    # All that a channel of zeros gives is its constant: a unit of its sum becomes an output code.
    zeros = (gaps == 0) & (coarse | (not linear.shares_step))
    steps[zeros] = float(output.step) / float(source.step)
    for index in np.flatnonzero(coarse & (gaps > 0)):
        gap = int(gaps[index])
        channel = Channel(
            multiplier=float(multipliers[index]),
            bias=float(bias[index]) / float(output.step),
            usual=int(usual[index]) * gap,
            spread=float(linear.spread[index] / unit[index]),
            gap=gap,
            lowest=output.lowest - output.zero_point,
            highest=output.highest - output.zero_point,
        )
        multiplier, integer_bias = settle(channel)
        steps[index] = multiplier * float(output.step) / float(source.step)
        bias[index] = integer_bias * multiplier * float(output.step)
    return dataclasses.replace(linear, steps=steps, bias=bias)


def settle(channel: Channel) -> tuple[float, int]:
    """The multiplier and the integer bias of a coarse channel.

    Of many pairs, the one whose codes multiplier' · (sum + bias') are nearest to the trained ones,
    on the average over sums as they are spread around the operating point. With no spread, only
    the constant there counts, and then the codes at all other sums.

    >>> settle(Channel(2.5, 3.3, usual=0, spread=0.0, gap=8, lowest=0, highest=15))
    (3.3, 1)
    >>> settle(Channel(2.5, 3.3, usual=0, spread=100.0, gap=1, lowest=0, highest=255))
    (2.5, 1)
    """
    # Beyond twice the largest sum, a bias saturates whatever it is.
    limit = 2.0 * _LARGEST_SUM
    plain = int(np.rint(np.clip(channel.bias / channel.multiplier, -limit, limit)))
    pairs = [(channel.multiplier, plain + shift) for shift in (0, -1, 1)]
    if channel.lowest < channel.constant < channel.highest:
        pairs += _exact_pairs(channel)
    reach = int((channel.highest - channel.lowest) / (channel.multiplier * channel.gap)) + 2
    sums = channel.usual + channel.gap * np.arange(-reach, reach + 1)
    trained = channel.code(channel.multiplier * sums + channel.bias)

    deviations = (sums - channel.usual) / max(channel.spread, _SMALLEST_SPREAD)
    shares = np.exp(-0.5 * np.square(deviations))

    # All pairs at once: there may be hundreds of channels.
    multipliers = np.array([multiplier for multiplier, _ in pairs])[:, np.newaxis]
    biases = np.array([bias for _, bias in pairs])[:, np.newaxis]
    off = np.abs(channel.code(multipliers * (sums + biases)) - trained)
    # The last key counts first, and the first of equal pairs wins.
    best = np.lexsort((np.sum(off, axis=1), np.sum(shares * off, axis=1)))[0]
    return pairs[best]


def _exact_pairs(channel: Channel) -> list[tuple[float, int]]:
    """Pairs whose product at the operating point is the constant, or its code at least."""
    constant, code = channel.constant, float(channel.code(np.array(channel.constant)))
    low, high = code - 0.5 + _MARGIN, code + 0.5 - _MARGIN
    targets = (min(max(constant, low), high), low, high)
    nearest = abs(constant) / channel.multiplier
    first = max(int(nearest) - _TRIED // 2, 1)
    pairs = []
    for count in range(first, first + _TRIED):
        units = count if constant > 0 else -count
        for target in targets:
            if target / units > 0:
                pairs.append((target / units, units - channel.usual))
    return pairs
