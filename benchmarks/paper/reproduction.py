"""The rows of the paper's tables and figures: their configurations, their runs and outcomes."""

import csv
import dataclasses
import fnmatch
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import statistics
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import rich.box
import rich.table
from filelock import FileLock
from pydantic import Field
from rich.console import Console
from rich.markup import escape

import benchmarks.drawn_glyphs  # noqa: F401 -- a data set of rows
from sat_tf import output_folder
from sat_tf.files import read_text, written_whole
from sat_tf.messages import ProblemsError, RunError, did_you_mean, problems_of
from sat_tf.messages.tables import Column, Marked, Table
from sat_tf.messages.validation import worded
from sat_tf.output_folder import FLOAT_MODEL
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import DEFAULT_QUANTIZERS
from sat_tf.report.results import Results
from sat_tf.training import run_folder
from sat_tf.training.config import SHIPPED, CalibrationConfig, Config, ExportConfig, parse_config
from sat_tf.training.config_sections import RecipesConfig, Section
from sat_tf.training.run_folder import RunFolder, RunState
from sat_tf.yaml_text import load_yaml

_ROWS = pathlib.Path(__file__).parent / "rows"


class Printed(Section):
    """The printed values of a row; None if nothing is printed."""

    top1: float | None = Field(default=None, gt=0, le=100)  # in percent
    top5: float | None = Field(default=None, gt=0, le=100)
    kappa_0: float | None = Field(default=None, gt=0)


class Row(Section):
    """One training of the paper, as its changes to the recipe of its network."""

    base: str  # the name of a file in configs/imagenet
    method: str  # in a few words
    measures: Literal["quantized", "float"] = "quantized"  # the model that the run ends with
    set: dict[str, Any] = Field(default={})  # dotted keys and their values
    # Further changes for the run of the float model, if it is not that of the row's own method.
    start: dict[str, Any] = Field(default={})
    printed: Printed = Printed()


@worded
class Experiment(Section):
    """One file of benchmarks/paper/rows."""

    source: str  # the place in the paper, such as Table 1
    caption: str  # the contents of the table or figure
    data: str = "imagenet2012"  # the name of a file in rows/data: the default of its rows
    rows: dict[str, Row]


class Data(Section):
    """One file of benchmarks/paper/rows/data: images that every row can be trained on.

    Its changes to a recipe come before those of a row.
    """

    about: str  # the images, in words
    data: dict[str, Any]  # the section data of a configuration
    data_dir: Literal["none", "optional", "required"] = "none"  # whether a folder has to be named
    set: dict[str, Any] = Field(default={})  # changes of every recipe, by dotted key
    models: dict[str, dict[str, Any]] = Field(default={})  # further changes by the name of the base
    activation_bits: dict[int, dict[str, Any]] = Field(
        default={}
    )  # and those by the activation bits of the row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A row with the facts that its file states for all rows."""

    id: str  # Its name, which starts with the name of its file, such as table1/mobilenet_v2/4bits.
    row: Row  # The training, as the row's file states it.
    source: str  # The place in the paper.
    caption: str  # The contents of the table or figure.
    data: str  # Name of its default data set.


def base_text(base: str) -> str:
    """The recipe of a network, as YAML."""
    return (SHIPPED / "imagenet" / f"{base}.yaml").read_text(encoding="utf-8")


@functools.cache
def entries() -> Mapping[str, Entry]:
    """All rows by their names, in the order of the paper."""

    def place(path: pathlib.Path) -> tuple[bool, bool, bool, str]:
        # The paper comes first, then its supplement, then the rest; tables before figures.
        is_table, is_figure = (path.stem.startswith(word) for word in ("table", "figure"))
        of_paper = is_table or is_figure
        return not of_paper, of_paper and "_s" in path.stem, is_figure, path.stem

    rows: dict[str, Entry] = {}
    for path in sorted(_ROWS.glob("*.yaml"), key=place):
        experiment = Experiment(**load_yaml(read_text(path)))
        facts = experiment.model_dump(include={"source", "caption", "data"})
        for name, row in experiment.rows.items():
            key = f"{path.stem}/{name}"
            rows[key] = Entry(id=key, row=row, **facts)
    return rows


@functools.cache
def data_sets() -> Mapping[str, Data]:
    """All data sets that rows can be trained on, by their names."""
    files = sorted((_ROWS / "data").glob("*.yaml"))
    return {path.stem: Data.model_validate(load_yaml(read_text(path))) for path in files}


def find(patterns: Iterable[str]) -> tuple[list[Entry], list[str]]:
    """The rows that match, each once, and the problems of the patterns."""
    by_name = entries()
    selected: dict[str, Entry] = {}
    problems = []
    for pattern in patterns:
        matching = [name for name in by_name if fnmatch.fnmatchcase(name, pattern)]
        selected.update((name, by_name[name]) for name in matching)
        if not matching:
            hint = did_you_mean(pattern, by_name, is_listed=True)
            hint = hint or "`python -m benchmarks.paper list` shows all rows."
            problems.append(f"{pattern!r}: no such row. {hint}")
    return list(selected.values()), problems


# -- the configuration of a row ------------------------------------------------------------------

