"""Lists the rows of the paper's tables and figures, and runs them.

python -m benchmarks.paper list 'table1/*'
python -m benchmarks.paper run 'glyphs/*' --seeds 0,1,2
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from benchmarks.paper import reproduction
from sat_tf.commands.main import report_errors
from sat_tf.commands.models import quiet_tensorflow
from sat_tf.commands.options import add_overrides, nonempty, seed, several
from sat_tf.commands.parser import Parser
from sat_tf.commands.train import conclude_folder, unless_stopped
from sat_tf.interruption import end_on_signals
from sat_tf.messages import ProblemsError, RunError, say
from sat_tf.messages.terminal import make_console
from sat_tf.training.config import config_text
from sat_tf.training.run_folder import RunFolder

DESCRIPTION = """\
Lists the rows of the paper's tables and figures with the printed values, and runs them, on ImageNet
or on other data. `python -m benchmarks.paper ACTION --help` explains an action."""
EXAMPLES = """\
examples, each after `python -m benchmarks.paper`:
  list 'table1/*'
  run table1/mobilenet_v2/4bits --data imagenet2012 --data_dir ~/tensorflow_datasets
  run 'table4/*' --data glyphs              in miniature: minutes a row, no download
  run 'glyphs/*' --seeds 0,1,2
  show table1/mobilenet_v2/4bits --data folder --data_dir photos > mine.yaml
  table 'table4/*'                          Markdown: the paper's values beside ours
"""

_RUN_DIR = "runs/paper"
_RESULTS = "runs/paper/results.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their arguments."""
    actions = parser.add_subparsers(
        title="actions", metavar="ACTION", required=True, parser_class=Parser
    )

    def add(name: str, do: Any, summary: str, count: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = actions.add_parser(
            name, help=summary, description=summary
        )
        action.set_defaults(action=do)
        words = "name of a row, or a pattern in quotes such as 'table4/*'"
        action.add_argument("rows", metavar="ROW", nargs=count, help=words)
        return action

    show_rows = add("list", _list, "show rows with the values printed in the paper", "*")
    train = add("run", _run, "train rows, and record the outcomes", "+")
    show_config = add("show", _show, "print the whole configuration of a row as YAML", "+")
    print_table = add("table", _table, "print rows as Markdown", "*")
    for action in (show_rows, train, print_table):
        action.add_argument(
            "--results",
            metavar="FILE",
            default=_RESULTS,
            help=f"CSV to which outcomes are added; default: {_RESULTS}",
        )
    for action in (train, show_config):
        action.add_argument(
            "--data",
            metavar="NAME",
            help="what to train on; `list` names all; default: imagenet2012, and "
            "glyphs for glyphs/*",
        )
        action.add_argument("--data_dir", metavar="DIR", help="folder of the images")
        add_overrides(action, "change one setting, with a dotted key; can be given several times")
    train.add_argument(
        "--seeds",
        metavar="N,N,...",
        type=several(seed),
        default=(None,),
        help="run every row with each of these seeds; default: 0",
    )
    train.add_argument(
        "--out",
        metavar="DIR",
        type=nonempty,
        default=_RUN_DIR,
        help=f"where each run has a folder of its own; default: {_RUN_DIR}",
    )


def main(words: Sequence[str]) -> bool:
    """Does what the words of a command line ask for; False where the outcome is bad."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    arguments = parser.parse_args(words)
    return arguments.action(arguments, make_console()) is not False


def _list(arguments: argparse.Namespace, console: Console) -> None:
    outcomes = reproduction.read_outcomes(pathlib.Path(arguments.results))
    for table in reproduction.show(_found(arguments.rows), outcomes):
        console.print(table)
    console.print("Data sets for --data:", highlight=False)
    for name, data in reproduction.data_sets().items():
        say(console, f"  {name:13} {data.about}")


def _run(arguments: argparse.Namespace, console: Console) -> bool:
    jobs = _jobs(arguments)
    folder, results = pathlib.Path(arguments.out), pathlib.Path(arguments.results)

    def work() -> list[RunFolder]:
        quiet_tensorflow()
        return reproduction.run(jobs, folder, results, console)

    finished = unless_stopped(work, folder, console) or []
    # Each red one has its line.
    are_green = [conclude_folder(run_folder, console) for run_folder in finished]
    return all(are_green)


def _show(arguments: argparse.Namespace, console: Console) -> None:
    jobs = _jobs(arguments)
    if len(jobs) > 1:
        raise RunError(
            f"show: received {len(jobs)} rows, expected one; name one of: "
            f"{', '.join(job.row for job in jobs)}."
        )
    say(console, config_text(jobs[0].config).rstrip())


def _jobs(arguments: argparse.Namespace) -> list[reproduction.Job]:
    return reproduction.plan(
        arguments.rows,
        data=arguments.data,
        data_dir=arguments.data_dir,
        changes=arguments.overrides,
        seeds=getattr(arguments, "seeds", (None,)),
    )


def _table(arguments: argparse.Namespace, console: Console) -> None:
    outcomes = reproduction.read_outcomes(pathlib.Path(arguments.results))
    say(console, reproduction.markdown(_found(arguments.rows), outcomes).rstrip())


def _found(patterns: list[str]) -> list[reproduction.Entry]:
    rows, problems = reproduction.find(patterns or ["*"])
    if problems:
        raise RunError(ProblemsError("rows of the paper", problems))
    return rows


if __name__ == "__main__":
    end_on_signals()
    sys.exit(report_errors(lambda: main(sys.argv[1:])))
