"""Fills the tables and figures of pages from `benchmarks/results/` while the site is built.

A page is a template of Jinja: `rows("latency")` in it are the rows of a CSV file, and a loop over
them is a table, so that no figure stands in two places. `mkdocs.yml` names this file as a hook. To
read one page without the site:

    python docs/measured.py docs/measurements/files.md
"""

import pathlib
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2

_ROOT = pathlib.Path(__file__).resolve().parents[1]
if str(_ROOT) not in sys.path:  # which `mkdocs build` leaves out, unlike `python -m mkdocs build`
    sys.path.insert(0, str(_ROOT))

from benchmarks.rates import at_best_rate  # noqa: E402
from benchmarks.rows import read_csv, with_spread  # noqa: E402

Row = Mapping[str, Any]
_RESULTS = _ROOT / "benchmarks" / "results"
_MODELS = {
    "mobilenet_v1": "MobileNet-V1",
    "mobilenet_v2": "MobileNet-V2",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "preresnet50": "PreResNet-50",
    "vgg16": "VGG-16",
    "vgg16_bn": "VGG-16, BatchNormalization",
    "efficientnet_b0": "EfficientNetB0",
}


def rows(name: str, **wanted: str) -> list[Row]:
    """Returns the rows of a file of results, in its order, that have these values.

    Raises:
        ValueError: there is no such row.
    """
    found = [row for row in read_csv(_RESULTS / f"{name}.csv") if wanted.items() <= row.items()]
    if not found:
        raise ValueError(f"benchmarks/results/{name}.csv has no row with {wanted}.")
    return found


def row(name: str, **wanted: str) -> Row:
    """Returns the row that has these values, where there is just one.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = rows(name, **wanted)
    if len(found) > 1:
        raise ValueError(f"benchmarks/results/{name}.csv has {len(found)} rows with {wanted}.")
    return found[0]


def _total(of: Sequence[Row], column: str) -> int:
    return sum(int(row[column] or 0) for row in of)


def _numbers(of: Iterable[Row], column: str) -> list[float]:
    """The numbers of a column, without empty cells."""
    return [float(row[column]) for row in of if row[column]]


def _ratio(row: Row, column: str) -> str:
    """A ratio with its quartiles: 1.21 (1.13 to 1.38)."""
    what = column.removesuffix("times float").removesuffix(", ")
    quartiles = row[f"{what}, quartiles" if what else "quartiles"]
    low, high = map(float, quartiles.split(" to "))
    return f"{float(row[column]):.2f} ({low:.2f} to {high:.2f})"


def _paper_table(*patterns: str) -> str:
    """Rows of the paper's tables beside what was measured, as `sat-tf paper table` prints them."""
    from sat_tf.training.paper_rows import find  # here because it is slow to load
    from sat_tf.training.reproduction import markdown, read_outcomes

    found, problems = find(patterns)
    if problems:
        raise ValueError(" ".join(problems))
    return markdown(found, read_outcomes(_RESULTS / "paper.csv"))


def _environment() -> jinja2.Environment:
    # Lines that hold nothing but a tag leave no line, which would end a table.
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(rows=rows, row=row, models=_MODELS)
    environment.globals.update(at_best_rate=at_best_rate, paper_table=_paper_table)
    environment.filters.update(
        thousands=lambda value: f"{int(value):,}",
        decimals=lambda value, places: f"{float(value):.{places}f}",
        mean=statistics.mean,
        median=statistics.median,
        spread=with_spread,
        numbers=_numbers,
        total=_total,
        ratio=_ratio,
    )
    return environment


def filled(page: str) -> str:
    """A page of Markdown with its tables and figures."""
    return _environment().from_string(page).render()


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fills a page; MkDocs calls it for each."""
    try:
        return filled(markdown)
    except Exception as error:
        error.add_note(f"In docs/{page.file.src_uri}.")
        raise


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(filled(pathlib.Path(path).read_text(encoding="utf-8")), end="")
