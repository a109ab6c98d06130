"""The base of callbacks that follow a stage step by step without slowing it down."""

import abc
from typing import Any

import tf_keras as keras

from sat_tf.training.stage_plan import StagePlan


class StepCallback(keras.callbacks.Callback, abc.ABC):
    """Counts the steps of a stage, and leaves what Keras logs on the device until it is read.

    The count starts where the plan does, so that it is right in an epoch that goes on halfway too,
    however Keras numbers its batches there.

    Args:
        plan: the steps of the stage.
    """

    # Keras would otherwise fetch every logged value after every step, and wait for the device.
    _supports_tf_logs = True

    def __init__(self, plan: StagePlan) -> None:
        super().__init__()
        self.plan = plan
        self.step = plan.first_step
        self._first_batch = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Remembers where the step starts: Keras may take several batches at once."""
        del logs
        self._first_batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the step."""
        before = self.step
        self.step += batch - self._first_batch + 1
        self.on_step(before, logs)

    def flush(self) -> None:
        """Writes out what is still in memory; called before a checkpoint."""

    @abc.abstractmethod
    def on_step(self, before: int, logs: Any) -> None:
        """Called after a step.

        Args:
            before: `step` before it; less by one, unless Keras takes several batches at once.
            logs: running means over the epoch by name; reading one waits for the device.
        """


def current_learning_rate(model: keras.Model) -> float:
    """The learning rate of a compiled model's last step; before the first one, of that."""
    return float(keras.backend.get_value(model.optimizer.learning_rate))
