"""What there is to train, in units of time, and how much of it is left."""

import dataclasses
from collections.abc import Iterable, Sequence

from sat_tf.paper.run import Job
from sat_tf.training.config import Config

# How long things take, in float steps: fake quantization makes a step dearer, and what follows the
# steps is evaluation, and of a quantized model its file and certificate.
_UNITS_A_STEP = {"float": 1.0, "quantized": 1.6}
_UNITS_AFTER = {"float": 200.0, "quantized": 500.0}
# Training images of the printed characters, for stages that are given in epochs.
_NUM_TRAIN = 64000
# A first guess, which what is measured soon outweighs: drawing the pictures takes as long as this
# many steps, of so many seconds.
_GUESS_UNITS = 300.0
_GUESS_SECONDS_A_UNIT = 0.03


@dataclasses.dataclass(frozen=True)
class Training:
    """One run of those that the jobs need, each counted once.

    Attributes:
        name: of the run, and of its folder.
        stage: that it trains.
        steps: of it.
    """

    name: str
    stage: str
    steps: int

    @property
    def units(self) -> float:
        """How long all of it takes."""
        return self.units_after(self.steps) + _UNITS_AFTER[self.stage]

    def units_after(self, steps: int) -> float:
        """How long these first steps take."""
        return min(steps, self.steps) * _UNITS_A_STEP[self.stage]


def trainings(jobs: Iterable[Job]) -> dict[str, Training]:
    """The runs that these jobs need, by their names: a float model that several share is one."""
    found: dict[str, Training] = {}
    for job in jobs:
        for config in configs_of(job):
            found.setdefault(config.name, _training(config))
    return found


def configs_of(job: Job) -> Sequence[Config]:
    """The runs of a job, in order."""
    return (job.config,) if job.float_config is None else (job.float_config, job.config)


def _training(config: Config) -> Training:
    name = "float" if config.stages.quantized is None else "quantized"
    stage = config.stages.by_name()[name]
    return Training(config.name, name, stage.total_steps(stage.steps_per_epoch(_NUM_TRAIN)))


class Work:
    """Counts what is done of some trainings.

    Args:
        to_do: the trainings that have not finished.
    """

    def __init__(self, to_do: Iterable[Training]) -> None:
        self._to_do = {training.name: training for training in to_do}
        self._done: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Units of all that was to do."""
        return sum(training.units for training in self._to_do.values())

    @property
    def done(self) -> float:
        """Units that are done."""
        return sum(self._done.values())

    def advance(self, name: str, steps: int) -> None:
        """Notes that a training has come to a step."""
        if name in self._to_do:
            self._done[name] = self._to_do[name].units_after(steps)

    def finish(self, names: Iterable[str]) -> None:
        """Notes that trainings have come to their end; those that were not to do do not count."""
        for name in names:
            if name in self._to_do:
                self._done[name] = self._to_do[name].units

    def seconds_left(self, elapsed: float) -> float:
        """How long the rest takes at the pace so far.

        Args:
            elapsed: seconds since the first training started.
        """
        guessed = _GUESS_UNITS * _GUESS_SECONDS_A_UNIT
        return (self.total - self.done) * (elapsed + guessed) / (self.done + _GUESS_UNITS)
