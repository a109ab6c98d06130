"""Preprocessing layers inside a model: one factor and one constant for each channel of a tensor.

`Rescaling` and `Normalization` compute y = slope · x + offset. Where a positive factor without an
offset reads the image, its integers stay what they are, and only mean something else. Any other
gets 8-bit codes of its own: with an offset, zero padding behind it is no pixel, so that it cannot
be part of the first layer's weights and bias.
"""

import numpy as np
import tf_keras as keras


def is_plain_factor(layer: keras.layers.Layer) -> bool:
    """Whether the layer multiplies by one positive number, and does nothing else."""
    if type(layer) is not keras.layers.Rescaling:
        return False
    scale, offset = np.asarray(layer.scale), np.asarray(layer.offset)
    same = np.all(scale == scale.flat[0]) and np.all(np.isfinite(scale))
    return bool(same and scale.flat[0] > 0.0 and np.all(offset == 0.0))


def slope_and_offset(layer: keras.layers.Layer) -> tuple[np.ndarray, np.ndarray]:
    """What a layer without an `affine_problem` multiplies by, and adds.

    Returns:
        Two float64 arrays, of one number or of one for each channel.
    """
    if type(layer) is keras.layers.Rescaling:
        slope, offset = (np.asarray(v, np.float64) for v in (layer.scale, layer.offset))
        return _by_channel(slope), _by_channel(offset)
    mean = np.asarray(layer.mean, np.float64)
    deviation = np.sqrt(np.asarray(layer.variance, np.float32)).astype(np.float64)
    deviation = np.maximum(deviation, keras.backend.epsilon())
    if layer.invert:
        return _by_channel(deviation), _by_channel(mean)
    return _by_channel(1.0 / deviation), _by_channel(-mean / deviation)


def affine_problem(layer: keras.layers.Layer) -> str | None:
    """Why this preprocessing layer cannot be quantized, and what to do; None where it can."""
    names = ("scale", "offset") if type(layer) is keras.layers.Rescaling else ("mean", "variance")
    for name in names:
        value = getattr(layer, name, None)
        if value is None:
            continue
        shape = np.shape(value)
        if any(size != 1 for size in shape[:-1]):
            return (
                f"received a {name} of shape {shape}, expected one number, or one for each "
                "channel; use axis=-1"
            )
        if not np.all(np.isfinite(np.asarray(value))):
            return f"received a {name} that is NaN or infinite, expected finite numbers; set it"
    return None


def constant_copy(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The same Normalization with its mean and variance as settings instead of weights.

    Adapted ones compute with them only after `finalize_state`, which copies and restored weights
    miss.
    """
    layer.finalize_state()
    mean, variance = (np.asarray(value) for value in (layer.mean, layer.variance))
    several = mean.size > 1 or layer.axis
    return keras.layers.Normalization(
        axis=-1 if several else None,
        mean=mean.reshape(-1).tolist() if several else float(mean.flat[0]),
        variance=variance.reshape(-1).tolist() if several else float(variance.flat[0]),
        invert=layer.invert,
        name=layer.name,
        trainable=layer.trainable,
        dtype=layer.dtype_policy,
    )


def _by_channel(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1) if values.size > 1 else values.reshape(())
