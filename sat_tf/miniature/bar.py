"""One bar for all trainings together, with the time that is left."""

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sat_tf.miniature.work import Training, Work, configs_of
from sat_tf.paper.run import Job


class OverallBar:
    """Shows how far all jobs together have come; to be entered as a context.

    On a terminal there is a bar; elsewhere, and above the bar, a line for each job that is done.

    Args:
        jobs: all of them.
        to_do: the trainings that have not finished, by name; see `sat_tf.miniature.work`.
        console: where to show it.
        clock: gives seconds.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        to_do: Mapping[str, Training],
        console: Console,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._jobs = list(jobs)
        self._to_do = to_do
        self._work = Work(to_do.values())
        self._console = console
        self._clock = clock
        self._started: float | None = None
        self._title = ""
        self._running: Job | None = None
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=max(self._work.total, 1.0), left="")

    def __enter__(self) -> "OverallBar":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def start(self, number: int) -> None:
        """Notes that a job starts, counted from 1."""
        if self._started is None:
            self._started = self._clock()
        self._running = self._jobs[number - 1]
        self._title = f"{number}/{len(self._jobs)} {_title(self._running)}"
        self._show("")

    def on_step(self, stage: str, step: int) -> None:
        """Notes that the running job's training has come to a step; a listener of the trainer."""
        configs = {
            "float" if config.stages.quantized is None else "quantized": config.name
            for config in (configs_of(self._running) if self._running else ())
        }
        training = self._to_do.get(configs.get(stage, ""))
        if training is not None:
            self._work.advance(training.name, step)
            self._show(f"{stage} {step}/{training.steps}")

    def finish(self, number: int, words: str) -> None:
        """Notes that a job is done, and prints its line.

        Args:
            number: of the job, from 1.
            words: what came out.
        """
        job = self._jobs[number - 1]
        self._work.finish(config.name for config in configs_of(job))
        left = f"  {self._left()}" if number < len(self._jobs) else ""
        self._console.print(
            f"{number}/{len(self._jobs)}  {_title(job)}: {words}{left}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        self._show("")

    def _show(self, words: str) -> None:
        self._bar.update(
            self._task,
            description=f"{self._title}  {words}",
            completed=self._work.done,
            left=self._left(),
        )

    def _left(self) -> str:
        elapsed = 0.0 if self._started is None else self._clock() - self._started
        return f"{duration(self._work.seconds_left(elapsed))} left"


def duration(seconds: float) -> str:
    """A time to wait, in words.

    >>> duration(12.3), duration(100), duration(2700), duration(3700)
    ('12 s', '2 min', '45 min', '1 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _title(job: Job) -> str:
    return f"{job.row}, seed {job.config.seed}"
