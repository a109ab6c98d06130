"""The outcomes of rows: one line of a CSV for each row, data set, seed and setting."""

import csv
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from filelock import FileLock

from sat_tf.atomic_file import written_whole
from sat_tf.messages import RunError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one run of a row.

    Attributes:
        row: name of the row.
        data: name of the data set it was trained on.
        seed: of the run.
        changes: settings besides the row, as key=value, separated by "; ".
        top1: held-out top-1 in percent: of the quantized model, or of the float model if the row
            measures that.
        top5: the same for top-5; None if it was not measured.
        tflite_top1: top-1 of the TFLite file in LiteRT in percent; None without a file.
        tflite_images: how many of the held-out images it was measured on; None without a file, and
            in lines of earlier versions, which do not say.
        codes_differing: codes of the file that LiteRT computes differently; None without a file.
        images: how many held-out images top-1 was measured on.
        seconds: of the run, without the run of a float model that it started from.
        run: name of the run, which ends in a hash of its configuration.
        commit: of the code, if known.
        date: when the run was started, in UTC.
    """

    row: str
    data: str
    seed: int
    changes: str
    top1: float
    top5: float | None
    tflite_top1: float | None
    tflite_images: int | None
    codes_differing: int | None
    images: int
    seconds: float
    run: str
    commit: str | None
    date: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """A later outcome with the same key replaces this one."""
        return self.row, self.data, self.seed, self.changes


COLUMNS = tuple(field.name for field in dataclasses.fields(Outcome))
_TYPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("seed", "images", "tflite_images", "codes_differing"), int),
    **dict.fromkeys(("top1", "top5", "tflite_top1", "seconds"), float),
}
_MAY_LACK = {"top5", "tflite_top1", "tflite_images", "codes_differing", "commit"}
_NEW = "tflite_images"  # files of earlier versions have no such column


def outcome_of(
    row: str,
    data: str,
    changes: Iterable[str],
    run: str,
    *,
    results: Mapping[str, Any],
    stages: Mapping[str, Mapping[str, float]],
    environment: Mapping[str, Any],
) -> Outcome:
    """The outcome in the files of a finished run.

    Args:
        row: name of the row.
        data: name of the data set.
        changes: what else was asked for.
        run: name of the run.
        results: its results.json; shares in [0, 1].
        stages: held-out metrics of each of its stages, shares in [0, 1].
        environment: its environment.json.
    """
    measured = stages.get("quantized") or stages["float"]
    return Outcome(
        row=row,
        data=data,
        seed=environment["seed"],
        changes="; ".join(changes),
        top1=round(100 * measured["top1"], 3),
        top5=_percent(measured.get("top5")),
        tflite_top1=_percent(results["tflite_top1"]),
        tflite_images=results["tflite_images"],
        codes_differing=results["codes_differing"],
        images=results["held_out_images"],
        seconds=round(results["seconds"], 1),
        run=run,
        commit=environment["commit"],
        date=environment["started"],
    )


def read_outcomes(path: pathlib.Path) -> list[Outcome]:
    """The outcomes in a file; none if it does not exist.

    Raises:
        RunError: it is not a file of outcomes.
    """
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = tuple(reader.fieldnames or ())
            if columns not in (COLUMNS, tuple(name for name in COLUMNS if name != _NEW)):
                raise ValueError(f"received the columns {', '.join(reader.fieldnames or ())}")
            return [_read(line) for line in reader]
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}: {error}; expected a file with the columns {', '.join(COLUMNS)}; choose "
            "another one with --results."
        ) from error


def add_outcomes(path: pathlib.Path, outcomes: Iterable[Outcome]) -> None:
    """Adds outcomes to a file, replacing those of the same row, data, seed and changes.

    Several processes can do so at the same time; readers always see a whole file.

    Raises:
        RunError: it is not a file of outcomes, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            kept = {outcome.key: outcome for outcome in read_outcomes(path)}
            kept.update((outcome.key, outcome) for outcome in outcomes)
            _write(path, kept.values())
    except RunError:
        raise
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}; choose another file with --results.") from error


def _write(path: pathlib.Path, outcomes: Iterable[Outcome]) -> None:
    with (
        written_whole(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(outcome) for outcome in outcomes)


def _read(line: dict[str, str]) -> Outcome:
    values: dict[str, Any] = {}
    for name in COLUMNS:
        text = line.get(name, "")
        if text == "" and name in _MAY_LACK:
            values[name] = None
        else:
            values[name] = _TYPES.get(name, str)(text)
    return Outcome(**values)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 3)
