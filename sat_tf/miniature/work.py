"""What there is to do, in units of time, and how much of it is left."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from sat_tf.figures.figure import Figure
from sat_tf.paper.run import Job
from sat_tf.training.config import Config

# A unit is a float step. Fake quantization makes a step dearer; what follows the steps is
# evaluation, and of a quantized model its file and certificate.
_UNITS_A_STEP = {"float": 1.0, "quantized": 1.6}
_UNITS_AFTER = {"float": 200.0, "quantized": 500.0}
# A first guess of the seconds a unit takes, and how many units of measured time it counts for: as
# many as drawing the pictures takes.
_SECONDS_A_UNIT = 0.03
_GUESS_UNITS = 300.0
# Training images of the printed characters, for stages that are given in epochs.
_NUM_TRAIN = 64000


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


def figure_units(figure: Figure) -> float:
    """How long a figure takes."""
    return figure.seconds / _SECONDS_A_UNIT


def _training(config: Config) -> Training:
    name = "float" if config.stages.quantized is None else "quantized"
    stage = config.stages.by_name()[name]
    return Training(config.name, name, stage.total_steps(stage.steps_per_epoch(_NUM_TRAIN)))


class Work:
    """Counts how much is done.

    Args:
        to_do: units of each part, by its name.
    """

    def __init__(self, to_do: Mapping[str, float]) -> None:
        self._to_do = dict(to_do)
        self._done: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Units of all that was to do."""
        return sum(self._to_do.values())

    @property
    def done(self) -> float:
        """Units that are done."""
        return sum(self._done.values())

    def advance(self, name: str, units: float) -> None:
        """Notes that so many units of a part are done; a part that was not to do does not count."""
        if name in self._to_do:
            self._done[name] = min(units, self._to_do[name])

    def finish(self, names: Iterable[str]) -> None:
        """Notes that parts have come to their end."""
        for name in names:
            self.advance(name, self._to_do.get(name, 0.0))

    def seconds_left(self, elapsed: float) -> float:
        """How long the rest takes at the pace so far.

        Args:
            elapsed: seconds since the first part was started.
        """
        pace = (elapsed + _GUESS_UNITS * _SECONDS_A_UNIT) / (self.done + _GUESS_UNITS)
        return (self.total - self.done) * pace
