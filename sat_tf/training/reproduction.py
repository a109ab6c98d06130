"""The paper's rows run: each float model once, each training once, and every outcome recorded."""

import csv
import dataclasses
import itertools
import os
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Sequence

import rich.box
import rich.table
from filelock import FileLock
from rich.console import Console
from rich.markup import escape

from sat_tf import output_folder
from sat_tf.files import read_text, written_whole
from sat_tf.messages import ProblemsError, RunError, did_you_mean, problems_of
from sat_tf.messages.tables import Column, Marked, Table
from sat_tf.report.results import Results
from sat_tf.training import run_folder
from sat_tf.training.config import Config
from sat_tf.training.paper_rows import Entry, data_sets, find, float_part, other_start, resolve
from sat_tf.training.run_folder import Row, RunFolder, RunState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One row with one seed."""

    row: str  # Name of the row.
    data: str  # Name of the data set, with that of its folder for the user's own images.
    changes: tuple[str, ...]  # Settings besides the row.
    config: Config  # The configuration of its run.
    # The configuration of the run whose float model it starts from; None if it ends with the float
    # model itself, or is given one.
    float_config: Config | None


def plan(
    patterns: Sequence[str],
    *,
    data: str | None = None,
    data_dir: str | None = None,
    changes: Sequence[str] = (),
    seeds: Iterable[int | None] = (None,),
) -> list[Job]:
    """The jobs to run, checked as far as possible before anything is loaded.

    Every row is run with each of the seeds, of which None is the recipe's; by default on its own
    data set. The changes are "key=value" with a dotted key.
    """
    rows, problems = find(patterns)
    by_name = data_sets()
    if data is not None and data not in by_name:
        problems.append(f"--data {data}: no such data set. {did_you_mean(data, by_name)}")
    for name in sorted({data or row.data for row in rows} & by_name.keys()):
        needed = by_name[name].data_dir
        if needed == "required" and not data_dir:
            problems.append(
                f"--data {name}: expected --data_dir, the folder of its images; add it, or try "
                "--data glyphs, which needs none."
            )
        elif needed == "none" and data_dir is not None:
            problems.append(
                f"--data_dir {data_dir} with --data {name}: expected none, its images are not in a "
                "folder; leave it out."
            )
    jobs, changes = [], tuple(changes)
    options = {"data": data, "data_dir": data_dir, "changes": changes}
    for seed, row in [] if problems else itertools.product(seeds, rows):
        try:
            config = resolve(row, seed=seed, **options)
            name = data or row.data
            if by_name[name].data_dir == "required":
                # The folder tells which images these are.
                folder = os.path.realpath(os.path.expanduser(str(data_dir)))
                name = f"{name} {os.path.basename(folder)}"
            start = other_start(row, seed=seed, **options)
            if start is None and config.stages.quantized and config.training.float_model is None:
                start = float_part(config)
        except RunError as error:
            problems += problems_of(error)
        else:
            jobs.append(
                Job(row=row.id, data=name, changes=changes, config=config, float_config=start)
            )
    if problems:
        # Most problems of changes are the same for every row.
        raise RunError(ProblemsError("sat-tf paper", dict.fromkeys(problems)))
    return jobs


def run(
    jobs: Sequence[Job], folder: pathlib.Path, results: pathlib.Path, console: Console
) -> list[RunFolder]:
    """Runs jobs one after the other, and records each outcome.

    A finished run in this folder is not repeated, and an interrupted one resumes; a float model is
    trained once for all rows that start from it.
    """
    with RunFolder(folder).opened():
        pass  # it can be written to
    read_outcomes(results)
    folders: list[RunFolder] = []
    done: set[str] = set()
    for number, job in enumerate(jobs, start=1):
        what = escape(f"{job.row} on {job.data}, seed {job.config.seed}")
        console.print(f"[bold]{number}/{len(jobs)}[/] {what}", highlight=False)
        config = job.config
        if job.float_config is not None:
            start = _finish(job.float_config, folder, console, done)
            file = str(start.file(output_folder.FLOAT_MODEL).absolute())
            training = config.training.model_copy(update={"float_model": file})
            config = config.model_copy(update={"training": training})
        finished = _finish(config, folder, console, done)
        if not finished.is_finished:
            continue  # another worker has the files
        outcome = _outcome_of(job, config.name, finished)
        add_outcomes(results, [outcome])
        folders.append(finished)
        console.print(f"{job.row}: top-1 {outcome.top1:.2f} %", highlight=False)
    return folders


def _finish(config: Config, folder: pathlib.Path, console: Console, done: set[str]) -> RunFolder:
    """Trains a run unless it is finished, and returns its folder.

    `done` are the runs of this process: workers have to agree on what is left to do, and may not
    all see the files of a run that has just ended.
    """
    run = RunFolder(folder / config.name)
    if config.name in done or run.is_finished:
        console.print(f"{config.name}: finished before", highlight=False)
    else:
        import tf_keras as keras

        from sat_tf.training.loop import runner

        # Frees the last run's memory, and names layers as in a new process.
        keras.backend.clear_session()
        runner.train(config, run, console, wait=True)
    done.add(config.name)
    return run


# -- outcomes --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome(Row):
    """The outcome of one run of a row."""

    row: str  # Name of the row.
    data: str  # Name of the data set it was trained on.
    seed: int  # The seed of the run.
    changes: str = ""  # Settings besides the row, as key=value, separated by "; ".
    # Held-out top-1 in percent: of the quantized model, or of the float model if the row measures
    # that.
    top1: float
    top5: float | None = None  # The same for top-5; None if it was not measured.
    # Top-1 of the TFLite file in LiteRT in percent; None without a file.
    tflite_top1: float | None = None
    # How many held-out images the file was measured on; None without a file, and in lines of
    # earlier versions, which do not say.
    tflite_images: int | None = None
    # Codes of the file that LiteRT computes differently; None without a file.
    codes_differing: int | None = None
    images: int  # How many held-out images top-1 was measured on.
    seconds: float  # Duration of the run, without that of a float model that it started from.
    run: str  # Name of the run, which ends in a hash of its configuration.
    commit: str | None = None  # The commit of the code, if known.
    date: str  # When the run was started, in UTC.

    @property
    def key(self) -> tuple[str, str, int, str]:
        """The key of the outcome; a later one with the same key replaces it."""
        return self.row, self.data, self.seed, self.changes


def _outcome_of(job: Job, name: str, folder: RunFolder) -> Outcome:
    """The outcome in the files of a finished run."""
    results, stages = Results.read(folder), RunState.read(folder).stages
    environment = folder.environment

    def percent(share: float | None) -> float | None:
        return None if share is None else round(100 * share, 3)

    try:
        measured = stages.get("quantized") or stages["float"]
        return Outcome(
            row=job.row,
            data=job.data,
            seed=environment["seed"],
            changes="; ".join(job.changes),
            top1=round(100 * measured["top1"], 3),
            top5=percent(measured.get("top5")),
            tflite_top1=percent(results.tflite_top1),
            tflite_images=results.tflite_images,
            codes_differing=results.codes_differing,
            images=results.held_out_images,
            seconds=round(results.seconds, 1),
            run=name,
            commit=environment["commit"],
            date=environment["started"],
        )
    except KeyError as error:
        files = f"{folder.file(run_folder.ENVIRONMENT)} and {run_folder.STATE}"
        raise RunError(
            f"{files}: received damaged files (no {error}), expected those that a run wrote; "
            "remove the folder, and run it again."
        ) from error


def read_outcomes(path: pathlib.Path) -> list[Outcome]:
    """The outcomes in a file; none if it does not exist."""
    if not path.exists():
        return []
    try:
        text = read_text(path).rstrip("\n")
        received = text.partition("\n")[0].split(",")
        # Files of earlier versions have no column `tflite_images`.
        if {*received} ^ {*Outcome.columns()} not in (set(), {"tflite_images"}):
            raise ValueError(f"received the columns {', '.join(received)}")
        return Outcome.parse(f"{text}\n")  # the last line counts even without a line end
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path}: {error}; expected a file with the columns {', '.join(Outcome.columns())}; "
            "choose another one with --results."
        ) from error


def add_outcomes(path: pathlib.Path, outcomes: Iterable[Outcome]) -> None:
    """Adds outcomes to a file, replacing those of the same row, data, seed and changes.

    Several processes can do so at the same time; readers always see a whole file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            by_key = {outcome.key: outcome for outcome in read_outcomes(path)}
            by_key.update((outcome.key, outcome) for outcome in outcomes)
            with (
                written_whole(path) as temporary,
                temporary.open("w", newline="", encoding="utf-8") as file,
            ):
                writer = csv.DictWriter(file, Outcome.columns(), lineterminator="\n")
                writer.writeheader()
                writer.writerows(dataclasses.asdict(outcome) for outcome in by_key.values())
    except OSError as error:
        raise RunError(f"{path}: {error}; choose another file with --results.") from error


