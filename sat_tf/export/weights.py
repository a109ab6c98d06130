"""The weight codes of a deployed graph as they were trained, without what the export multiplies."""

import numpy as np

from sat_tf.export.graph import Linear


def weight_factors(linear: Linear) -> np.ndarray:
    """What the codes of each channel are multiplied by: most often the same in all of them."""
    shared = np.gcd.reduce(np.abs(linear.kernel), axis=linear.inner_axes)
    values, counts = np.unique(shared[shared > 0], return_counts=True)
    usual = int(max(zip(counts, values, strict=True))[1]) if values.size else 1
    return np.where(shared % usual == 0, usual, np.maximum(shared, 1))


def weight_counts(linear: Linear) -> dict[int, int]:
    """How often each code occurs, without the factor that the export multiplies codes by."""
    codes = linear.kernel // linear.along_channels(weight_factors(linear))
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
