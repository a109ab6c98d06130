"""Runs the miniature: every training that is left, recording it and the page after each."""

import contextlib
import pathlib
from collections.abc import Sequence

from rich.console import Console

from sat_tf.messages import RunError, list_problems
from sat_tf.presentation.console import make_console
from sat_tf.reproduction.figures.figure import Figure, write_figure
from sat_tf.reproduction.miniature import kappa
from sat_tf.reproduction.miniature.claims import CLAIMS, ClaimVerdict, Judged, by_row, judge
from sat_tf.reproduction.miniature.groups import grids_as_they_are
from sat_tf.reproduction.miniature.page import FIGURES_FOLDER, write_page
from sat_tf.reproduction.miniature.progress import (
    OverallBar,
    Training,
    Work,
    configs_of,
    figure_units,
    trainings,
)
from sat_tf.reproduction.paper import run as paper_run
from sat_tf.reproduction.paper.record import Outcome, read_outcomes
from sat_tf.reproduction.paper.run import Job
from sat_tf.training.state.run_folder import RunFolder

# The output of the trainer, too long for the screen.
LOG = "log.txt"
_SEED = 0  # of the figures


def run(
    jobs: Sequence[Job],
    figures: Sequence[Figure],
    folder: pathlib.Path,
    results: pathlib.Path,
    page: pathlib.Path,
    console: Console,
) -> bool:
    """Runs jobs one after the other, then computes figures, and rewrites the page after each.

    Finished runs in this folder are not repeated, and an interrupted one resumes. A training that
    fails, for instance with infinite weights, does not stop the others.

    Args:
        jobs: see `sat_tf.reproduction.miniature.groups.jobs`.
        figures: those to compute; see `sat_tf.reproduction.miniature.page.missing_figures`.
        folder: in which each run has a folder of its own, and the figures share one.
        results: the file that outcomes are added to.
        page: the file to write.
        console: where to show progress.

    Returns:
        Whether LiteRT computes the integers that were trained, in all of them.

    Raises:
        RunError: a file cannot be read or written, or trainings failed: lists these after the
            others have been run.
    """
    RunFolder(folder).check_writable()
    read_outcomes(results)
    folder.mkdir(parents=True, exist_ok=True)
    changes = "; ".join(jobs[0].changes) if jobs else ""
    to_do = {
        name: training
        for name, training in trainings(jobs).items()
        if not RunFolder(folder / name).is_finished
    }
    work = Work(
        {
            **{name: training.units for name, training in to_do.items()},
            **{figure.name: figure_units(figure) for figure in figures},
        }
    )
    titles = [
        *(_title(job) for job in jobs),
        *(f"{figure.place}: {figure.title}" for figure in figures),
    ]
    same = True
    broken: list[str] = []
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / LOG).open("a", encoding="utf-8"))
        bar = stack.enter_context(OverallBar(titles, work, console))
        stack.enter_context(grids_as_they_are())
        for job in jobs:
            bar.start()
            try:
                same &= paper_run.run(
                    [job],
                    folder,
                    results,
                    make_console(file=log, width=120),
                    report_step=_Steps(job, to_do, work, bar),
                )
                for config in configs_of(job):
                    if config.stages.quantized is None:
                        kappa.note(folder, config.name)
                words = _top1(job, read_outcomes(results))
            except RunError as error:
                broken.append(f"{_title(job)}: {error}")
                words = "failed"
            work.finish(config.name for config in configs_of(job))
            write_page(page, read_outcomes(results), folder, changes)
            bar.finish(words)
        for figure in figures:
            bar.start()
            _make(figure, folder, work, bar)
            write_page(page, read_outcomes(results), folder, changes)
            bar.finish("drawn")
    if broken:
        raise RunError(list_problems("sat-tf miniature", broken))
    return same


def judged(outcomes: Sequence[Outcome], changes: str = "") -> list[Judged]:
    """All claims with their measurements; see `claims.by_row`."""
    top1 = by_row(outcomes, changes)
    return [judge(claim, top1) for claim in CLAIMS]


def not_shown(found: Sequence[Judged]) -> list[Judged]:
    """The claims that are checked, were measured, and do not show."""
    return [one for one in found if one.claim.checked and one.verdict is ClaimVerdict.DOES_NOT_SHOW]


class _Steps:
    """A callback of the trainer that advances the bar."""

    def __init__(self, job: Job, to_do: dict[str, Training], work: Work, bar: OverallBar) -> None:
        found = [to_do[config.name] for config in configs_of(job) if config.name in to_do]
        self._by_stage = {training.stage: training for training in found}
        self._work, self._bar = work, bar

    def __call__(self, stage: str, step: int) -> None:
        training = self._by_stage.get(stage)
        if training is not None:
            self._work.advance(training.name, training.units_after(step))
            self._bar.show(f"{stage} {step}/{training.steps}")


def _make(figure: Figure, folder: pathlib.Path, work: Work, bar: OverallBar) -> None:
    shares: list[float] = []

    def advance(share: float) -> None:
        shares.append(share)
        work.advance(figure.name, sum(shares) * figure_units(figure))
        bar.show()

    table = figure.measure(_SEED, advance)
    place = folder / FIGURES_FOLDER
    place.mkdir(exist_ok=True)
    write_figure(place, figure, table)
    work.finish([figure.name])


def _title(job: Job) -> str:
    return f"{job.row}, seed {job.config.seed}"


def _top1(job: Job, outcomes: Sequence[Outcome]) -> str:
    key = (job.row, job.data, job.config.seed, "; ".join(job.changes))
    found = [outcome.top1 for outcome in outcomes if outcome.key == key]
    return f"top-1 {found[0]:.1f} %" if found else "done"
