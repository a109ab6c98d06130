"""A bar that shows how much is done, on terminals and in notebooks, of what takes a while."""

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

from sat_tf.messages import printable

Advance = Callable[[int], None]

_SECONDS_WITHOUT = 2.0


def no_bar(count: int) -> None:
    """Advances nothing."""


@contextlib.contextmanager
def image_bar(title: str, total: int | None, *, shown: bool = True) -> Iterator[Advance]:
    """A function to call with the number of images that have been done, by any thread.

    The bar appears after two seconds, on terminals, where it is drawn on standard error, and in
    notebooks; it disappears at the end.

    Args:
        title: what is done.
        total: how many images there are; None if unknown.
        shown: whether there is a bar at all.
    """
    # Only the kernel of a notebook loads this module; its standard error is no terminal.
    in_a_notebook = "ipykernel.kernelapp" in sys.modules
    if not (shown and (in_a_notebook or sys.stderr.isatty())):
        yield no_bar
        return
    with warnings.catch_warnings():
        # A notebook without ipywidgets gets the bar of a terminal; tqdm remarks on it.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    lock = threading.Lock()
    with tqdm(
        desc=printable(title), total=total, unit="", delay=_SECONDS_WITHOUT, leave=False
    ) as bar:

        def advance(count: int) -> None:
            with lock:
                bar.update(count)

        yield advance
