"""A Keras callback that tells whoever runs a training how far it has come."""

from typing import Any

from sat_tf.training.stage_plan import Listener, StagePlan
from sat_tf.training.step_callback import StepCallback


class Telling(StepCallback):
    """Calls a listener after every step; it has to be quick.

    Args:
        plan: the steps of the stage.
        listener: what to call.
    """

    def __init__(self, plan: StagePlan, listener: Listener) -> None:
        super().__init__(plan)
        self._listener = listener

    def on_step(self, before: int, logs: Any) -> None:
        """Calls the listener."""
        del before, logs
        self._listener(self.plan.stage, self.step)
