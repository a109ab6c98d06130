"""Weights that oscillate between two codes: counted, and frozen (Nagel et al., 2022)."""

import dataclasses
import math
from typing import Any, ClassVar

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.qat.wrapper import QuantizedLayer, weight_quantizer
from sat_tf.quantizers.protocol import WeightQuantizer
from sat_tf.training.state.history import Row
from sat_tf.training.state.run_folder import OSCILLATIONS, RunFolder
from sat_tf.training.step.distribution import assign_alike, replica_variable

# The paper calls a weight with more oscillations a step than this an oscillating one.
OSCILLATING = 0.005


@dataclasses.dataclass(frozen=True, kw_only=True)
class OscillationCount(Row):
    """How many weights of a layer oscillate.

    Attributes:
        epoch: after which; 0 is the start.
        layer: the name of the layer in the float model.
        bits: of its weights.
        weights: how many it has.
        oscillating: how many of them oscillate in more than 1 of 200 steps, and are not frozen.
        frozen: how many of them are frozen.
    """

    file: ClassVar[str] = OSCILLATIONS

    epoch: int
    layer: str
    bits: int
    weights: int
    oscillating: int
    frozen: int


@dataclasses.dataclass(frozen=True)
class Motion:
    """How the integers n of one kernel have moved; every field is shaped like the kernel.

    Attributes:
        units: n after the last step.
        direction: sign of the last change of n; 0 if it has never changed.
        frequency: moving average of the oscillations a step, f.
        average: moving average of n.
    """

    units: tf.Tensor
    direction: tf.Tensor
    frequency: tf.Tensor
    average: tf.Tensor

    def after(self, units: tf.Tensor, momentum: float) -> "Motion":
        """The motion one step later.

        A weight oscillates in a step (o = 1, otherwise 0) if its n changes against the direction
        of its last change. f <- (1 - m) f + m o, and likewise for the average of n.

        Args:
            units: n now, float32.
            momentum: m, the weight of a step.
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

    To be called after every step of the optimizer, in every replica. Create it in the strategy's
    scope.

    Args:
        model: quantized by sat-tf; the one that is trained.
        total_steps: of the stage.
        freeze: freeze weights, or only count.
        momentum: weight of a step in the averages, between 0 and 1.
        first_threshold: f above which weights are frozen when it begins.
        last_threshold: the same at the end.
        start: share of the steps after which it begins.
        most_bits: layers with more bits are left alone.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        total_steps: int,
        freeze: bool = True,
        momentum: float = 0.01,
        first_threshold: float = 0.04,
        last_threshold: float = 0.01,
        start: float = 0.0,
        most_bits: int = 4,
    ) -> None:
        super().__init__(name="oscillation")
        self._freeze = freeze
        self._momentum = momentum
        self._thresholds = (first_threshold, last_threshold)
        self._start = round(start * total_steps)
        self._total_steps = total_steps
        self.steps = replica_variable(0, "steps", dtype=tf.int64)
        self.kernels = [
            _Kernel(layer, quantizer, quantizer.num_bits)
            for layer in model.layers
            if (quantizer := weight_quantizer(layer)) is not None
            and quantizer.num_bits is not None
            and quantizer.num_bits <= most_bits
        ]

    def __call__(self) -> None:
        """Follows the weights after a step, and freezes some of them."""
        steps = self.steps + 1
        self.steps.assign(steps)
        begun = steps > self._start
        threshold = self._threshold(tf.cast(steps, tf.float32))
        moved = [
            kernel.follow(begun, self._momentum, threshold if self._freeze else None)
            for kernel in self.kernels
        ]
        if self._freeze:
            assign_alike([kernel.variable for kernel in self.kernels], moved)

    def counts(self, epoch: int = 0) -> list[OscillationCount]:
        """How many weights of each layer oscillate or are frozen, now: after an epoch."""
        return [kernel.count(epoch) for kernel in self.kernels]

    def _threshold(self, steps: tf.Tensor) -> tf.Tensor:
        first, last = self._thresholds
        done = (steps - self._start) / max(self._total_steps - self._start, 1)
        done = tf.clip_by_value(done, 0.0, 1.0)
        return last + (first - last) * 0.5 * (1.0 + tf.cos(math.pi * done))


class _Kernel(tf.Module):
    """One kernel, and how it has moved.

    Integers and directions are small, and stored in a byte each.
    """

    def __init__(self, wrapper: QuantizedLayer, quantizer: WeightQuantizer, bits: int) -> None:
        super().__init__(name="kernel")
        layer, variables = wrapper.layer, wrapper.kernel_variables
        variable = layer_kinds.kernel_of(layer)
        # Functions hide them from tf.Module, so that they are not saved twice.
        self._variable = lambda: variable
        self._own = lambda: variables
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
        """Follows one step; returns the latent weights, the frozen ones put back in place.

        Args:
            begun: whether steps count yet; until then only n is updated.
            momentum: weight of a step.
            threshold: frequency above which to freeze; None freezes nothing.
        """
        quantizer, frozen = self._quantizer, tf.convert_to_tensor(self.frozen)
        units = tf.cast(self.units, tf.float32)
        own = self._own()
        latent = quantizer.hold(self._latent(), own, units, frozen)
        now = quantizer.units(latent, own)
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
            freezing &= quantizer.can_be_held(latent, own)
            units = tf.where(freezing, tf.floor(after.average + 0.5), now)
            frozen |= freezing
            latent = quantizer.hold(latent, own, units, frozen)
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
    """Adds the oscillating and the frozen weights of all layers to the logs of every epoch.

    The logs get their shares of all followed weights, `oscillating` and `frozen`; the run folder
    gets a table with a row for every epoch and layer.

    Args:
        oscillation: of the model that is trained.
        folder: where the table goes; None writes none.
    """

    def __init__(self, oscillation: Oscillation, folder: RunFolder | None) -> None:
        super().__init__()
        self.oscillation = oscillation
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the rows of an epoch."""
        counts = self.oscillation.counts(epoch + 1)
        weights = max(sum(count.weights for count in counts), 1)
        if logs is not None:
            logs["oscillating"] = sum(count.oscillating for count in counts) / weights
            logs["frozen"] = sum(count.frozen for count in counts) / weights
        if self.folder is not None:
            # A resumed run writes the rows of later epochs again.
            before = [row for row in OscillationCount.read(self.folder) if row.epoch <= epoch]
            table = OscillationCount.to_csv([*before, *counts])
            self.folder.write_text(OSCILLATIONS, table)
