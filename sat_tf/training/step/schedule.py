"""The learning rate and the optimizer of the steps of a stage."""

import math
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.training.config.sections import StageConfig


@keras.utils.register_keras_serializable(package="sat_tf")
class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's learning rate at step i = 0, 1, ... of T, of which the first w warm up.

    first + (peak - first) · i / w                  for i < w
    peak · (1 + cos(π · (i - w) / (T - w))) / 2     for w <= i < T
    0                                               from T on

    Args:
        first_learning_rate: at step 0 of a warm-up, at most the peak; not used where w is 0.
        peak_learning_rate: at step w.
        warmup_steps: w, 0 or more.
        total_steps: T, above w.

    >>> schedule = WarmupCosine(
    ...     first_learning_rate=0.1, peak_learning_rate=0.5, warmup_steps=2, total_steps=6
    ... )
    >>> [round(float(schedule(step)), 3) for step in range(7)]
    [0.1, 0.3, 0.5, 0.427, 0.25, 0.073, 0.0]
    """

    def __init__(
        self,
        *,
        first_learning_rate: float,
        peak_learning_rate: float,
        warmup_steps: int,
        total_steps: int,
    ) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"WarmupCosine: received warmup_steps={warmup_steps} and total_steps={total_steps};"
                " expected a warm-up of 0 or more steps that ends before the last one."
            )
        if warmup_steps and first_learning_rate > peak_learning_rate * (1 + 1e-9):
            raise ValueError(
                f"WarmupCosine: received first_learning_rate={first_learning_rate:g} and "
                f"peak_learning_rate={peak_learning_rate:g}; expected a warm-up that goes up; "
                "lower the first."
            )
        self.first_learning_rate = first_learning_rate
        self.peak_learning_rate = peak_learning_rate
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps

    @classmethod
    def of_stage(cls, stage: StageConfig, steps_per_epoch: int) -> "WarmupCosine":
        """The schedule of one stage of a run."""
        total_steps = stage.total_steps(steps_per_epoch)
        return cls(
            first_learning_rate=stage.first_learning_rate,
            peak_learning_rate=stage.peak_learning_rate,
            warmup_steps=min(round(stage.warmup_epochs * steps_per_epoch), total_steps - 1),
            total_steps=total_steps,
        )

    def __call__(self, step: Any) -> tf.Tensor:
        """The learning rate at a step, a float32 scalar."""
        # float32 counts steps exactly up to 2^24, more than 16 million.
        step = tf.cast(step, tf.float32)
        rise = self.peak_learning_rate - self.first_learning_rate
        warming = self.first_learning_rate + rise * step / max(self.warmup_steps, 1)
        done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        cooling = self.peak_learning_rate * 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(done, 1.0)))
        return tf.where(step < self.warmup_steps, warming, cooling)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "first_learning_rate": self.first_learning_rate,
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
        }


def make_optimizer(
    stage: StageConfig,
    steps_per_epoch: int,
    *,
    precision: str = "float32",
    learning_rate: float | None = None,
) -> keras.optimizers.Optimizer:
    """The optimizer of a stage.

    SGD with Nesterov momentum μ: v <- μ v - η g, W <- W + μ v - η g, with the learning rate η of
    `WarmupCosine` and g the gradient of the loss, weight decay included where `training_copy` put
    it. In mixed_float16 the loss is multiplied before, and the gradient divided after, so that
    small gradients are not lost; a step whose gradients overflow is left out.

    Args:
        stage: its settings.
        steps_per_epoch: how many batches an epoch has.
        precision: name of the dtype policy that the model computes by.
        learning_rate: in place of the schedule, to be set.
    """
    optimizer = keras.optimizers.SGD(
        learning_rate or WarmupCosine.of_stage(stage, steps_per_epoch),
        momentum=stage.momentum,
        nesterov=stage.nesterov,
    )
    if precision == "mixed_float16":
        return keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer
