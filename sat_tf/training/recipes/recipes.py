"""Recipes beyond the paper: targets beside the labels, progressive bits, averaged weights.

A stage takes them as one value, `StageRecipes`. Oscillating weights have a module of their own.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import tensorflow as tf
import tf_keras as keras

from sat_tf.data.source import ImageSource
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.training.config.config import Config
from sat_tf.training.config.recipes import FLOAT_STAGE
from sat_tf.training.recipes.oscillation import Oscillation, OscillationLog
from sat_tf.training.state.classifier_file import read_classifier, read_weights
from sat_tf.training.state.run_folder import FLOAT_MODEL, RunFolder
from sat_tf.training.step.distribution import replica_variable
from sat_tf.training.step.learner import ImageLoss, cross_entropy, training_copy


def soft_divergence(teacher: tf.Tensor, student: tf.Tensor, temperature: float) -> tf.Tensor:
    """How far the student's probabilities are from the teacher's: T² KL(p || q).

    p = softmax(teacher / T), q = softmax(student / T), KL(p || q) = Σ_k p_k (log p_k - log q_k).
    The gradient is T (q - p); without the factor T² it would shrink with T².

    Args:
        teacher: float32 logits (batch, classes); they get no gradient.
        student: float32 logits (batch, classes).
        temperature: T > 0.

    Returns:
        (batch,), float32, 0 or more.

    >>> teacher, student = tf.math.log([[0.5, 0.5]]), tf.math.log([[0.25, 0.75]])
    >>> round(float(soft_divergence(teacher, student, 1.0)[0]), 6)
    0.143841
    """
    log_p = tf.nn.log_softmax(tf.stop_gradient(teacher) / temperature)
    log_q = tf.nn.log_softmax(student / temperature)
    return temperature**2 * tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1)


def distilled(
    image_loss: ImageLoss, teacher: keras.Model, *, temperature: float, weight: float
) -> ImageLoss:
    """A loss that also asks for the logits of a teacher.

    (1 - w) image_loss + w T² KL(softmax(teacher / T) || softmax(student / T)). The teacher sees the
    same images, as in inference, and its logits are constants to the gradient.

    Reference: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015.

    Args:
        image_loss: the loss of the labels.
        teacher: gives logits for what the student is fed. It is not saved with anything; under a
            strategy, create it in the strategy's scope.
        temperature: T > 0; the higher, the more the classes count that the teacher finds unlikely.
        weight: w, in [0, 1].
    """

    def loss(images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        target = tf.cast(teacher(tf.cast(images, tf.float32), training=False), tf.float32)
        soft = soft_divergence(target, logits, temperature)
        return (1.0 - weight) * image_loss(images, labels, logits) + weight * soft

    return loss


def smoothed_cross_entropy(amount: float) -> ImageLoss:
    """Cross-entropy with label smoothing.

    -Σ_k t_k log softmax(logits)_k with t_k = (1 - ε) [k = label] + ε / K over K classes, that is
    (1 - ε) times the usual loss plus ε times its mean over all classes.

    Reference: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.

    Args:
        amount: ε, from 0, the usual loss, to below 1.

    Returns:
        The loss of each image; for a negative label it is meaningless.

    >>> loss = smoothed_cross_entropy(0.1)
    >>> round(float(loss(None, tf.constant([0]), tf.math.log([[0.5, 0.25, 0.25]]))[0]), 4)
    0.7394
    """

    def image_loss(images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        del images
        certain = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
        of_all_classes = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        return (1.0 - amount) * certain + amount * of_all_classes

    return image_loss


class ProgressiveBits(tf.Module):
    """A floor under the bits of every quantizer of a model, which comes down during training.

    A quantizer of b bits works with max(b, floor), weights and activations alike. The floor is a
    variable of the graph, so one trace serves all of its values; at the end it is 0, and every
    quantizer has the bits of the policy.

    To be called after every step of the optimizer, in every replica. Create it in the strategy's
    scope.

    Args:
        model: quantized by sat-tf; the one that is trained. Copies of it have no floor.
        bits: the floors, falling.
        shares: the share of the steps that each lasts; positive, with a sum below 1.
        total_steps: of the stage.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        bits: Sequence[int],
        shares: Sequence[float],
        total_steps: int,
    ) -> None:
        super().__init__(name="progressive_bits")
        self._floors = (*bits, 0)
        ends = [sum(shares[: index + 1]) for index in range(len(shares))]
        self._ends = tuple(round(end * total_steps) for end in ends)
        self.steps = replica_variable(0, "steps", dtype=tf.int64)
        self.floor = replica_variable(self._floor_at(0), "bit_floor")
        for layer in model.layers:
            if isinstance(layer, QuantizedLayer):
                layer.keep_bits_above(self.floor)

    def __call__(self) -> None:
        """Counts a step, and sets the floor of the next one."""
        steps = self.steps + 1
        self.steps.assign(steps)
        self.floor.assign(self._floor_at(steps))

    def _floor_at(self, steps: int | tf.Tensor) -> tf.Tensor:
        """The floor after some steps; 0 after the last one."""
        over = tf.cast(steps, tf.int64) >= tf.constant(self._ends, tf.int64)
        return tf.gather(
            tf.constant(self._floors, tf.int64), tf.reduce_sum(tf.cast(over, tf.int64))
        )


