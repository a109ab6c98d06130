"""Runs something on each image model of `keras.applications`, in a process of its own.

A row of results is kept for each model, in a CSV file beside the script; models that have a row
already are left out. `--write` puts the rows, as a table, between two marks of a Markdown file.
"""

import argparse
import csv
import inspect
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rows import write_csv

from sat_tf.atomic_file import written_whole

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
    markdown: Callable[[Sequence[Mapping[str, Any]]], str],
    names: Sequence[str] | None = None,
) -> None:
    """What a script does with its arguments.

    Args:
        script: its file.
        description: its docstring.
        results: where the rows go, as CSV.
        make_row: makes the row of a model, by its name.
        markdown: makes a table of the rows.
        names: which models; by default all.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--models", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--again", action="store_true", help="leave out none that has a row")
    parser.add_argument("--write", metavar="FILE", type=pathlib.Path, help="only write the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(make_row(arguments.one)))
        return
    rows: list[dict[str, Any]] = []
    if results.exists():
        with results.open(newline="") as file:
            rows = list(csv.DictReader(file))
    if arguments.write:
        write_between_marks(markdown(rows), arguments.write, pathlib.Path(script).stem)
        return
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


def write_between_marks(text: str, path: pathlib.Path, mark: str) -> None:
    """Puts text between the marks `<!-- mark -->` and `<!-- end of mark -->` of a Markdown file."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    old = path.read_text(encoding="utf-8")
    before, rest = old.split(begin)
    with written_whole(path) as temporary:
        temporary.write_text(
            f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8"
        )
