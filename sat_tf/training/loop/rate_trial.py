"""The learning rate of a stage that starts from a trained model, chosen by a short trial."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.calibrate import estimate_statistics
from sat_tf.training.config.sections import TRIED_RATES
from sat_tf.training.step.learner import Learner

STEPS = 16
MEASURED_IMAGES = 256
_BATCH_SIZE = 64


class Distance:
    """How far the answers of a model are from those of the float model that it comes from.

    The mean over training images, prepared like held-out ones, of the divergence
    Σ p log(p / q), with p and q the probabilities of the float model and of the other, whose
    statistics of normalization are measured first: a few steps leave moving averages behind.

    Args:
        float_model: from images to logits.
        model: a copy of the one that is trained, not bound to a strategy.
        images: as both take them.
    """

    def __init__(self, float_model: keras.Model, model: keras.Model, images: np.ndarray) -> None:
        self._model, self._images = model, images
        self._expected = self._log_probabilities(float_model)

    def __call__(self, weights: Sequence[np.ndarray]) -> float | None:
        """The distance with these weights; None where it is not finite."""
        self._model.set_weights(weights)
        try:
            estimate_statistics(self._model, self._images, num_images=len(self._images))
        except ValueError:  # an activation is not finite
            return None
        of_model = self._log_probabilities(self._model)
        mean = np.sum(np.exp(self._expected) * (self._expected - of_model), axis=-1).mean()
        return float(mean) if np.isfinite(mean) else None

    def _log_probabilities(self, model: keras.Model) -> np.ndarray:
        batches = (
            self._images[start : start + _BATCH_SIZE]
            for start in range(0, len(self._images), _BATCH_SIZE)
        )
        logits = [model(tf.cast(batch, tf.float32), training=False) for batch in batches]
        values: np.ndarray = tf.nn.log_softmax(tf.cast(tf.concat(logits, 0), tf.float64)).numpy()
        return values


def try_rates(
    model: keras.Model,
    learner: Learner,
    optimizer: keras.optimizers.Optimizer,
    batches: Callable[[], tf.data.Dataset],
    distance: Callable[[Sequence[np.ndarray]], float | None],
    *,
    around: Sequence[keras.callbacks.Callback] = (),
) -> dict[float, float | None]:
    """Trains a model for a few steps at each of `TRIED_RATES`, from the same weights.

    Each is the stage in miniature: the same batches, momentum from 0, and a rate that falls to 0 on
    half a cosine. The loss of the steps themselves is no guide, because a model that leaves all
    that it knows behind for the batches at hand lowers it fastest.

    Args:
        model: whose weights are trained; it has its weights again afterwards.
        learner: trains it, compiled.
        optimizer: of the learner, SGD.
        batches: makes the batches, the same ones in each call.
        distance: from the model's weights; see `Distance`.
        around: what steps need.

    Returns:
        The distance by rate; None where it is not finite.
    """
    weights = model.get_weights()
    distances: dict[float, float | None] = {}
    for rate in TRIED_RATES:
        model.set_weights(weights)
        for variable in optimizer.variables:
            variable.assign(tf.zeros_like(variable))

        def cool(step: int, logs: Any, rate: float = rate) -> None:
            optimizer.learning_rate = rate * 0.5 * (1.0 + math.cos(math.pi * step / STEPS))

        callbacks = [*around, keras.callbacks.LambdaCallback(on_train_batch_begin=cool)]
        learner.fit(batches(), steps_per_epoch=STEPS, callbacks=callbacks, verbose=0)
        distances[rate] = distance(model.get_weights())
    model.set_weights(weights)
    return distances


def chosen(distances: Mapping[float, float | None]) -> float:
    """Returns the rate with the smallest distance; the lowest rate where all have diverged.

    >>> chosen({0.001: 0.52, 0.01: 0.41, 0.1: None})
    0.01
    """

    def order(rate: float) -> tuple[float, float]:
        distance = distances[rate]
        return (math.inf if distance is None else distance, rate)

    return min(distances, key=order)
