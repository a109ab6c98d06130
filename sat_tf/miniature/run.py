"""Runs the miniature: every training that is left, each recorded, and the page after each."""

import pathlib
from collections.abc import Sequence

from rich.console import Console

from sat_tf.messages import list_problems
from sat_tf.miniature.bar import OverallBar
from sat_tf.miniature.claim import Judged, Verdict, by_row, judge
from sat_tf.miniature.claims import CLAIMS
from sat_tf.miniature.groups import grids_as_they_are
from sat_tf.miniature.page import write_page
from sat_tf.miniature.work import trainings
from sat_tf.paper import run as paper_run
from sat_tf.paper.record import Outcome, read_outcomes
from sat_tf.paper.run import Job
from sat_tf.training import run_folder
from sat_tf.training.errors import RunError
from sat_tf.training.run_folder import RunFolder

# What the trainer prints of every run, which the screen is too small for.
LOG = "log.txt"


def run(
    jobs: Sequence[Job],
    folder: pathlib.Path,
    results: pathlib.Path,
    page: pathlib.Path,
    console: Console,
) -> bool:
    """Runs jobs one after the other, and writes the page anew after each.

    Runs that have finished in this folder are not repeated, and one that was interrupted goes on.
    A training that breaks, as with weights that become infinite, does not stop the others.

    Args:
        jobs: see `sat_tf.miniature.groups.jobs`.
        folder: in which each run has a folder of its own.
        results: the file that outcomes are added to.
        page: the file to write.
        console: where to show progress.

    Returns:
        Whether LiteRT computes the integers that were trained, in all of them.

    Raises:
        RunError: a file cannot be read or written, or trainings broke: all of these, after the
            others have been run.
    """
    RunFolder(folder).check_writable()
    read_outcomes(results)
    folder.mkdir(parents=True, exist_ok=True)
    to_do = {
        name: training
        for name, training in trainings(jobs).items()
        if not RunFolder(folder / name).file(run_folder.RESULTS).is_file()
    }
    changes = "; ".join(jobs[0].changes) if jobs else ""
    same, broken = True, []
    with (
        (folder / LOG).open("a", encoding="utf-8") as log,
        OverallBar(jobs, to_do, console) as bar,
        grids_as_they_are(),
    ):
        for number, job in enumerate(jobs, start=1):
            bar.start(number)
            try:
                same &= paper_run.run(
                    [job], folder, results, Console(file=log, width=120), listener=bar.on_step
                )
                words = _top1(job, read_outcomes(results))
            except RunError as error:
                broken.append(f"{job.row}, seed {job.config.seed}: {error}")
                words = "broke"
            bar.finish(number, words)
            write_page(page, read_outcomes(results), folder, changes)
    if broken:
        raise RunError(list_problems("sat-tf miniature", broken))
    return same


def judged(outcomes: Sequence[Outcome], changes: str = "") -> list[Judged]:
    """All claims with what was measured of them; see `sat_tf.miniature.claim.by_row`."""
    top1 = by_row(outcomes, changes)
    return [judge(claim, top1) for claim in CLAIMS]


def not_shown(found: Sequence[Judged]) -> list[Judged]:
    """The claims that are checked, were measured, and do not show."""
    return [one for one in found if one.claim.checked and one.verdict is Verdict.DOES_NOT_SHOW]


def _top1(job: Job, outcomes: Sequence[Outcome]) -> str:
    changes = "; ".join(job.changes)
    key = (job.row, job.data, job.config.seed, changes)
    found = [outcome.top1 for outcome in outcomes if outcome.key == key]
    return f"top-1 {found[0]:.1f} %" if found else "done"
