"""Preprocessing layers inside a model: one factor and one constant for each channel of a tensor.

`Rescaling` and `Normalization` compute y = slope · x + offset. Where a positive factor without an
offset reads the image, its integers stay the same, on another scale. Any other layer gets 8-bit
codes of its own: with an offset, zero padding behind it is not a pixel, so that it cannot be folded
into the first layer.
"""

from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.graph.layers.kind import SAME, Kinds, LayerKind, Role


def is_plain_factor(layer: keras.layers.Layer) -> bool:
    """Whether the layer multiplies by one positive number, and does nothing else."""
    if not isinstance(layer, keras.layers.Rescaling):
        return False
    scale, offset = np.asarray(layer.scale), np.asarray(layer.offset)
    same = np.all(scale == scale.flat[0]) and np.all(np.isfinite(scale))
    return bool(same and scale.flat[0] > 0.0 and np.all(offset == 0.0))


def slope_and_offset(layer: keras.layers.Layer) -> tuple[np.ndarray, np.ndarray]:
    """The slope and the offset of a layer without an `affine_problem`.

    Returns:
        Two float64 arrays, of one number or of one for each channel.
    """
    if isinstance(layer, keras.layers.Rescaling):
        slope, offset = (np.asarray(v, np.float64) for v in (layer.scale, layer.offset))
        return _by_channel(slope), _by_channel(offset)
    mean, variance = (np.asarray(value, np.float32) for value in _mean_and_variance(layer))
    mean, deviation = mean.astype(np.float64), np.sqrt(variance).astype(np.float64)
    deviation = np.maximum(deviation, keras.backend.epsilon())
    if layer.invert:
        return _by_channel(deviation), _by_channel(mean)
    return _by_channel(1.0 / deviation), _by_channel(-mean / deviation)


def affine_problem(layer: keras.layers.Layer) -> str | None:
    """Why this preprocessing layer cannot be quantized, and what to do; None where it can."""
    if is_adapted(layer) and not layer.built:
        return None
    rescaling = isinstance(layer, keras.layers.Rescaling)
    names = ("scale", "offset") if rescaling else ("mean", "variance")
    values = (layer.scale, layer.offset) if rescaling else _mean_and_variance(layer)
    for name, value in zip(names, values, strict=True):
        shape = np.shape(value)
        if any(size != 1 for size in shape[:-1]):
            return (
                f"received a {name} of shape {shape}, expected one number, or one for each "
                "channel; use axis=-1"
            )
        if not np.all(np.isfinite(np.asarray(value))):
            return f"received a {name} that is NaN or infinite, expected finite numbers; set it"
    return None


@keras.utils.register_keras_serializable(package="sat_tf")
class AdaptedNormalization(keras.layers.Normalization):
    """A Normalization that computes with the mean and the variance that are its weights now.

    Keras' own copies them to constants when it is adapted or loaded from a file of a model, so that
    weights which are set, or restored in any other way, have no effect.
    """

    def finalize_state(self) -> None:
        """Takes no constants."""
        if self.input_mean is None and self.built:
            self.mean, self.variance = self.adapt_mean, self.adapt_variance


def is_adapted(layer: keras.layers.Layer) -> bool:
    """Whether a layer has its mean and variance as weights, not as settings."""
    return isinstance(layer, keras.layers.Normalization) and layer.input_mean is None


def adapted_copy(layer: keras.layers.Normalization) -> AdaptedNormalization:
    """The same layer, unbuilt, as one that computes with its weights."""
    return AdaptedNormalization.from_config(layer.get_config())


def _mean_and_variance(layer: keras.layers.Normalization) -> tuple[Any, ...]:
    values = layer.mean, layer.variance
    if not is_adapted(layer):
        return values
    # Keras' own layer may not have taken its constants from its weights yet.
    weights = layer.adapt_mean, layer.adapt_variance
    return tuple(
        np.reshape(np.asarray(weight), np.shape(value))
        for weight, value in zip(weights, values, strict=True)
    )


def _by_channel(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1) if values.size > 1 else values.reshape(())


KINDS: Kinds = {
    keras.layers.Rescaling: LayerKind(Role.AFFINE, affine_problem, keras3=SAME),
    keras.layers.Normalization: LayerKind(Role.AFFINE, affine_problem, keras3=SAME),
    AdaptedNormalization: LayerKind(Role.AFFINE, affine_problem),
}