def show(rows: Iterable[Entry], outcomes: Sequence[Outcome]) -> Iterator[rich.table.Table]:
    """The rows for the terminal: a table for each table or figure of the paper."""
    columns = [*_OF_ENTRY, _PRINTED, *(_measured(data, outcomes) for data in _data_of(outcomes))]
    for (source, caption), group in itertools.groupby(rows, lambda row: (row.source, row.caption)):
        yield Table(columns=columns, rows=list(group)).to_rich(
            title=f"[bold]{source}[/]: {caption}",
            title_style="",
            title_justify="left",
            box=rich.box.SIMPLE_HEAD,
            pad_edge=False,
        )


def markdown(rows: Sequence[Entry], outcomes: Sequence[Outcome]) -> str:
    """The rows as a Markdown table, with a column for each data set that any row was run on.

    A cell is blank where that row was not run. A mean over several seeds is followed by their
    standard deviation and number.
    """
    row_ids = {entry.id for entry in rows}
    data = _data_of([outcome for outcome in outcomes if outcome.row in row_ids])
    printed = [_PRINTED] if any(_printed(entry) for entry in rows) else []
    columns = [*_OF_ENTRY, *printed, *(_measured(name, outcomes) for name in data)]
    return Table(columns=columns, rows=rows).to_markdown()


