"""Work in a process of its own, where nothing else has happened."""

import concurrent.futures
import multiprocessing
from collections.abc import Callable
from typing import Any


def in_new_process(task: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a task in a new process, which ends with it; what it raises is raised here."""
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        return pool.submit(task, *arguments).result()