class WeightAverage(tf.Module):
    """The exponential moving average of all float variables of a model.

    After step t, counted from 1: average <- d average + (1 - d) weight, with
    d = min(decay, (1 + t) / (10 + t)), so that the first steps are soon forgotten. It holds latent
    weights, biases, clipping levels, and the statistics of BatchNormalization and of observed
    ranges.

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.

    To be called after every step of the optimizer, in every replica. Create it in the strategy's
    scope.

    Args:
        model: the one that is trained.
        decay: weight of the past after many steps, between 0 and 1.
    """

    def __init__(self, model: keras.Model, *, decay: float) -> None:
        super().__init__(name="weight_average")
        self._decay = decay
        weights = [weight for weight in model.weights if weight.dtype.is_floating]
        # A function hides them from tf.Module, so that they are not saved twice.
        self._weights = lambda: weights
        self.steps = replica_variable(0, "steps", dtype=tf.int64)
        self.averages = [
            replica_variable(
                tf.convert_to_tensor(weight),
                "average",
                # Statistics of each replica's own images, and so their averages, are saved as
                # their mean.
                aggregation=weight.aggregation
                if weight.synchronization == tf.VariableSynchronization.ON_READ
                else tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            for weight in weights
        ]

    def __call__(self) -> None:
        """Takes the weights after a step into the average."""
        steps = self.steps + 1
        self.steps.assign(steps)
        count = tf.cast(steps, tf.float32)
        share = 1.0 - tf.minimum(self._decay, (1.0 + count) / (10.0 + count))
        for average, weight in zip(self.averages, self._weights(), strict=True):
            change = tf.cast(share, average.dtype) * (tf.convert_to_tensor(weight) - average)
            average.assign_add(change)

    def swap(self) -> None:
        """Exchanges weights and averages; outside of replicas."""
        for average, weight in zip(self.averages, self._weights(), strict=True):
            former = weight.numpy()
            weight.assign(average.numpy())
            average.assign(former)

    def keep(self) -> None:
        """Gives the model its average for good; outside of replicas."""
        for average, weight in zip(self.averages, self._weights(), strict=True):
            weight.assign(average.numpy())

    def measured(self) -> keras.callbacks.Callback:
        """A callback that has held-out images measured with the average in place of the weights."""
        return keras.callbacks.LambdaCallback(
            on_test_begin=lambda logs: self.swap(), on_test_end=lambda logs: self.swap()
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageRecipes:
    """The recipes of a configuration as one stage takes them.

    Attributes:
        image_loss: the loss of each image.
        after_step: what happens after every step of the optimizer.
        callbacks: what happens around epochs and measuring; they come before all others.
        finish: gives the trained model the weights that the stage ends with; None for those of the
            last step.
    """

    image_loss: ImageLoss
    after_step: Sequence[Callable[[], None]]
    callbacks: Sequence[keras.callbacks.Callback]
    finish: Callable[[], None] | None


def stage_recipes(
    config: Config,
    stage: str,
    model: keras.Model,
    *,
    total_steps: int,
    source: ImageSource,
    folder: RunFolder,
    writes: bool = True,
) -> StageRecipes:
    """Makes the recipes of one stage, under the strategy that is in scope.

    Args:
        config: of the run.
        stage: its name.
        model: the one that is trained.
        total_steps: how many the stage has.
        source: the data set, which a teacher has to fit.
        folder: of the run, with its trained float model; counts go there.
        writes: whether this process writes them.

    Raises:
        RunError: the file of a teacher is missing, or holds something else.
    """
    recipes, is_quantized = config.recipes, stage == "quantized"
    loss: ImageLoss = cross_entropy
    after_step: list[Callable[[], None]] = []
    callbacks: list[keras.callbacks.Callback] = []
    finish: Callable[[], None] | None = None
    if recipes.label_smoothing is not None and stage in recipes.label_smoothing.stages:
        loss = smoothed_cross_entropy(recipes.label_smoothing.amount)
    plan = recipes.distillation
    is_taught = plan is not None and stage in plan.stages
    teacher = read_teacher(config, source, folder) if is_taught else None
    if plan is not None and teacher is not None:
        # The copy has no regularizers, and its variables are where the student's are.
        teacher = training_copy(teacher)
        loss = distilled(loss, teacher, temperature=plan.temperature, weight=plan.weight)
    if is_quantized and recipes.progressive_bits is not None:
        bits = recipes.progressive_bits.model_dump()
        after_step.append(ProgressiveBits(model, total_steps=total_steps, **bits))
    if is_quantized and recipes.oscillation is not None:
        settings = recipes.oscillation.model_dump()
        oscillation = Oscillation(model, total_steps=total_steps, **settings)
        after_step.append(oscillation)
        callbacks.append(OscillationLog(oscillation, folder if writes else None))
    if recipes.weight_average is not None and stage in recipes.weight_average.stages:
        # It comes after the others, so that it averages the weights as they have changed them.
        average = WeightAverage(model, decay=recipes.weight_average.decay)
        after_step.append(average)
        callbacks.append(average.measured())
        finish = average.keep
    return StageRecipes(image_loss=loss, after_step=after_step, callbacks=callbacks, finish=finish)


def read_teacher(
    config: Config, source: ImageSource, folder: RunFolder | None = None
) -> keras.Model | None:
    """The teacher of a run, which fits the data; None if it has none, or has still to train it.

    Args:
        config: of the run.
        source: the data set.
        folder: of the run, once its float stage has left the teacher there.

    Raises:
        RunError: the file of the teacher is missing, or holds something else.
    """
    plan = config.recipes.distillation
    if plan is None:
        return None
    file: str | pathlib.Path = plan.teacher
    if plan.teacher == FLOAT_STAGE:
        if folder is None:
            return None
        file = folder.file(FLOAT_MODEL)
    key = "recipes.distillation.teacher"
    fit = {"image_size": source.image_size, "num_classes": source.num_classes}
    if plan.model is not None:
        name, options = plan.model.name, plan.model.options
        return read_weights(file, name=name, options=options, key=key, **fit)
    return read_classifier(file, key=key, safe_mode=not config.training.trust_model, **fit)
