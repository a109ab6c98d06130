"""Normalizations, and preprocessing inside a model: one factor and one constant for each channel.

`Rescaling` and `Normalization` compute y = slope · x + offset. Where a positive factor without an
offset reads the image, its integers stay the same, on another scale. Any other layer of the two
gets 8-bit codes of its own: with an offset, zero padding after it is not a pixel, so that it
cannot be folded into the first layer.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.layers import kind
from sat_tf.graph.operation_layers import RMSNormalization

L = keras.layers


@keras.utils.register_keras_serializable(package="sat_tf")
class SynchronizedBatchNormalization(keras.layers.BatchNormalization):
    """Takes its statistics over all replicas, and averages them as one device does.

    On one device, the fused kernel for images averages the unbiased variance of a batch, V · N /
    (N - 1) for the variance V of N numbers a channel. Keras averages V over several replicas; here
    the factor N / (N - 1) is added, with N over all replicas. Inputs other than images have V
    everywhere.

    It exists during training only: files hold the BatchNormalization of Keras.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "synchronized": True})

    def add_weight(self, *args: Any, **options: Any) -> tf.Variable:
        """Adds a variable; moving statistics are read and saved from the first replica."""
        # All replicas have the same; their mean, which Keras would take, is rounded.
        if options.get("aggregation") == tf.VariableAggregation.MEAN:
            options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return super().add_weight(*args, **options)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The normalized inputs; in training, this updates the moving statistics."""
        updates = isinstance(training, bool | int) and training and self.trainable
        if not updates or inputs.shape.rank not in (4, 5):
            return super().call(inputs, training=training, mask=mask)
        before = tf.convert_to_tensor(self.moving_variance)
        outputs = super().call(inputs, training=training, mask=mask)
        # The moving variance became μ v + (1 - μ) V.
        share = self.moving_variance - self.momentum * before
        count = tf.cast(tf.size(inputs) // tf.size(before), share.dtype)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, count)
        self.moving_variance.assign_add(tf.math.divide_no_nan(share, total - 1.0))
        return outputs


def synchronized_class(
    kind: type[keras.layers.Layer], synchronized: bool
) -> type[keras.layers.Layer]:
    """The class that normalizes over the batch of a replica, or of all; other classes stay."""
    both = (keras.layers.BatchNormalization, SynchronizedBatchNormalization)
    return both[synchronized] if kind in both else kind


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Mean and variance of the channels of one BatchNormalization, float64, and its ε."""

    mean: np.ndarray
    variance: np.ndarray
    epsilon: float

    @classmethod
    def of(cls, norm: keras.layers.Layer) -> "Statistics":
        """The moving statistics of a layer."""
        mean, variance = (
            value.numpy().astype(np.float64) for value in (norm.moving_mean, norm.moving_variance)
        )
        return cls(mean, variance, float(norm.epsilon))

    @classmethod
    def over(cls, parts: Sequence["Statistics"], shares: Sequence[float]) -> "Statistics":
        """The statistics of several parts together, each a share of all values."""
        mean = sum(share * part.mean for part, share in zip(parts, shares, strict=True))
        squares = (part.variance + (part.mean - mean) ** 2 for part in parts)
        variance = sum(share * square for square, share in zip(squares, shares, strict=True))
        return cls(np.asarray(mean), np.asarray(variance), parts[0].epsilon)

    @property
    def square(self) -> np.ndarray:
        """The square of the layer's divisor: variance + ε."""
        return np.asarray(self.variance + self.epsilon)

    def deviation(self, measured: "Statistics") -> np.ndarray:
        """The distance from other statistics, by channel, in their standard deviations."""
        square, measured_square = (
            dataclasses.replace(statistics, variance=np.maximum(statistics.variance, 0.0)).square
            for statistics in (self, measured)
        )
        shift = np.abs(self.mean - measured.mean) / np.sqrt(measured_square)
        return np.asarray(shift + 0.5 * np.abs(np.log(square / measured_square)))

    def moved(self, start: "Statistics", end: "Statistics") -> "Statistics":
        """These statistics, changed as from `start` to `end`: mean shifted, variance scaled."""
        variance = np.maximum(self.square * (end.square / start.square) - self.epsilon, 0.0)
        return Statistics(self.mean + end.mean - start.mean, variance, self.epsilon)