# The fields of a policy that matter if nothing is rounded or clipped.
_FLOAT_FIELDS = ("rescale", "weight_range", "detach_max", "input_range", "unsupported")
# Rows that name no weight quantizer have the paper's, not the best known since, and end with their
# last epoch.
_OF_PAPER = {"policy.weight_quantizer": DEFAULT_QUANTIZERS["weight"], "training.keep": "last"}


def resolve(entry: Entry, **chosen: Any) -> Config:
    """The configuration of a row, with what is `chosen` for `configure`.

    Its name consists of the network, the data, the bits, the seed, and a hash of all that its
    outcome depends on: rows with the same training share it. The float model of another run, see
    `other_start`, is named as a file relative to the folder of all runs.
    """
    config = configure(entry, **chosen)
    if entry.row.measures == "float":
        return _named(float_part(config))
    start = other_start(entry, **chosen)
    if start is not None:
        training = config.training.model_copy(update={"float_model": f"{start.name}/{FLOAT_MODEL}"})
        config = config.model_copy(update={"training": training})
    return _named(config)


def other_start(entry: Entry, **chosen: Any) -> Config | None:
    """The run of the float model that a row starts from, if it is not that of its own method."""
    if not entry.row.start:
        return None
    config = configure(entry, entry.row.start, **chosen)
    return None if config.training.float_model is not None else float_part(config)


def configure(
    entry: Entry,
    start: Mapping[str, Any] = types.MappingProxyType({}),
    *,
    data: str | None = None,
    data_dir: str | None = None,
    changes: Iterable[str] = (),
    seed: int | None = None,
) -> Config:
    """The configuration of a row, still without a name.

    The recipe of the row's network comes first, then the changes of the data set, of the row, of
    its start, and last `changes`.
    """
    data_set = data_sets()[data or entry.data]
    row = entry.row
    bits = row.set.get("policy.activation_bits", 0)
    layers: list[Mapping[str, Any]] = [
        {"data": data_set.data, **_OF_PAPER},
        data_set.set,
        data_set.models.get(row.base, {}),
        data_set.activation_bits.get(bits, {}),
        row.set,
        start,
        {} if data_dir is None else {"data.options.data_dir": data_dir},
    ]
    # JSON is YAML on one line.
    overrides = [f"{key}={json.dumps(value)}" for layer in layers for key, value in layer.items()]
    overrides += [*changes, *([] if seed is None else [f"seed={seed}"])]
    return parse_config(base_text(row.base), overrides, subject=entry.id)


def float_part(config: Config) -> Config:
    """The run that trains only the float model from which this one starts.

    Settings that such a run does not depend on have their defaults, so that all runs that can share
    a float model give the same configuration.
    """
    calibration = config.calibration
    if not calibration.final_statistics:
        calibration = CalibrationConfig(num_images=0)
    elif not calibration.clipping_levels:
        calibration = calibration.model_copy(update={"clipping_levels": True})
    policy = BitPolicy()
    if config.training.start != "vanilla":
        overrides = {
            pattern: {name: value for name, value in fields.items() if name in _FLOAT_FIELDS}
            for pattern, fields in config.policy.overrides.items()
        }
        policy = BitPolicy(
            **{name: getattr(config.policy, name) for name in _FLOAT_FIELDS},
            overrides={pattern: fields for pattern, fields in overrides.items() if fields},
        )
    return _named(
        config.model_copy(
            update={
                "policy": policy.of_one_kind(),
                "stages": config.stages.model_copy(update={"quantized": None}),
                "calibration": calibration,
                "export": ExportConfig(),
                "recipes": in_stages(config.recipes, ["float"]),
                "training": config.training.model_copy(update={"float_model": None}),
            }
        )
    )


def in_stages(recipes: RecipesConfig, kept: Collection[str]) -> RecipesConfig:
    """The same recipes restricted to some stages; those that then act in none are off."""
    changed: dict[str, Any] = {}
    for name, recipe in recipes:
        # A recipe without a key `stages` concerns bits, and acts in the quantized stage.
        stages = getattr(recipe, "stages", ["quantized"])
        active = [stage for stage in stages if stage in kept]
        if recipe is None or active == list(stages):
            continue
        changed[name] = recipe.model_copy(update={"stages": active}) if active else None
    return recipes.model_copy(update=changed)


def digest(config: Config) -> str:
    """An eight-digit hash of everything the outcome of a run depends on."""
    values = config.model_dump(exclude={"name", "distribution"})
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _named(config: Config) -> Config:
    model = "model" if config.model is None else config.model.name
    words = [model, config.data.options.get("builder", config.data.name)]
    if config.stages.quantized is not None:
        policy = config.policy
        words.append(f"w{policy.weight_bits}a{policy.activation_bits or 'float'}")
    elif config.training.start == "vanilla":
        words.append("vanilla")
    else:
        words.append(f"float_{config.policy.rescale}")
    words += [f"seed{config.seed}", digest(config)]
    # Names of builders may have slashes and colons; run names are folder names.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(str(word) for word in words))
    return config.model_copy(update={"name": name})


# -- runs ------------------------------------------------------------------------------------------


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
                f"--data_dir {data_dir} with --data {name}: expected no --data_dir, as its images "
                "are not read from a folder; leave it out."
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
        raise RunError(ProblemsError("rows of the paper", dict.fromkeys(problems)))
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
class Outcome(run_folder.TableRow):
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
