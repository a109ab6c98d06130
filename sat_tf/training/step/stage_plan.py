"""The steps of a stage, and their place in the whole run."""

import dataclasses
from collections.abc import Callable

# It is called after every step with the name of the stage and how many of its steps are done.
StepReport = Callable[[str, int], None]


@dataclasses.dataclass(frozen=True, order=True)
class Position:
    """The step that comes next.

    Attributes:
        epoch: counted from 0.
        step: in that epoch, from 0.
    """

    epoch: int = 0
    step: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePlan:
    """The steps of one stage, for all that counts them.

    Attributes:
        stage: name of the stage.
        batch_size: images a step, over all devices.
        steps_per_epoch: steps of a full epoch.
        total_steps: steps of the stage; its last epoch may be shorter than the others.
        steps_before: steps of the stages before.
        start: the step that training starts with; behind the first one in a resumed stage.
    """

    stage: str
    batch_size: int
    steps_per_epoch: int
    total_steps: int
    steps_before: int = 0
    start: Position = Position()

    @property
    def first_step(self) -> int:
        """How many steps are done when training starts."""
        return self.start.epoch * self.steps_per_epoch + self.start.step

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

    def parts(self) -> list[tuple[Position, int, int]]:
        """The steps still to do, in parts whose epochs are equally long.

        Returns:
            Where each part begins, how many epochs it has, and how many steps each of them has.

        >>> start = Position(1, 3)
        >>> plan = StagePlan(
        ...     stage="float", batch_size=8, steps_per_epoch=10, total_steps=48, start=start
        ... )
        >>> plan.parts()
        [(Position(epoch=1, step=3), 1, 7), (Position(epoch=2, step=0), 2, 10), \
(Position(epoch=4, step=0), 1, 8)]
        """
        whole, rest = divmod(self.total_steps, self.steps_per_epoch)
        found, start = [], self.start
        if start.step:
            end = self.steps_per_epoch if start.epoch < whole else rest
            found.append((start, 1, end - start.step))
            start = Position(start.epoch + 1)
        if start.epoch < whole:
            found.append((start, whole - start.epoch, self.steps_per_epoch))
            start = Position(whole)
        if start.epoch < self.epochs:
            found.append((start, 1, rest))
        return found
