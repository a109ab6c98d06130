"""Trains the paper's ablation on a thousand printed characters, and judges its claims one by one.

Rows of benchmarks/paper/rows are run one after the other, and miniature.md with curves.png is
written after each; the same command resumes what was stopped. Exit status 1: an ordering that is
checked (in bold) does not show, or LiteRT and a model differ. docs/paper/miniature.md has the
results.

    python -m benchmarks.paper.miniature               # 6 minutes: 2 bits, one seed
    python -m benchmarks.paper.miniature --full        # an hour: all groups, three seeds
    python -m benchmarks.paper.miniature --page_only   # writes the page from what is recorded
"""

import os
import pathlib
import statistics
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import rich.console
from absl import app, flags
from matplotlib.figure import Figure as Picture

from benchmarks.paper import reproduction as paper_run
from benchmarks.paper.claims import CHAPTERS, CLAIMS, OF_PAPER, Claim, Top1, Verdict, by_row, judge
from benchmarks.paper.reproduction import Job, Outcome, plan, read_outcomes
from sat_tf.commands.train import conclude_folder, unless_stopped
from sat_tf.files import written_whole
from sat_tf.messages import ProblemsError, RunError, charts
from sat_tf.training import run_folder
from sat_tf.training.run_folder import EpochMetrics, RunFolder

_FULL = flags.DEFINE_bool("full", False, "all groups of trainings, with seeds 0, 1 and 2")
_SEEDS = flags.DEFINE_list("seeds", [], "other seeds; rows that --full runs once have the first")
_RUN_DIR = flags.DEFINE_string("run_dir", "runs/miniature", "folder of the runs and of the page")
_PAGE_ONLY = flags.DEFINE_bool("page_only", False, "only write the page from what is recorded")


class Group(NamedTuple):
    """Rows that are compared with each other.

    Attributes:
        title: in plain text.
        rows: names of rows, with their labels.
        every_seed: whether the long run repeats them with every seed.
    """

    title: str
    rows: Mapping[str, str]
    every_seed: bool = False


_METHODS = {
    "pact": "PACT",
    "pact_cg": "PACT+CG",
    "pact_sat": "PACT+SAT",
    "pact_sat_cg": "PACT+SAT+CG",
}
_ABLATION = {
    bits: {f"glyphs/{bits}bits/{method}": label for method, label in _METHODS.items()}
    for bits in (4, 2)
}


def _starts(bits: int) -> dict[str, str]:
    exchanged = f"glyphs_common_start/{bits}bits"
    return {
        f"glyphs/{bits}bits/pact": f"{bits} bits: PACT from clamp",
        f"{exchanged}/sat_from_clamp": f"{bits} bits: SAT from clamp",
        f"{exchanged}/pact_from_sat": f"{bits} bits: PACT from SAT",
        f"glyphs/{bits}bits/pact_sat": f"{bits} bits: SAT from SAT",
    }


def _grids(bits: int) -> dict[str, str]:
    return {
        f"glyphs/{bits}bits/pact_sat_cg": f"{bits} bits: DoReFa (paper)",
        **{
            f"glyphs_grids/{bits}bits/{grid}": f"{bits} bits: {grid}"
            for grid in ("rounded", "narrow", "modified")
        },
        f"glyphs_streams/{bits}bits/pact_sat_cg": f"{bits} bits: 8-bit streams",
    }


GROUPS = (
    Group(
        "Float models",
        {
            "glyphs/float/vanilla": "vanilla",
            "glyphs/float/clamp": "clamp",
            "glyphs/float/clamp_constant": "clamp + constant (SAT)",
            "glyphs/float/clamp_stddev": "clamp + stddev",
        },
        every_seed=True,
    ),
    Group("4 bits", _ABLATION[4], every_seed=True),
    Group("2 bits", _ABLATION[2], every_seed=True),
    Group("The start exchanged", {**_starts(4), **_starts(2)}, every_seed=True),
    Group("Grids of the weights, and 8-bit streams", {**_grids(4), **_grids(2)}),
    Group(
        "The other head, a third of the learning rate",
        {
            "glyphs_gap_head/float/vanilla": "vanilla",
            "glyphs_gap_head/float/clamp": "clamp",
            "glyphs_gap_head/float/clamp_constant": "clamp + constant",
            "glyphs_gap_head/float_through_max/clamp": "clamp, max",
            "glyphs_gap_head/float_through_max/clamp_constant": "clamp + constant, max",
            "glyphs_gap_head/4bits_through_max/pact": "4 bits: PACT, max",
            "glyphs_gap_head/4bits_through_max/pact_sat": "4 bits: PACT+SAT, max",
            "glyphs_gap_head/2bits_through_max/pact": "2 bits: PACT, max",
            "glyphs_gap_head/2bits_through_max/pact_sat": "2 bits: PACT+SAT, max",
        },
    ),
    Group(
        "Gradients through the maximum of the weights",
        {
            "glyphs_through_max/float/clamp": "clamp",
            "glyphs_through_max/float/clamp_constant": "clamp + constant (SAT)",
            "glyphs_through_max/4bits/pact": "4 bits: PACT",
            "glyphs_through_max/4bits/pact_sat": "4 bits: PACT+SAT",
        },
    ),
)

