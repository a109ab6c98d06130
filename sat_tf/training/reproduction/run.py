"""Runs rows: each float model once, each training once, and every outcome recorded."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape

from sat_tf import output_folder
from sat_tf.messages import ProblemsError, RunError, did_you_mean, problems_of
from sat_tf.report.results import Results
from sat_tf.training.config.config import Config
from sat_tf.training.reproduction.library import data_sets, find
from sat_tf.training.reproduction.record import add_outcomes, outcome_of, read_outcomes
from sat_tf.training.reproduction.resolve import float_part, other_start, resolve
from sat_tf.training.state import run_folder
from sat_tf.training.state.run_folder import RunFolder, RunState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One row with one seed."""

    row: str  # Name of the row.
    data: str  # Name of the data set, with that of its folder for the user's own images.
    changes: tuple[str, ...]  # Settings besides the row.
    config: Config  # Of its run.
    # Of the run whose float model it starts from; None if it ends with the float model itself, or
    # is given one.
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
    known = data_sets()
    if data is not None and data not in known:
        problems.append(f"--data {data}: no such data set. {did_you_mean(data, known)}")
    else:
        for name in sorted({data or row.data for row in rows}):
            needed = known[name].data_dir
            if needed == "required" and not data_dir:
                problems.append(
                    f"--data {name}: expected --data_dir, the folder of its images; add it, or try "
                    "--data glyphs, which needs none."
                )
            elif data_dir is not None and needed == "none":
                problems.append(
                    f"--data_dir {data_dir} with --data {name}: expected none, its images are not "
                    "in a folder; leave it out."
                )
    jobs, changes = [], tuple(changes)
    chosen = {"data": data, "data_dir": data_dir, "changes": changes}
    for seed, row in [] if problems else itertools.product(seeds, rows):
        try:
            config = resolve(row, seed=seed, **chosen)
            name = data or row.data
            if known[name].data_dir == "required":
                # The folder tells which images these are.
                folder = os.path.realpath(os.path.expanduser(str(data_dir)))
                name = f"{name} {os.path.basename(folder)}"
            start = other_start(row, seed=seed, **chosen)
            if start is None and config.stages.quantized and config.training.float_model is None:
                start = float_part(config)
        except RunError as error:
            problems += problems_of(error)
        else:
            jobs.append(
                Job(
                    row=row.id,
                    data=name,
                    changes=changes,
                    config=config,
                    float_config=start,
                )
            )
    if problems:
        # Most problems of changes are the same for every row.
        raise RunError(ProblemsError("sat-tf paper", dict.fromkeys(problems)))
    return jobs


def run(
    jobs: Sequence[Job],
    folder: pathlib.Path,
    results: pathlib.Path,
    console: Console,
) -> list[RunFolder]:
    """Runs jobs one after the other, and records each outcome.

    A finished run in this folder is not repeated, and an interrupted one resumes; a float model is
    trained once for all rows that start from it.
    """
    RunFolder(folder).check_writable()
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
        try:
            outcome = outcome_of(
                job.row,
                job.data,
                job.changes,
                config.name,
                results=Results.read(finished).to_dict(),
                stages=RunState.read(finished).stages,
                environment=finished.read_json(run_folder.ENVIRONMENT),
            )
        except KeyError as error:
            files = f"{finished.file(run_folder.ENVIRONMENT)} and {run_folder.STATE}"
            raise RunError(
                f"{files}: received damaged files (no {error}), expected those that a run wrote; "
                "remove the folder, and run it again."
            ) from error
        add_outcomes(results, [outcome])
        folders.append(finished)
        console.print(f"{job.row}: top-1 {outcome.top1:.2f} %", highlight=False)
    return folders


def _finish(
    config: Config,
    folder: pathlib.Path,
    console: Console,
    done: set[str],
) -> RunFolder:
    """The folder of a run, which is trained unless it is finished.

    `done` are the runs of this process: workers have to agree on what is left to do, and may not
    all see the files of a run that has just ended.
    """
    own = RunFolder(folder / config.name)
    if config.name in done or own.is_finished:
        console.print(f"{config.name}: finished before", highlight=False)
    else:
        import tf_keras as keras

        from sat_tf.training.loop import runner

        # Frees the last run's memory, and names layers as in a new process.
        keras.backend.clear_session()
        runner.train(config, own, console, wait=True)
    done.add(config.name)
    return own
