"""Moving statistics of BatchNormalization next to those measured on a few images."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tf_keras as keras

# Mean deviation, in standard deviations, up to which statistics are those of the images: 0.15 is
# what chance makes of 64 values a channel.
STALE = 0.25
# Statistics that fit a network so much better than another are its own.
_CLEARLY_BETTER = 0.5


class StaleStatisticsWarning(UserWarning):
    """Statistics of BatchNormalization that are not those of the images were replaced."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Mean and variance of the channels of one layer, float64."""

    mean: np.ndarray
    variance: np.ndarray
    epsilon: float

    def deviation(self, measured: "Statistics") -> np.ndarray:
        """How far they are from others, by channel, in the others' standard deviations."""
        spread = np.maximum(measured.variance, 0.0) + self.epsilon
        ratio = np.maximum(self.variance, 0.0) + self.epsilon
        return np.abs(self.mean - measured.mean) / np.sqrt(spread) + 0.5 * np.abs(
            np.log(ratio / spread)
        )

    def moved(self, start: "Statistics", end: "Statistics") -> "Statistics":
        """The same change as from one to another: a shift of the mean, a factor on the spread."""
        factor = (end.variance + self.epsilon) / (start.variance + self.epsilon)
        return Statistics(
            self.mean + end.mean - start.mean,
            np.maximum((self.variance + self.epsilon) * factor - self.epsilon, 0.0),
            self.epsilon,
        )


def read_statistics(norms: Sequence[keras.layers.BatchNormalization]) -> list[Statistics]:
    """The moving statistics of layers."""
    return [
        Statistics(
            norm.moving_mean.numpy().astype(np.float64),
            norm.moving_variance.numpy().astype(np.float64),
            float(norm.epsilon),
        )
        for norm in norms
    ]


def assign_statistics(
    norms: Sequence[keras.layers.BatchNormalization], statistics: Sequence[Statistics]
) -> None:
    """Gives layers these moving statistics."""
    for norm, own in zip(norms, statistics, strict=True):
        norm.moving_mean.assign(own.mean)
        norm.moving_variance.assign(own.variance)


def best_statistics(
    own: Sequence[Statistics], unrounded: Sequence[Statistics], quantized: Sequence[Statistics]
) -> list[Statistics]:
    """Statistics for a quantized network, from its own and two measured on the same images.

    Where its own are those of the network before rounding, as after `quantize_model`, they know of
    more images than were measured now: they are moved by what rounding does to these. Otherwise,
    as where it has been trained quantized or they are stale, the measured ones are taken.

    Args:
        own: what the layers have.
        unrounded: measured with neither weights nor activations rounded.
        quantized: measured with both.
    """
    from_unrounded, from_quantized = (
        mean_deviation(own, measured) for measured in (unrounded, quantized)
    )
    if from_unrounded > STALE or from_quantized < _CLEARLY_BETTER * from_unrounded:
        return list(quantized)
    return [
        one.moved(start, end) for one, start, end in zip(own, unrounded, quantized, strict=True)
    ]


def mean_deviation(own: Sequence[Statistics], measured: Sequence[Statistics]) -> float:
    """How far statistics are from measured ones, in standard deviations; the mean over channels."""
    deviations = [np.ravel(o.deviation(m)) for o, m in zip(own, measured, strict=True)]
    return float(np.mean(np.concatenate(deviations))) if deviations else 0.0
