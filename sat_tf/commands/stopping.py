"""How a command that trains ends when it is asked to."""

import pathlib
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

from sat_tf.training.interruption import Interruption, Stopped

_Result = TypeVar("_Result")


def unless_stopped(
    work: Callable[[], _Result], folder: pathlib.Path, console: Console
) -> _Result | None:
    """What `work` returns; None, and a line that says so, where SIGTERM has ended it.

    Args:
        work: may be ended at any moment, also while it is still starting.
        folder: of the run.
        console: where to say it.
    """
    try:
        with Interruption().watched():
            return work()
    except Stopped:
        console.print(
            f"Stopped as asked; all is saved in {folder}: the same command goes on from here.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return None