def _refuse_batch_normalization(layer: Any) -> str | None:
    axes = kind.axes_of(layer)
    rank = layer.input_spec.ndim if layer.input_spec else None
    if axes not in ([-1], [rank - 1] if rank else [-1]):
        return f"received axis={axes}, expected the channel axis, -1"
    if getattr(layer, "renorm", False) or getattr(layer, "virtual_batch_size", None) is not None:
        return "received renorm or virtual_batch_size, expected plain BatchNormalization"
    return None


def _moments(layer: Any) -> kind.Moments:
    gamma, beta = (
        None if value is None else np.asarray(value, np.float64).reshape(-1)
        for value in (layer.gamma, layer.beta)
    )
    variance = np.ones(1) if gamma is None else gamma**2
    mean = np.zeros(1) if beta is None else beta
    return mean, variance


def _batch_moments(layer: Any) -> kind.Moments:
    mean, variance = _moments(layer)
    spread = np.maximum(np.asarray(layer.moving_variance, np.float64), 0.0)
    return mean, variance * spread / np.maximum(spread + layer.epsilon, 1e-30)


def is_plain_factor(layer: keras.layers.Layer) -> bool:
    """Whether the layer multiplies by one positive number, and does nothing else."""
    if not isinstance(layer, keras.layers.Rescaling):
        return False
    scale, offset = np.asarray(layer.scale), np.asarray(layer.offset)
    same = np.all(scale == scale.flat[0]) and np.all(np.isfinite(scale))
    return bool(same and scale.flat[0] > 0.0 and np.all(offset == 0.0))


def slope_and_offset(layer: keras.layers.Layer) -> tuple[np.ndarray, np.ndarray]:
    """The slope and the offset of a layer without an `affine_problem`, one or one a channel."""
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
    """A Normalization that computes with its current weights, not with constants made of them."""

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


_BATCH_NORMALIZATION = kind.LayerKind(
    kind.Role.NORM,
    _refuse_batch_normalization,
    weights_by_channel=True,
    normalizes=True,
    moments=_batch_moments,
)

_OVER_FEATURES = kind.LayerKind(
    kind.Role.FUNCTION,
    kind.refuse_batch_axis,
    weights_by_channel=True,
    normalizes=True,
    moments=_moments,
    function=kind.Function(),
    alike_at_all_sizes=True,
    keras3=kind.SAME,
)

KINDS: kind.Kinds = {
    L.BatchNormalization: dataclasses.replace(
        _BATCH_NORMALIZATION, keras3=kind.Keras3(one_axis=True), short_name="BN"
    ),
    SynchronizedBatchNormalization: _BATCH_NORMALIZATION,
    L.LayerNormalization: _OVER_FEATURES,
    L.GroupNormalization: dataclasses.replace(_OVER_FEATURES, alike_at_all_sizes=False),
    RMSNormalization: dataclasses.replace(_OVER_FEATURES, moments=None),
    L.UnitNormalization: dataclasses.replace(
        _OVER_FEATURES, normalizes=False, moments=None, alike_at_all_sizes=False
    ),
    L.Rescaling: kind.LayerKind(kind.Role.AFFINE, affine_problem, keras3=kind.SAME),
    L.Normalization: kind.LayerKind(kind.Role.AFFINE, affine_problem, keras3=kind.SAME),
    AdaptedNormalization: kind.LayerKind(
        kind.Role.AFFINE, affine_problem, keras3=kind.Keras3(name="Normalization")
    ),
}
