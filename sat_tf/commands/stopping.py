"""How a command that trains ends when it is asked to."""

import contextlib
import pathlib
from collections.abc import Iterator

from rich.console import Console

from sat_tf.training.interruption import Interruption, Stopped


@contextlib.contextmanager
def stoppable(folder: pathlib.Path, console: Console) -> Iterator[None]:
    """In the block SIGTERM ends what is done there, also while it is still starting; says so.

    Args:
        folder: of the run.
        console: where to say it.
    """
    try:
        with Interruption().watched():
            yield
    except Stopped:
        console.print(
            f"Stopped as asked; all is saved in {folder}: the same command goes on from here.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
