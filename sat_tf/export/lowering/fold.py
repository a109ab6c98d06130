"""BatchNormalization folded into signs, scales and biases."""

import dataclasses

import numpy as np
import tf_keras as keras


@dataclasses.dataclass(frozen=True)
class Affine:
    """BatchNormalization in inference: y = slope · x + offset, float64 a channel.

    `mean` and `deviation` are the statistics of x: there it must be exact.
    """

    slope: np.ndarray
    offset: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of_constants(cls, slope: np.ndarray, offset: np.ndarray, channels: int) -> "Affine":
        """One without statistics."""
        slope = np.array(np.broadcast_to(slope, channels), np.float64)
        deviation = np.where(slope == 0.0, 0.0, np.inf)
        return cls(slope, np.array(np.broadcast_to(offset, channels)), 0.0 * slope, deviation)


def affine(norm: keras.layers.Layer) -> Affine:
    """Slope γ / sqrt(σ² + ε), offset β - slope · μ; γ = 1 and β = 0 where it has none."""
    mean = norm.moving_mean.numpy().astype(np.float64)
    variance = norm.moving_variance.numpy().astype(np.float64)
    gamma = 1.0 if norm.gamma is None else norm.gamma.numpy().astype(np.float64)
    beta = 0.0 if norm.beta is None else norm.beta.numpy().astype(np.float64)
    slope = gamma / np.sqrt(variance + norm.epsilon)
    return Affine(slope, beta - slope * mean, mean, np.sqrt(np.maximum(variance, 0.0)))


@dataclasses.dataclass(frozen=True)
class ChannelCodes:
    """A linear layer before it is placed in the graph: Ξ = codes · scales, y = Ξ x + bias.

    Attributes:
        codes: integers, output channels on the last axis.
        scales: positive, one a channel.
        bias: real values, one a channel.
        center: the usual value of Ξ x, by a normalization or an observed range; 0 where unknown.
        spread: the standard deviation from that; infinite where unknown.
    """

    codes: np.ndarray
    scales: np.ndarray
    bias: np.ndarray
    center: np.ndarray
    spread: np.ndarray

    @classmethod
    def unseen(cls, codes: np.ndarray, scales: np.ndarray, bias: np.ndarray) -> "ChannelCodes":
        """A linear layer of whose values nothing is known."""
        return cls(codes, scales, bias, np.zeros(scales.size), np.full(scales.size, np.inf))

    def seen_within(self, low: float, high: float) -> "ChannelCodes":
        """The same, known to give values from `low` to `high`, where nothing better is known."""
        unknown = np.isinf(self.spread)
        center = np.where(unknown, (low + high) / 2.0 - self.bias, self.center)
        # The ends are two standard deviations away.
        spread = np.where(unknown, (high - low) / 4.0, self.spread)
        return dataclasses.replace(self, center=center, spread=spread)


def scaled(linear: ChannelCodes, slope: np.ndarray, offset: np.ndarray) -> ChannelCodes:
    """The linear layer, multiplied by a number and added to another: y = slope · (Ξ x) + offset.

    Args:
        linear: the layer.
        slope: not 0; one number, or one a channel.
        offset: likewise.
    """
    count = linear.scales.size
    slope, offset = np.broadcast_to(slope, count), np.broadcast_to(offset, count)
    return ChannelCodes(
        codes=linear.codes * np.sign(slope).astype(linear.codes.dtype),
        scales=linear.scales * np.abs(slope),
        bias=linear.bias * slope + offset,
        center=linear.center * slope,
        spread=linear.spread * np.abs(slope),
    )


def fold(linear: ChannelCodes, norm: Affine) -> ChannelCodes:
    """The linear layer and the normalization behind it, as one linear layer.

    The sign of γ goes into the codes and its size into the scales, so that weights stay on their
    lattice and nothing is rounded again. A channel with γ = 0 has codes 0.

    >>> one = ChannelCodes.unseen(np.array([[3, 1, 2]]), np.ones(3), np.ones(3))
    >>> slope, offset = np.array([2.0, -0.5, 0.0]), np.array([0.0, 0.0, 7.0])
    >>> folded = fold(one, Affine(slope, offset, np.zeros(3), np.ones(3)))
    >>> folded.codes.tolist(), folded.scales.tolist(), folded.bias.tolist()
    ([[3, -1, 0]], [2.0, 0.5, 1.0], [2.0, -0.5, 7.0])
    """
    codes = linear.codes * np.sign(norm.slope).astype(linear.codes.dtype)
    scales = np.where(norm.slope == 0.0, 1.0, np.abs(norm.slope)) * linear.scales
    bias = linear.bias * norm.slope + norm.offset
    center = norm.slope * (norm.mean - linear.bias)
    spread = np.where(norm.slope == 0.0, 0.0, np.abs(norm.slope) * norm.deviation)
    return ChannelCodes(codes, scales, bias, np.where(np.isinf(spread), 0.0, center), spread)