# The rows of the short run: enough for every claim that is checked.
SHORT = ("glyphs/float/clamp", "glyphs/float/clamp_constant", *_ABLATION[2])


def jobs(*, full: bool, seeds: Sequence[int] = (), changes: Sequence[str] = ()) -> list[Job]:
    """The jobs to run, rows with every seed first.

    Args:
        full: all groups, or the short run.
        seeds: by default those of the run; rows that are run once have the first.
        changes: "key=value" with a dotted key, for all rows.

    Raises:
        RunError: the changes do not fit; lists every problem.
    """
    seeds = tuple(seeds) or ((0, 1, 2) if full else (0,))
    often, once = (
        [row for group in GROUPS if group.every_seed == kind for row in group.rows]
        for kind in (True, False)
    )
    with warnings.catch_warnings():
        # Grids that train badly are rows for that reason.
        warnings.filterwarnings("ignore", message="weight_grid=")
        if not full:
            return plan(SHORT, changes=changes, seeds=seeds)
        once = [row for row in once if row not in often]
        return [
            *plan(list(dict.fromkeys(often)), changes=changes, seeds=seeds),
            *plan(once, changes=changes, seeds=seeds[:1]),
        ]


def run(planned: Sequence[Job], folder: pathlib.Path, console: rich.console.Console) -> bool:
    """Runs jobs one after the other, and writes the page after each.

    Finished runs in this folder are not repeated, and an interrupted one resumes. A training that
    fails, for instance with infinite weights, does not stop the others.

    Returns:
        Whether LiteRT computes the integers that were trained, in all of them.

    Raises:
        RunError: a file cannot be read or written, or trainings failed: lists these after the
            others have been run.
    """
    results = folder / "results.csv"
    read_outcomes(results)
    same, broken = True, []
    for number, job in enumerate(planned, start=1):
        title = f"{job.row}, seed {job.config.seed}"
        console.print(f"[bold]{number} of {len(planned)}[/]: {title}", highlight=False)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="weight_grid=")
                for run in paper_run.run([job], folder, results, console):
                    same &= conclude_folder(run, console)
        except RunError as error:
            broken.append(f"{title}: {error}")
        write_page(folder, read_outcomes(results), "; ".join(job.changes))
    if broken:
        raise RunError(ProblemsError("miniature", broken))
    return same


def write_page(folder: pathlib.Path, outcomes: Sequence[Outcome], changes: str = "") -> None:
    """Writes miniature.md, and curves.png if the folder has any run that it shows."""
    with charts.styled():
        drawn = draw(curves(outcomes, folder))
        if drawn is not None:
            with written_whole(folder / "curves.png") as temporary:
                charts.save(drawn, temporary)
    with written_whole(folder / "miniature.md") as temporary:
        text = page(outcomes, folder, changes) + ("\n![Curves](curves.png)\n" if drawn else "")
        temporary.write_text(text, encoding="utf-8")


def page(outcomes: Sequence[Outcome], folder: pathlib.Path, changes: str = "") -> str:
    """Every claim with its measurement, the top-1 of every row, and κ₀ of the float models.

    Args:
        outcomes: of all rows, as recorded.
        folder: in which each run has a folder of its own.
        changes: only of runs with these settings besides the row.
    """
    top1 = by_row(outcomes, changes)
    parts = [f"# The paper in miniature: {count(OF_PAPER, top1)}"]
    if changes:
        parts.append(f"These runs have other settings than the rows: {changes}.")
    for chapter in CHAPTERS:
        parts.append(f"## {chapter.title}\n\n{chapter.about}")
        rows = []
        for claim in chapter.claims:
            found, text = judge(claim, top1), f"**{claim.text}**" if claim.checked else claim.text
            asked = "above 0" if claim.low == 0.0 else f"{claim.low:g} to {claim.high:g}"
            places = f"{claim.source}: {claim.printed}" if claim.printed else claim.source
            compared = f"{' + '.join(claim.plus.split())} - ({' + '.join(claim.minus.split())})"
            rows.append((text, found.verdict.value, found.measured, asked, places, compared))
        parts.append(
            _table(("claim", "verdict", "measured", "asked", "paper", "rows compared"), rows)
        )
    accuracies = [
        (group.title, label, spread(list(top1[row].values())))
        for group in GROUPS
        for row, label in group.rows.items()
        if row in top1
    ]
    parts.append("## Accuracies")
    parts.append(_table(("group", "row", "top-1, %"), accuracies))
    kappas = [
        (outcome.row, outcome.seed, f"{kappa[0]:.3g}", f"{kappa[-1]:.3g}", f"{outcome.top1:.1f}")
        for outcome in outcomes
        if "/float" in outcome.row and outcome.changes == changes
        for kappa in [recorded_kappas(folder / outcome.run)]
        if len(kappa) > 1
    ]
    parts.append("## κ₀ of the float models")
    parts.append(_table(("row", "seed", "before training", "after", "top-1, %"), kappas))
    return "\n\n".join(parts) + "\n"


