"""Fills the tables and figures of pages from the CSV files of results: `make tables`.

A page with figures is rendered from a template of Jinja with the same name in `benchmarks/pages/`
into `docs/`: `rows("latency")` in it are the rows of a file of `benchmarks/results/`, and a loop
over them is a table, so that no figure is typed.
"""

import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2

from benchmarks.rates import at_best_rate
from benchmarks.rows import read_csv, with_spread

Row = Mapping[str, Any]
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "benchmarks" / "results"
_TEMPLATES = _ROOT / "benchmarks" / "pages"
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
    """Rows of the paper's tables beside what was measured, by `benchmarks.paper table`."""
    from benchmarks.paper.reproduction import (
        find,  # here because it is slow to load
        markdown,
        read_outcomes,
    )

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


def pages() -> Iterator[tuple[pathlib.Path, str]]:
    """Yields the path of each page with figures, and its whole text."""
    for template in sorted(_TEMPLATES.rglob("*.md")):
        path = template.relative_to(_TEMPLATES)
        note = f"<!-- `make tables` renders this page from benchmarks/pages/{path.as_posix()}. -->"
        try:
            text = filled(template.read_text(encoding="utf-8"))
        except Exception as error:
            error.add_note(f"In {template}.")
            raise
        yield _ROOT / "docs" / path, f"{note}\n\n{text}"


if __name__ == "__main__":
    for page, text in pages():
        page.write_text(text, encoding="utf-8")
