"""One bar for everything together, with the time that is left."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sat_tf.miniature.work import Work


class OverallBar:
    """Shows how far all tasks together have come; to be entered as a context.

    On a terminal there is a bar; elsewhere, and above the bar, a line for each task that is done.

    Args:
        titles: of the tasks, in order.
        work: what they take; whoever does it notes there what is done.
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
        # Seconds of the tasks before that had something to do, and where this one started.
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
        """Goes on to the next task."""
        self._number += 1
        self._since, self._done_before = self._clock(), self._work.done
        self.show()

    def show(self, words: str = "") -> None:
        """Draws the bar anew, with some words on what is being done."""
        self._bar.update(
            self._task,
            description=f"{self._count} {self._title}  {words}",
            completed=self._work.done,
            left=self._left(),
        )

    def finish(self, words: str) -> None:
        """Prints the line of the task, which is done.

        Args:
            words: what came out.
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
        """Seconds in which something was done: what had finished before does not count."""
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
