"""Hostile files and processes, thousands of each kind: what sat-tf makes of them.

Each case is a pure function of its kind and its seed, and runs in a process of its own with limits
on memory, time and files. It ends in a clear error or a sound result, or it is a finding. A run
goes on where an earlier one with the same output has stopped. The smallest of the cases of each
finding is kept, to become a test: `tests/findings/`. `python -m tests.campaign KIND SEED` plays one
case again.

    PYTHONPATH=. python benchmarks/campaign.py
    PYTHONPATH=. python benchmarks/campaign.py --kinds=tflite,kits --count=500 --seed=100000
"""

import collections
import json
import pathlib
import shutil
import tempfile
import time

import rich.console
import rich.progress
from absl import app, flags
from rows import as_table, read_csv, write_csv

from tests.campaign.cases import VERDICTS, Verdict, keep
from tests.campaign.kinds import KINDS, play
from tests.campaign.originals import prepare

_KINDS = flags.DEFINE_list("kinds", list(KINDS), "which kinds")
_COUNT = flags.DEFINE_integer("count", None, "how many of each; by default those of a full run")
_SEED = flags.DEFINE_integer("seed", 0, "of the first case of each kind")
_OUTPUT = flags.DEFINE_string(
    "output", "benchmarks/results/campaign.csv", "CSV of counts; findings go beside it"
)
_KEPT = flags.DEFINE_string("kept", "tests/findings", "folder for small cases of findings")
_SECONDS_BETWEEN_SAVES = 30
_LARGEST_KEPT_BYTES = 2**16


class _Results:
    """The counts of each kind and the findings, in two CSV files."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._findings_path = path, path.with_stem(f"{path.stem}_findings")
        self.rows = {(row["kind"], int(row["seed"])): row for row in read_csv(path)}
        self.findings = read_csv(self._findings_path)

    def of(self, kind: str, seed: int) -> dict[str, object]:
        """The row of a kind, from which numbers come back as text."""
        empty = {"kind": kind, "what": KINDS[kind].what, "seed": seed, "cases": 0, "seconds": 0}
        row = self.rows.setdefault((kind, seed), {**empty, **dict.fromkeys(VERDICTS, 0)})
        for name in ("cases", *VERDICTS):
            row[name] = int(row[name])
        row["seconds"] = float(row["seconds"])
        return row

    def add(self, row: dict[str, object], seed: int, verdict: Verdict, seconds: float) -> None:
        row["cases"] += 1
        row[verdict.name] += 1
        row["seconds"] = round(row["seconds"] + seconds, 2)
        if verdict.is_finding:
            message = " ".join(verdict.text.split())[-600:]
            found = {"kind": row["kind"], "seed": seed, "verdict": verdict.name}
            self.findings.append({**found, "message": message})

    def save(self) -> None:
        write_csv(list(self.rows.values()), self._path)
        if self.findings:
            write_csv(self.findings, self._findings_path)


def _keep(kind: str, seed: int, verdict: Verdict, folder: pathlib.Path) -> None:
    """Keeps the files of a finding, unless they are large or those of one like it are smaller."""
    facts = folder / "facts.json"
    if not facts.is_file():
        return
    size = sum(size for size, _ in json.loads(facts.read_text())["before"].values())
    # Findings are alike in the last line of what they say, without its numbers.
    last = "".join(c for c in verdict.text[-60:].splitlines()[-1] if c.isalpha())[-30:]
    to = pathlib.Path(_KEPT.value) / f"{kind}_{verdict.name.replace(' ', '_')}_{last}"
    before = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    if size < _LARGEST_KEPT_BYTES and not 0 < before <= size:
        keep(folder, to, KINDS[kind].on)


def main(_: list[str]) -> None:
    """Plays the cases, and prints the counts."""
    console, results = rich.console.Console(), _Results(pathlib.Path(_OUTPUT.value))
    with tempfile.TemporaryDirectory() as scratch, rich.progress.Progress() as bars:
        place = pathlib.Path(scratch)
        prepare(place / "originals")
        saved = time.monotonic()
        for kind in _KINDS.value:
            row = results.of(kind, _SEED.value)
            count = _COUNT.value or KINDS[kind].count
            bar = bars.add_task(kind, total=count, completed=row["cases"])
            for seed in range(_SEED.value + row["cases"], _SEED.value + count):
                folder = place / "case"
                folder.mkdir()
                started = time.monotonic()
                verdict = play(kind, seed, folder)
                results.add(row, seed, verdict, time.monotonic() - started)
                if verdict.is_finding:
                    _keep(kind, seed, verdict, folder)
                shutil.rmtree(folder)
                bars.advance(bar)
                if time.monotonic() > saved + _SECONDS_BETWEEN_SAVES:
                    results.save()
                    saved = time.monotonic()
            results.save()
    rows = [results.of(kind, _SEED.value) for kind in _KINDS.value]
    console.print(as_table(rows, "cases by verdict", ["kind", "cases", "seconds", *VERDICTS]))
    seen = collections.Counter((one["kind"], one["verdict"]) for one in results.findings)
    console.print(f"{sum(seen.values())} findings in all" if seen else "no findings")


if __name__ == "__main__":
    app.run(main)
