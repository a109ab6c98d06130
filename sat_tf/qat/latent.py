"""Latent weights for a pretrained float layer: how its function survives the clamp.

The clamp turns latent weights into tanh(W) / max|tanh(W)|, which bends them. A float kernel K
enters as W = atanh(r K / max|K|), r = 0.76: then tanh(W) = r K / max|K|, the clamped weights are
exactly K / max|K|, and the layer computes its old output divided by m = max|K|. What stands behind
makes up for m: the statistics of BatchNormalization, or a fixed gain on the rescaling constant.
"""

import dataclasses

import numpy as np

# Latent weights then span the range (-1, 1) that usual initializers and weight decay are made for:
# tanh is close to linear there, and its slope at the ends is still 1 - 0.76² = 0.42.
TANH_RANGE = 0.76
# Of BatchNormalization in cuDNN.
_SMALLEST_EPSILON = 1.001e-5


@dataclasses.dataclass(frozen=True)
class NormStatistics:
    """Parameters of a BatchNormalization in inference, float64, one entry a channel."""

    gamma: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    epsilon: float


def latent_kernel(
    kernel: np.ndarray, range_axes: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Latent weights whose clamped value is the kernel divided by its maximum.

    W = atanh(r K / m), m = max|K| over all axes but `range_axes`, r = 0.76. An all-zero range has
    m = 1 and stays zero.

    Args:
        kernel: finite float weights, any shape.
        range_axes: the axes that keep a maximum of their own.

    Returns:
        The latent weights, and m with the reduced axes kept at length 1; both float64.

    >>> latent, maximum = latent_kernel(np.array([[0.5, -2.0]]))
    >>> clamped = np.tanh(latent) / np.abs(np.tanh(latent)).max()
    >>> clamped.round(9).tolist(), maximum.item()
    ([[0.25, -1.0]], 2.0)
    """
    kernel = np.asarray(kernel, np.float64)
    keep = {axis % kernel.ndim for axis in range_axes}
    reduced = tuple(axis for axis in range(kernel.ndim) if axis not in keep)
    maximum = np.max(np.abs(kernel), axis=reduced, keepdims=True)
    maximum = np.where(maximum > 0.0, maximum, 1.0)
    return np.arctanh(TANH_RANGE * kernel / maximum), maximum


def divided_statistics(norm: NormStatistics, divisor: np.ndarray) -> NormStatistics:
    """Statistics that give the old output when the input arrives divided by `divisor`.

    γ (x/m - μ') / sqrt(σ'² + ε') equals γ (x - μ) / sqrt(σ² + ε) with μ' = μ / m, ε' = ε / m² and
    σ'² = σ² / m², the variance of the divided input: on batch statistics it computes the same too.
    Where channels have an m each, ε' is that of the largest, and σ'² = (σ² + ε) / m² - ε'. ε' is at
    least the smallest that GPUs take, 1.001e-5; where σ'² would be negative because of that, it is
    0 and γ takes the rest.

    Args:
        norm: the float layer's parameters.
        divisor: m > 0, broadcastable to the channels.
    """
    total = (norm.variance + norm.epsilon) / divisor**2
    epsilon = max(norm.epsilon / float(np.max(divisor)) ** 2, min(norm.epsilon, _SMALLEST_EPSILON))
    variance = np.maximum(total - epsilon, 0.0)
    gamma = norm.gamma * np.sqrt((variance + epsilon) / total)
    return NormStatistics(gamma, norm.mean / divisor, variance, epsilon)
