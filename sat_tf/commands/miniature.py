"""`sat-tf miniature`."""

import argparse
import os
import pathlib

from rich.console import Console

from sat_tf.atomic_file import check_writable
from sat_tf.commands.models import compute_on_one_thread, quiet_tensorflow
from sat_tf.commands.options import add_overrides, seeds, unless_stopped
from sat_tf.messages import RunError, list_problems
from sat_tf.reproduction.miniature.claims import CHAPTERS, ClaimVerdict
from sat_tf.reproduction.miniature.groups import jobs
from sat_tf.reproduction.miniature.page import missing_figures, write_page
from sat_tf.reproduction.miniature.run import judged, not_shown
from sat_tf.reproduction.miniature.run import run as run_jobs
from sat_tf.reproduction.paper.record import Outcome, read_outcomes

SUMMARY = "re-create the paper's ablation in minutes, claim by claim"
DESCRIPTION = (
    "Trains the paper's ablation on a thousand printed characters, which are rendered on the spot, "
    "and writes a page that sets each claim of the paper beside what was measured. The same "
    "command resumes it after it was stopped. Each operation is computed on one thread, so that "
    "processors with the same instructions give the same numbers, however many they are; "
    "TF_NUM_INTRAOP_THREADS sets another number."
)
EXAMPLES = """\
examples:
  sat-tf miniature                      about 5 minutes on two cores: 2 bits, one seed
  sat-tf miniature --full               about an hour: also 4 bits, the common start, grids,
                                        counter-examples; three seeds
  sat-tf miniature --seeds 0,1,2        the short run with three seeds
  sat-tf miniature --page_only          rewrites the page from what is recorded

Exit status 1: an ordering that is checked (in bold on the page) does not show, or LiteRT and a
model differ.
"""

_RUN_DIR = "runs/miniature"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--full", action="store_true", help="all groups of trainings, with seeds 0, 1 and 2"
    )
    parser.add_argument(
        "--seeds",
        metavar="N,N,...",
        type=seeds,
        default=(),
        help="other seeds; rows that --full runs once have the first of them",
    )
    parser.add_argument(
        "--run_dir",
        metavar="DIR",
        default=_RUN_DIR,
        help=f"where each run has a folder of its own; default: {_RUN_DIR}. Runs of `sat-tf paper` "
        "in it are not repeated",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        help="CSV to which outcomes are added; default: results.csv in --run_dir",
    )
    parser.add_argument(
        "--page", metavar="FILE", help="the page to write; default: index.html in --run_dir"
    )
    parser.add_argument(
        "--page_only", action="store_true", help="only write the page from what is recorded"
    )
    parser.add_argument(
        "--no_figures",
        action="store_true",
        help="leave out the figures of `sat-tf figures`, which take about 4 minutes once",
    )
    add_overrides(
        parser,
        "change one setting of all trainings, with a dotted key, to try things out; the page "
        "states it, and no claim is checked",
    )


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Trains what is left, or nothing with `--page_only`, and says which claims show."""
    folder = pathlib.Path(arguments.run_dir)
    results = pathlib.Path(arguments.results or folder / "results.csv")
    page = pathlib.Path(arguments.page or folder / "index.html")
    _check(arguments, folder, page)
    changes = "; ".join(arguments.overrides)
    same = True
    if arguments.page_only:
        write_page(page, _recorded(results), folder, changes)
    else:
        planned = jobs(full=arguments.full, seeds=arguments.seeds, changes=arguments.overrides)

        def work() -> bool:
            quiet_tensorflow()
            compute_on_one_thread()
            figures = [] if arguments.no_figures else missing_figures(folder)
            return run_jobs(planned, figures, folder, results, page, console)

        ended = unless_stopped(work, folder, console)
        if ended is None:
            return True
        same = ended
    holds = _report(read_outcomes(results), changes, console)
    console.print(f"Page: {page}", highlight=False, soft_wrap=True)
    return same and (holds or bool(changes))


def _report(outcomes: list[Outcome], changes: str, console: Console) -> bool:
    """Prints what was measured of each claim; returns whether all that are checked show."""
    found = {one.claim: one for one in judged(outcomes, changes)}
    for chapter in CHAPTERS:
        run_at_all = [
            found[claim]
            for claim in chapter.claims
            if found[claim].verdict is not ClaimVerdict.NOT_RUN
        ]
        if run_at_all:
            console.print(f"[bold]{chapter.title}[/]", highlight=False, soft_wrap=True)
        for one in run_at_all:
            colour = "green" if one.verdict is ClaimVerdict.SHOWS else "red"
            console.print(f"  [{colour}]{one.verdict.value:13}[/]", end=" ")
            console.print(
                f"{one.measured:22} {one.claim.text}", highlight=False, markup=False, soft_wrap=True
            )
    verdicts = [one.verdict for one in found.values()]
    shown, missing = (verdicts.count(kind) for kind in (ClaimVerdict.SHOWS, ClaimVerdict.NOT_RUN))
    console.print(f"{shown} of {len(verdicts) - missing} claims show, {missing} were not run.")
    return not not_shown(list(found.values()))


def _recorded(results: pathlib.Path) -> list[Outcome]:
    if not results.exists():
        raise RunError(
            f"{results}: there is no such file; expected the outcomes of an earlier run; leave out "
            "--page_only, or name them with --results."
        )
    return read_outcomes(results)


def _check(arguments: argparse.Namespace, folder: pathlib.Path, page: pathlib.Path) -> None:
    """Raises an error that lists every problem of the arguments."""
    problems = []
    if arguments.page_only and (arguments.full or arguments.seeds):
        problems.append(
            "--page_only with --full or --seeds: expected it alone; the page shows all that is "
            "recorded; leave them out."
        )
    if not arguments.run_dir.strip():
        problems.append("--run_dir: received an empty name, expected a folder; or leave it out.")
    elif folder.exists() and not folder.is_dir():
        problems.append(f"--run_dir {folder}: received a file, expected a folder; choose another.")
    elif arguments.page is not None:
        try:
            check_writable(page)
        except ValueError as error:
            problems.append(f"--page {error}")
    elif folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        problems.append(f"--run_dir {folder}: not writable; choose another folder.")
    if problems:
        raise RunError(list_problems("sat-tf miniature", problems))
