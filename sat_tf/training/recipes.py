"""Recipes beyond the paper, which a stage takes as one value, `StageRecipes`.

Recipes for weights are modules that are created in the strategy's scope, and called after every
step of the optimizer in every replica.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.messages.tables import write_table
from sat_tf.qat.finetune import StateInBackups
from sat_tf.qat.reconstruction.fit import soft_divergence
from sat_tf.qat.transition_rate import TransitionRate
from sat_tf.qat.wrapper import QuantizedLayer, quantized_layers, weight_quantizer
from sat_tf.quantizers.protocol import WeightQuantizer
from sat_tf.training.config import Config
from sat_tf.training.config_sections import OscillationConfig
from sat_tf.training.data.source import ImageSource
from sat_tf.training.distribution import assign_alike, replica_variable
from sat_tf.training.learner import ImageLoss, cross_entropy, training_copy
from sat_tf.training.run_folder import OSCILLATIONS, RunFolder, TableRow
from sat_tf.training.trained_models import read_teacher


def distilled(
    image_loss: ImageLoss, teacher: keras.Model, *, temperature: float, weight: float
) -> ImageLoss:
    """A loss that also asks for the logits of a teacher.

    (1 - w) image_loss + w T² KL(softmax(teacher / T) || softmax(student / T)), with the weight w in
    [0, 1]. The higher the temperature T, the more the classes count that the teacher finds
    unlikely. The teacher sees the same images, as in inference, and its logits are constants to the
    gradient; it is created in the strategy's scope, and saved with nothing.

    Reference: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015.
    """

    def loss(images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        target = tf.cast(teacher(tf.cast(images, tf.float32), training=False), tf.float32)
        soft = soft_divergence(target, logits, temperature)
        return (1.0 - weight) * image_loss(images, labels, logits) + weight * soft

    return loss


def smoothed_cross_entropy(amount: float) -> ImageLoss:
    """Cross-entropy with label smoothing by the amount ε, from 0, the usual loss, to below 1.

    -Σ_k t_k log softmax(logits)_k with t_k = (1 - ε) [k = label] + ε / K over K classes, that is
    (1 - ε) times the usual loss plus ε times its mean over all classes. For a negative label it is
    meaningless.

    Reference: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.
    """

    def image_loss(images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        certain = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
        of_all_classes = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        return (1.0 - amount) * certain + amount * of_all_classes

    return image_loss


class ProgressiveBits(tf.Module):
    """A floor under the bits of every quantizer of a model, which comes down during training.

    A quantizer of b bits works with max(b, floor), weights and activations alike. The floor is a
    variable of the graph, so one trace serves all of its values; at the end it is 0, and every
    quantizer has the bits of the policy. Copies of the model have no floor.
    """

    def __init__(
        self, model: keras.Model, *, bits: Sequence[int], shares: Sequence[float], total_steps: int
    ) -> None:
        super().__init__(name="progressive_bits")
        self._floors = (*bits, 0)
        ends = [sum(shares[: index + 1]) for index in range(len(shares))]
        self._ends = tuple(round(end * total_steps) for end in ends)
        self.steps = replica_variable(0, "steps", dtype=tf.int64)
        self.floor = replica_variable(self._floor_at(0), "bit_floor")
        for layer in quantized_layers(model):
            layer.keep_bits_above(self.floor)

    def __call__(self) -> None:
        """Counts a step, and sets the floor of the next one."""
        steps = self.steps + 1
        self.steps.assign(steps)
        self.floor.assign(self._floor_at(steps))

    def _floor_at(self, steps: int | tf.Tensor) -> tf.Tensor:
        """The floor after some steps; 0 after the last one."""
        over = tf.cast(steps, tf.int64) >= tf.constant(self._ends, tf.int64)
        stage = tf.reduce_sum(tf.cast(over, tf.int64))
        return tf.gather(tf.constant(self._floors, tf.int64), stage)


class WeightAverage(tf.Module):
    """The exponential moving average of all float variables of a model.

    After step t, counted from 1: average <- d average + (1 - d) weight, with
    d = min(decay, (1 + t) / (10 + t)), so that the first steps are soon forgotten. It holds latent
    weights, biases, clipping levels, and the statistics of BatchNormalization and of observed
    ranges.

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
    """

    def __init__(self, model: keras.Model, *, decay: float) -> None:
        super().__init__(name="weight_average")
        self._decay = decay
        weights = [weight for weight in model.weights if weight.dtype.is_floating]
        # A function hides the weights from tf.Module, so that they are not saved twice.
        self._weights = lambda: weights
        self.steps = replica_variable(0, "steps", dtype=tf.int64)
        self.averages = [
            replica_variable(
                tf.convert_to_tensor(weight),
                "average",
                # Statistics of each replica's own images are saved as their mean, and so are their
                # averages.
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
        """A callback that measures held-out images with the average in place of the weights."""
        return keras.callbacks.LambdaCallback(
            on_test_begin=lambda logs: self.swap(), on_test_end=lambda logs: self.swap()
        )


# The paper calls a weight oscillating if it has more oscillations a step than this.
OSCILLATING = 0.005


@dataclasses.dataclass(frozen=True, kw_only=True)
class OscillationCount(TableRow):
    """How many weights of a layer oscillate."""

    file: ClassVar[str] = OSCILLATIONS

    epoch: int  # The epoch after which they are counted; 0 is the start.
    layer: str  # The name of the layer in the float model.
    bits: int  # Bits of its weights.
    weights: int  # The number of its weights.
    oscillating: int  # How many of them oscillate in more than 1 of 200 steps, and are not frozen.
    frozen: int  # How many of them are frozen.


@dataclasses.dataclass(frozen=True)
class Motion:
    """How the integers n of one kernel have moved; every field is shaped like the kernel."""

    units: tf.Tensor  # The integers n after the last step.
    direction: tf.Tensor  # Sign of the last change of n; 0 if it has never changed.
    frequency: tf.Tensor  # Moving average of the oscillations a step, f.
    average: tf.Tensor  # Moving average of n.

    def after(self, units: tf.Tensor, momentum: float) -> "Motion":
        """The motion one step later.

        A weight oscillates in a step (o = 1, otherwise 0) if its n, now `units`, changes against
        the direction of its last change. f <- (1 - m) f + m o, with the momentum m, and likewise
        for the average of n.
        """
        change = tf.sign(units - self.units)
        oscillates = tf.cast(change * self.direction < 0.0, tf.float32)
        return Motion(
            units=units,
            direction=tf.where(change != 0.0, change, self.direction),
            frequency=self.frequency + momentum * (oscillates - self.frequency),
            average=self.average + momentum * (units - self.average),
        )


class Oscillation(tf.Module):
    """Follows the codes of a model's weights, and freezes weights that oscillate too often.

    A weight whose frequency f exceeds the threshold is frozen to the rounded average of its n. The
    threshold goes from its first to its last value on half a cosine. Latent weights are divided by
    the largest of their range, which keeps changing: after every step a frozen weight is therefore
    set to where it has its code at the current maximum (`dorefa.held_weights`). The weight that is
    the maximum cannot be frozen, so that every range has one.
    The settings are those of `OscillationConfig`.
    """

    def __init__(self, model: keras.Model, *, total_steps: int, **settings: Any) -> None:
        super().__init__(name="oscillation")
        plan = OscillationConfig(**settings)
        self._freeze, self._momentum = plan.freeze, plan.momentum
        self._thresholds = (plan.first_threshold, plan.last_threshold)
        self._start, self._total_steps = round(plan.start * total_steps), total_steps
        self.steps = replica_variable(0, "steps", dtype=tf.int64)
        self.kernels = [
            _Kernel(layer, quantizer, quantizer.num_bits)
            for layer in model.layers
            if (quantizer := weight_quantizer(layer)) is not None
            and quantizer.num_bits is not None
            and quantizer.num_bits <= plan.most_bits
        ]

    def __call__(self) -> None:
        """Follows the weights after a step, and freezes some of them."""
        steps = self.steps + 1
        self.steps.assign(steps)
        begun = steps > self._start
        initial, final = self._thresholds
        done = (tf.cast(steps, tf.float32) - self._start) / max(self._total_steps - self._start, 1)
        done = tf.clip_by_value(done, 0.0, 1.0)
        threshold = final + (initial - final) * 0.5 * (1.0 + tf.cos(math.pi * done))
        moved = [
            kernel.follow(begun, self._momentum, threshold if self._freeze else None)
            for kernel in self.kernels
        ]
        if self._freeze:
            assign_alike([kernel.variable for kernel in self.kernels], moved)

    def counts(self, epoch: int = 0) -> list[OscillationCount]:
        """How many weights of each layer oscillate or are frozen, now: after an epoch."""
        return [kernel.count(epoch) for kernel in self.kernels]


class _Kernel(tf.Module):
    """One kernel, and how it has moved; integers and directions are stored in a byte each."""

    def __init__(self, wrapper: QuantizedLayer, quantizer: WeightQuantizer, bits: int) -> None:
        super().__init__(name="kernel")
        layer, variables = wrapper.layer, wrapper.kernel_variables
        variable = layer_kinds.kernel_of(layer)
        # Functions hide the variables from tf.Module, so that they are not saved twice.
        self._variable = lambda: variable
        self._variables = lambda: variables
        self._quantizer = quantizer
        self._layer_name, self._bits = layer.name, bits
        units = quantizer.units(self._latent(), variables)
        self.units = replica_variable(tf.cast(units, tf.uint8), "units")
        self.direction = replica_variable(tf.zeros(units.shape, tf.int8), "direction")
        self.frequency = replica_variable(tf.zeros(units.shape), "frequency")
        self.average = replica_variable(units, "average")
        self.frozen = replica_variable(tf.zeros(units.shape, tf.bool), "frozen")

    @property
    def variable(self) -> tf.Variable:
        """The latent weights."""
        return self._variable()

    def _latent(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.variable)

    def follow(self, begun: tf.Tensor, momentum: float, threshold: tf.Tensor | None) -> tf.Tensor:
        """Follows one step; returns the latent weights, the frozen ones put back in place."""
        quantizer, frozen = self._quantizer, tf.convert_to_tensor(self.frozen)
        units = tf.cast(self.units, tf.float32)
        variables = self._variables()
        latent = quantizer.hold(self._latent(), variables, units, frozen)
        now = quantizer.units(latent, variables)
        before = Motion(
            units,
            tf.cast(self.direction, tf.float32),
            tf.convert_to_tensor(self.frequency),
            tf.convert_to_tensor(self.average),
        )
        after = before.after(now, momentum)
        units = now
        if threshold is not None:
            freezing = begun & ~frozen & (after.frequency > threshold)
            freezing &= quantizer.can_be_held(latent, variables)
            units = tf.where(freezing, tf.floor(after.average + 0.5), now)
            frozen |= freezing
            latent = quantizer.hold(latent, variables, units, frozen)
            self.frozen.assign(frozen)
        self.units.assign(tf.cast(units, tf.uint8))
        self.direction.assign(tf.cast(tf.where(begun, after.direction, 0.0), tf.int8))
        self.frequency.assign(tf.where(begun, after.frequency, 0.0))
        self.average.assign(tf.where(begun, after.average, now))
        return latent

    def count(self, epoch: int) -> OscillationCount:
        """How many of its weights oscillate or are frozen, after an epoch."""
        frozen = self.frozen.numpy()
        return OscillationCount(
            epoch=epoch,
            layer=self._layer_name,
            bits=self._bits,
            weights=frozen.size,
            oscillating=int(((self.frequency.numpy() > OSCILLATING) & ~frozen).sum()),
            frozen=int(frozen.sum()),
        )


class OscillationLog(keras.callbacks.Callback):
    """Adds the shares of oscillating and frozen weights to the logs, and a table of each layer."""

    def __init__(self, oscillation: Oscillation, folder: RunFolder | None) -> None:
        super().__init__()
        self.oscillation = oscillation
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        counts = self.oscillation.counts(epoch + 1)
        weights = max(sum(count.weights for count in counts), 1)
        logs["oscillating"] = sum(count.oscillating for count in counts) / weights
        logs["frozen"] = sum(count.frozen for count in counts) / weights
        if self.folder is not None:
            # A resumed run writes the rows of later epochs again.
            rows = [row for row in OscillationCount.read(self.folder) if row.epoch <= epoch]
            cells = map(dataclasses.astuple, [*rows, *counts])
            self.folder.write_text(OSCILLATIONS, write_table(OscillationCount.columns(), cells))


@dataclasses.dataclass
class StageRecipes:
    """The recipes of a configuration as one stage takes them."""

    image_loss: ImageLoss = cross_entropy
    # The functions to call after every step of the optimizer.
    after_step: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    # The callbacks around epochs and measuring; they come before all others.
    callbacks: list[keras.callbacks.Callback] = dataclasses.field(default_factory=list)
    # Gives the trained model the weights that the stage ends with; None for those of the last step.
    finish: Callable[[], None] | None = None


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
    """Makes the recipes of one stage, under the strategy that is in scope."""
    recipes, is_quantized, active_recipes = config.recipes, stage == "quantized", StageRecipes()
    if recipes.label_smoothing is not None and stage in recipes.label_smoothing.stages:
        active_recipes.image_loss = smoothed_cross_entropy(recipes.label_smoothing.amount)
    plan = recipes.distillation
    is_taught = plan is not None and stage in plan.stages
    teacher = read_teacher(config, source, folder) if is_taught else None
    if plan is not None and teacher is not None:
        # The copy has no regularizers, and its variables are where the student's are.
        teacher = training_copy(teacher)
        active_recipes.image_loss = distilled(
            active_recipes.image_loss, teacher, temperature=plan.temperature, weight=plan.weight
        )
    if is_quantized and recipes.progressive_bits is not None:
        bits = recipes.progressive_bits.model_dump()
        active_recipes.after_step.append(ProgressiveBits(model, total_steps=total_steps, **bits))
    if is_quantized and recipes.oscillation is not None:
        settings = recipes.oscillation.model_dump()
        oscillation = Oscillation(model, total_steps=total_steps, **settings)
        active_recipes.after_step.append(oscillation)
        active_recipes.callbacks.append(OscillationLog(oscillation, folder if writes else None))
    if is_quantized and recipes.transition_rate is not None:
        settings = recipes.transition_rate.model_dump()
        transition_rate = TransitionRate(total_steps, model=model, **settings)
        model.transition_rate = StateInBackups(transition_rate)
        active_recipes.callbacks.append(transition_rate)
    if recipes.weight_average is not None and stage in recipes.weight_average.stages:
        # The average comes after the others, so that it includes their changes of the weights.
        average = WeightAverage(model, decay=recipes.weight_average.decay)
        active_recipes.after_step.append(average)
        active_recipes.callbacks.append(average.measured())
        active_recipes.finish = average.keep
    return active_recipes
