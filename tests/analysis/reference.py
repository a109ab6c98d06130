"""The gradient-flowing law on a tiny network in float64 NumPy, written from the formulas alone."""

import numpy as np


def dense_network(x, y, kernels, gammas, epsilon):
    """Gradients of a network of Dense layers, with BatchNormalization and ReLU between them.

    Args:
        x: inputs (n, features).
        y: class numbers (n,).
        kernels: one (inputs, outputs) for each layer.
        gammas: one (outputs,) for each layer but the last, or None where it has no normalization.
        epsilon: of the normalizations.

    Returns:
        The gradients of the mean cross entropy with respect to the kernels, and the loss.
    """
    inputs, caches = np.asarray(x, np.float64), []
    for kernel, gamma in zip(kernels[:-1], gammas, strict=True):
        z = inputs @ kernel
        if gamma is None:
            cache, h = None, z
        else:
            deviation = np.sqrt(z.var(axis=0) + epsilon)
            unit = (z - z.mean(axis=0)) / deviation
            cache, h = (unit, deviation), gamma * unit
        caches.append((inputs, cache, h))
        inputs = np.maximum(h, 0.0)
    logits = inputs @ kernels[-1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(shares[rows, y]).mean()
    shares[rows, y] -= 1.0
    back = shares / len(y)
    gradients = [inputs.T @ back]
    for kernel, gamma, (before, cache, h), behind in zip(
        kernels[-2::-1], gammas[::-1], caches[::-1], kernels[:0:-1], strict=True
    ):
        back = (back @ behind.T) * (h > 0)
        if cache is not None:
            unit, deviation = cache
            back = back * gamma
            back = (back - back.mean(axis=0) - unit * (back * unit).mean(axis=0)) / deviation
        gradients.insert(0, before.T @ back)
        del kernel
    return gradients, loss


def kappas(kernels, gradients):
    """κ₁ and κ₂ of Dense layers in a row: solved for in the paper's Eq. 3 and 4."""
    found = []
    for index in range(len(kernels) - 1):
        n = kernels[index].shape[0]
        n_hat = kernels[index + 1].shape[1]
        own, behind = gradients[index].var(), gradients[index + 1].var()
        v, w = kernels[index].var(), kernels[index + 1].var()
        found.append((own * n * v / (n_hat * w * behind), own / (n_hat * w * behind)))
    return found
