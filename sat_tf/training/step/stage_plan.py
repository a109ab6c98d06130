"""The steps of a stage, and their place in the whole run."""

import dataclasses
from collections.abc import Callable

# Called after every step with the name of the stage and how many of its steps are done.
StepReport = Callable[[str, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePlan:
    """The steps of one stage, for all that counts them.

    Attributes:
        stage: name of the stage.
        batch_size: images a step, over all devices.
        steps_per_epoch: steps of a full epoch.
        total_steps: steps of the stage; its last epoch may be shorter than the others.
        first_step: how many of them are done when training starts; above 0 in a resumed stage.
        steps_before: steps of the stages before.
        metric_steps: how many steps of the current epoch Keras' running means already cover when
            training starts; above 0 only where they came from a checkpoint.
    """

    stage: str
    batch_size: int
    steps_per_epoch: int
    total_steps: int
    first_step: int = 0
    steps_before: int = 0
    metric_steps: int = 0

    @property
    def epochs(self) -> int:
        """How many epochs the stage has; the last one may be shorter."""
        return -(-self.total_steps // self.steps_per_epoch)

    def epoch_of(self, step: int) -> int:
        """The epoch, from 1, that the given step, from 1, belongs to.

        >>> plan = StagePlan(stage="float", batch_size=8, steps_per_epoch=10, total_steps=25)
        >>> plan.epochs, plan.epoch_of(1), plan.epoch_of(10), plan.epoch_of(11)
        (3, 1, 1, 2)
        """
        return max(-(-step // self.steps_per_epoch), 1)

    def step_of_run(self, step: int) -> int:
        """The same step counted from the start of the run."""
        return self.steps_before + step