def count(claims: Iterable[Claim], top1: Top1) -> str:
    """How many claims show, in words."""
    verdicts = [judge(claim, top1).verdict for claim in claims]
    shown, missing = (verdicts.count(kind) for kind in (Verdict.SHOWS, Verdict.NOT_RUN))
    return f"{shown} of {len(verdicts) - missing} claims of the paper show, {missing} not run"


def spread(values: Sequence[float]) -> str:
    """The mean, with the standard deviation of several."""
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def recorded_kappas(folder: pathlib.Path) -> list[float]:
    """κ₀ in the course of a run, as it was written for TensorBoard; in the order of its steps."""
    import tensorflow as tf
    from tensorflow.core.util import event_pb2

    found: dict[int, float] = {}
    for file in sorted((folder / run_folder.TENSORBOARD).glob("events.*")):
        for record in tf.data.TFRecordDataset(str(file)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == "kappa_0":
                    found[event.step] = float(tf.make_ndarray(value.tensor))
    return [found[step] for step in sorted(found)]


class Curve(NamedTuple):
    """What a run has recorded in its steps file.

    Attributes:
        row: of the run.
        steps: of the run.
        top1: in training, in percent, at each of them.
        level: the mean of all clipping levels; empty in float models.
    """

    row: str
    steps: list[int]
    top1: list[float]
    level: list[float]


def curves(outcomes: Iterable[Outcome], folder: pathlib.Path) -> list[Curve]:
    """The curves of those runs whose files the folder has."""

    def read(outcome: Outcome) -> Curve:
        rows = [row for row in EpochMetrics.read(RunFolder(folder / outcome.run)) if row.epoch]
        before = max((row.step for row in rows if row.stage == "float"), default=0)
        return Curve(
            outcome.row,
            [row.step + (0 if row.stage == "float" else before) for row in rows],
            [100.0 * row.train_top1 for row in rows],
            [row.clipping_level for row in rows if row.clipping_level is not None],
        )

    return [curve for curve in map(read, outcomes) if curve.steps]


# What the panels show: as Figures 2b and 3, and the clipping levels that explain Figure 3. The
# original gradient takes values below the level as exact, so that levels drift upwards.
_PANELS = (
    ("Float models", "top1", GROUPS[0].rows),
    *((f"{bits} bits", name, _ABLATION[bits]) for bits in (4, 2) for name in ("top1", "level")),
)
_AXES = {"top1": "top-1 in training, %", "level": "mean clipping level"}


def draw(found: Sequence[Curve]) -> Picture | None:
    """A panel for each group that has curves, a line for each run."""
    panels = [
        (*panel, runs)
        for panel in _PANELS
        if (runs := [one for one in found if one.row in panel[2]])
    ]
    if not panels:
        return None
    picture, axes = charts.canvas(1, len(panels), size=(5.2 * len(panels), 4.0))
    for place, (title, name, rows, drawn) in zip(
        axes if len(panels) > 1 else [axes], panels, strict=True
    ):
        styles = dict(zip(rows.values(), charts.SERIES, strict=True))
        named: set[str] = set()
        for curve in drawn:
            label = rows[curve.row]
            style = {**styles[label], "marker": "", "label": None if label in named else label}
            values = getattr(curve, name)
            place.plot(curve.steps[-len(values) :], values, **style)
            named.add(label)
        place.set_title(title)
        place.set_xlabel("step of the run")
        place.set_ylabel(_AXES[name])
        place.set_ylim(bottom=0.0)
        place.legend()
    return picture


def main(argv: list[str]) -> None:
    """Trains what is left, and says which claims show."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    # Sums are then added in one order, however many processors there are: the training of so small
    # a network amplifies a difference in the last digit, and gains nothing by more threads.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    folder, console = pathlib.Path(_RUN_DIR.value), rich.console.Console()
    same: bool | None = True
    if not _PAGE_ONLY.value:
        planned = jobs(full=_FULL.value, seeds=tuple(map(int, _SEEDS.value)))
        folder.mkdir(parents=True, exist_ok=True)
        same = unless_stopped(lambda: run(planned, folder, console), folder, console)
    outcomes = read_outcomes(folder / "results.csv")
    write_page(folder, outcomes)
    top1 = by_row(outcomes)
    judged = [judge(claim, top1) for claim in CLAIMS]
    for found in judged:
        if found.verdict is not Verdict.NOT_RUN:
            line = f"{found.verdict.value:17} {found.measured:22} {found.claim.text}"
            console.print(line, highlight=False)
    console.print(f"{count(OF_PAPER, top1)}: {folder / 'miniature.md'}")
    failed = [one for one in judged if one.claim.checked and one.verdict is Verdict.DOES_NOT_SHOW]
    sys.exit(int(same is False or bool(failed)))


if __name__ == "__main__":
    app.run(main)
