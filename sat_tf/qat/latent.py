"""Latent weights for a pretrained float layer: how its function survives the clamp.

The clamp turns latent weights into tanh(W) / max|tanh(W)|, which bends them. A float kernel K with
m = max|K| enters as W = atanh(r K / m), r = min(m, 0.9): then tanh(W) = r K / m, the clamped
weights are exactly K / m, and a fixed gain of m, a weight of the layer, makes them K again.

Why r = m: the latent weights are then as large as the kernel was, W = atanh(K), and their gradient
is the kernel's, (m / r) (1 - tanh²(W)) = 1 - K² times it. An optimizer's step, and weight decay,
change the network as much as they change the float one. Any other r stretches the latent weights
by r / m and shrinks their gradient by m / r, so that plain SGD learns (r / m)² times more slowly.
"""

import numpy as np

# The largest |tanh(W)| of a start: kernels that reach 1 or more have no latent weights of their own
# size. At 0.9 the slope of tanh is 1 - 0.9² = 0.19, so that the largest weights still learn.
_LARGEST_TANH = 0.9


def latent_kernel(
    kernel: np.ndarray, range_axes: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Latent weights whose clamped value is the kernel divided by its maximum.

    W = atanh(r K / m), m = max|K| over all axes but `range_axes`, r = min(m, 0.9). An all-zero
    range has m = 1 and stays zero.

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
    maximum = _maximum(kernel, range_axes)
    return np.arctanh(np.minimum(maximum, _LARGEST_TANH) * (kernel / maximum)), maximum


def describe_start(kernel: np.ndarray, range_axes: tuple[int, ...] = ()) -> str:
    """In words, how the latent weights of `latent_kernel` start, and why.

    >>> describe_start(np.array([[0.5, -0.25]]))
    "keeps function and gradients: latent weights of the kernel's own size"
    """
    if np.max(_maximum(np.asarray(kernel), range_axes)) <= _LARGEST_TANH:
        return "keeps function and gradients: latent weights of the kernel's own size"
    return (
        f"keeps the function: weights reach beyond {_LARGEST_TANH:g}, so latent weights are smaller"
    )


def _maximum(kernel: np.ndarray, range_axes: tuple[int, ...]) -> np.ndarray:
    """max|K| of each range, with the reduced axes kept at length 1; 1 where all of it is 0."""
    keep = {axis % kernel.ndim for axis in range_axes}
    reduced = tuple(axis for axis in range(kernel.ndim) if axis not in keep)
    maximum = np.max(np.abs(kernel), axis=reduced, keepdims=True)
    return np.where(maximum > 0.0, maximum, 1.0)