def summary(row: str, data: str, outcomes: Iterable[Outcome]) -> str:
    """Top-1 of a row in percent: one number, or mean ± standard deviation (number of seeds).

    Runs with other settings than the row's do not count.
    """
    shares = [
        outcome.top1
        for outcome in outcomes
        if (outcome.row, outcome.data, outcome.changes) == (row, data, "")
    ]
    if not shares:
        return ""
    mean = f"{statistics.fmean(shares):.1f}"
    if len(shares) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(shares):.1f} ({len(shares)})"


def _data_of(outcomes: Iterable[Outcome]) -> list[str]:
    """The data sets of the outcomes, ImageNet first."""
    run_on = {outcome.data for outcome in outcomes if not outcome.changes}
    return sorted(run_on, key=lambda name: (name != "imagenet2012", name))


def _printed(entry: Entry) -> str:
    """The printed values of a row: "top-1 / top-5" in percent, or kappa_0."""
    printed = entry.row.printed
    if printed.kappa_0 is not None:
        return f"κ₀ {printed.kappa_0:g}"
    return " / ".join(
        f"{percent:.1f}" for percent in (printed.top1, printed.top5) if percent is not None
    )


_OF_ENTRY: list[Column[Entry]] = [
    Column("row", lambda entry: Marked(entry.id, "code"), wrap="never"),
    Column("method", lambda entry: entry.row.method),
]
_PRINTED: Column[Entry] = Column("paper, top-1 / top-5", _printed, number=True)


def _measured(data: str, outcomes: Sequence[Outcome]) -> Column[Entry]:
    return Column(f"{data}, top-1", lambda entry: summary(entry.id, data, outcomes), number=True)
