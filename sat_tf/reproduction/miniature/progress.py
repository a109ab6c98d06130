"""The work to do, how much of it is left, and one bar for all of it."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sat_tf.reproduction.figures.figure import Figure
from sat_tf.reproduction.paper.run import Job
from sat_tf.training.config.config import Config

# A unit is a float step. Fake quantization makes a step slower; after the steps come evaluation,
# and for a quantized model its file and certificate.
_UNITS_A_STEP = {"float": 1.0, "quantized": 1.6}
_UNITS_AFTER = {"float": 200.0, "quantized": 500.0}
# A first guess of the seconds per unit, and its weight in units of measured time: the time that
# drawing the pictures takes.
_SECONDS_A_UNIT = 0.03
_GUESS_UNITS = 300.0
# Training images of the printed characters, for stages that are given in epochs.
_NUM_TRAIN = 64000


@dataclasses.dataclass(frozen=True)
class Training:
    """One of the runs that the jobs need, each counted once.

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
        """Its total work."""
        return self.units_after(self.steps) + _UNITS_AFTER[self.stage]

    def units_after(self, steps: int) -> float:
        """The work of its first steps."""
        return min(steps, self.steps) * _UNITS_A_STEP[self.stage]


def trainings(jobs: Iterable[Job]) -> dict[str, Training]:
    """The runs that these jobs need, by their names; a shared float model counts once."""
    found: dict[str, Training] = {}
    for job in jobs:
        for config in configs_of(job):
            found.setdefault(config.name, _training(config))
    return found


def configs_of(job: Job) -> Sequence[Config]:
    """The runs of a job, in order."""
    return (job.config,) if job.float_config is None else (job.float_config, job.config)


def figure_units(figure: Figure) -> float:
    """The work of a figure."""
    return figure.seconds / _SECONDS_A_UNIT


def _training(config: Config) -> Training:
    name = "float" if config.stages.quantized is None else "quantized"
    stage = config.stages.by_name()[name]
    return Training(config.name, name, stage.total_steps(stage.steps_per_epoch(_NUM_TRAIN)))


class Work:
    """Counts the work that is done.

    Args:
        to_do: units of each task, by its name.
    """

    def __init__(self, to_do: Mapping[str, float]) -> None:
        self._to_do = dict(to_do)
        self._done: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Units of all tasks."""
        return sum(self._to_do.values())

    @property
    def done(self) -> float:
        """Units that are done."""
        return sum(self._done.values())

    def advance(self, name: str, units: float) -> None:
        """Records that a task has done some units; unknown tasks do not count."""
        if name in self._to_do:
            self._done[name] = min(units, self._to_do[name])

    def finish(self, names: Iterable[str]) -> None:
        """Records that tasks are finished."""
        for name in names:
            self.advance(name, self._to_do.get(name, 0.0))

    def seconds_left(self, elapsed: float) -> float:
        """How long the rest takes at the pace so far.

        Args:
            elapsed: seconds since the first task was started.
        """
        pace = (elapsed + _GUESS_UNITS * _SECONDS_A_UNIT) / (self.done + _GUESS_UNITS)
        return (self.total - self.done) * pace


class OverallBar:
    """Shows the progress of all tasks together; a context manager.

    On a terminal there is a bar; elsewhere, and above the bar, a line for each finished task.

    Args:
        titles: of the tasks, in order.
        work: that the tasks record their progress in.
        console: where to show it.
        clock: gives seconds.
    """

    def __init__(
        self,
        titles: Sequence[str],
        work: Work,
        console: Console,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._titles = list(titles)
        self._work = work
        self._console = console
        self._clock = clock
        self._number = 0
        # Seconds of earlier tasks that had work to do, and when this one started.
        self._seconds = 0.0
        self._since, self._done_before = clock(), work.done
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=max(work.total, 1.0), left="")

    def __enter__(self) -> "OverallBar":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def start(self) -> None:
        """Starts the next task."""
        self._number += 1
        self._since, self._done_before = self._clock(), self._work.done
        self.show()

    def show(self, words: str = "") -> None:
        """Updates the bar, with some words on what is being done."""
        self._bar.update(
            self._task,
            description=f"{self._count} {self._title}  {words}",
            completed=self._work.done,
            left=self._left(),
        )

    def finish(self, words: str) -> None:
        """Prints the line of the finished task.

        Args:
            words: its outcome.
        """
        self._seconds = self._elapsed()
        self._since, self._done_before = self._clock(), self._work.done
        left = f"  {self._left()}" if self._number < len(self._titles) else ""
        self._console.print(
            f"{self._count}  {self._title}: {words}{left}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        self.show()

    @property
    def _count(self) -> str:
        return f"{self._number}/{len(self._titles)}"

    @property
    def _title(self) -> str:
        return self._titles[self._number - 1]

    def _left(self) -> str:
        return f"{duration(self._work.seconds_left(self._elapsed()))} left"

    def _elapsed(self) -> float:
        """Seconds of work; tasks that had been finished before do not count."""
        works = self._work.done > self._done_before
        return self._seconds + (self._clock() - self._since if works else 0.0)


def duration(seconds: float) -> str:
    """A time to wait, in words.

    >>> duration(12.3), duration(100), duration(2700), duration(3700)
    ('12 s', '2 min', '45 min', '1 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
