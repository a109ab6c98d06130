"""How clamping and quantization change the variance of weights."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import tensorflow as tf


def gaussian(
    shape: Sequence[int], variance: float, *key: int, out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Normal weights of mean 0.

    From NumPy, because TensorFlow's normal generator never exceeds 5.7 standard deviations, while
    the largest of the 16 million weights of a 4096 x 4096 layer often does.

    Args:
        shape: of the weights.
        variance: of each of them.
        *key: integers that seed the generator.
        out: an array of this shape to write to.

    >>> gaussian((2, 2), 1.0, 0, 7).tolist() == gaussian((2, 2), 1.0, 0, 7).tolist()
    True
    """
    weights = np.empty(shape, np.float32) if out is None else out
    np.random.Generator(np.random.PCG64(list(key))).standard_normal(out=weights, dtype=np.float32)
    weights *= np.float32(np.sqrt(variance))
    return weights


@dataclasses.dataclass(frozen=True)
class SampleSummary:
    """Mean, standard deviation, smallest and largest of many samples."""

    mean: float
    deviation: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> "SampleSummary":
        """Summarizes two samples or more."""
        numbers = np.asarray(samples, np.float64)
        return cls(
            float(numbers.mean()),
            float(numbers.std(ddof=1)),
            float(numbers.min()),
            float(numbers.max()),
        )

    def __str__(self) -> str:
        """Mean ± standard deviation, to three digits."""
        return f"{self.mean:.3g} ± {self.deviation:.2g}"


def clamping_ratio(weights: npt.NDArray[np.float32]) -> float:
    """VAR[Ŵ] / VAR[W]: the factor by which clamping (Eq. 5 and 6) enlarges the variance of weights.

    The variance is the mean of squares, as in the paper: Gaussian weights have mean 0.

    Args:
        weights: latent weights W, any shape, not all zero.

    >>> round(clamping_ratio(np.array([0.5, -0.5], np.float32)), 3)
    4.0
    """
    return float(_clamping_ratio()(weights.reshape(-1)))


def quantization_ratios(
    weights: npt.NDArray[np.float32], num_bits: int, grid: str
) -> tuple[float, float]:
    """How quantization (Eq. 9) changes the magnitude of clamped weights Ŵ.

    Args:
        weights: latent weights W, any shape.
        num_bits: of the quantized weights Q.
        grid: name of their grid.

    Returns:
        The standard deviation of Q over that of Ŵ, and the same for the root mean square, which
        differs if a grid shifts the mean.
    """
    deviation, root_mean_square = _quantization_ratios(num_bits, grid)(weights.reshape(-1))
    return float(deviation), float(root_mean_square)


@functools.cache
def _clamping_ratio() -> "Callable[[npt.NDArray[np.float32]], tf.Tensor]":
    import tensorflow as tf

    from sat_tf.analysis.measurement import as_graph
    from sat_tf.core import dorefa

    def ratio(weights: tf.Tensor) -> tf.Tensor:
        clamped = dorefa.clamp_weights(weights)
        return tf.reduce_mean(tf.square(clamped)) / tf.reduce_mean(tf.square(weights))

    return as_graph(ratio, tf.TensorSpec([None]))


@functools.cache
def _quantization_ratios(
    num_bits: int, grid: str
) -> "Callable[[npt.NDArray[np.float32]], tuple[tf.Tensor, tf.Tensor]]":
    import tensorflow as tf

    from sat_tf.analysis.measurement import as_graph
    from sat_tf.core import dorefa

    def ratios(weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        clamped = dorefa.clamp_weights(weights)
        quantized = dorefa.quantize_weights(weights, num_bits, grid)
        deviation = tf.math.reduce_std(quantized) / tf.math.reduce_std(clamped)
        squares = [tf.reduce_mean(tf.square(values)) for values in (quantized, clamped)]
        return deviation, tf.sqrt(squares[0] / squares[1])

    return as_graph(ratios, tf.TensorSpec([None]))
