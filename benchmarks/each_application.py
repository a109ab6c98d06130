"""Runs something on each image model of `keras.applications`, in a process of its own.

A row of results is kept for each model, in a CSV file beside the script; models that have a row
already are left out.
"""

import argparse
import csv
import inspect
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rows import write_csv

_SECONDS_AT_MOST = 3600


def application_names() -> list[str]:
    """The names of the functions in `keras.applications` that build image models."""
    import tf_keras as keras

    return sorted(
        name
        for name, build in vars(keras.applications).items()
        if inspect.isfunction(build) and "classes" in inspect.signature(build).parameters
    )


def main(
    script: str,
    description: str,
    *,
    results: pathlib.Path,
    make_row: Callable[[str], dict[str, Any]],
    names: Sequence[str] | None = None,
) -> None:
    """What a script does with its arguments.

    Args:
        script: its file.
        description: its docstring.
        results: where the rows go, as CSV.
        make_row: makes the row of a model, by its name.
        names: which models; by default all.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--models", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--again", action="store_true", help="leave out none that has a row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(make_row(arguments.one)))
        return
    rows: list[dict[str, Any]] = []
    if results.exists():
        with results.open(newline="") as file:
            rows = list(csv.DictReader(file))
    wanted = arguments.models or names or application_names()
    done = set() if arguments.again else {row["model"] for row in rows}
    for name in wanted:
        if name in done:
            continue
        row = _row_of(script, name)
        if row is not None:
            rows = sorted(
                [*(other for other in rows if other["model"] != name), row],
                key=lambda row: str(row["model"]),
            )
            write_csv(rows, results)


def _row_of(script: str, name: str) -> dict[str, Any] | None:
    command = [sys.executable, script, "--one", name]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_AT_MOST)
    except subprocess.TimeoutExpired:
        print(f"{name}: not done in {_SECONDS_AT_MOST} seconds", flush=True)
        return None
    if run.returncode:
        print(f"{name}: {run.stderr[-1500:]}", flush=True)
        return None
    line = run.stdout.splitlines()[-1]
    print(line, flush=True)
    row: dict[str, Any] = json.loads(line)
    return row
