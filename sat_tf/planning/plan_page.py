"""A plan as an HTML page: one self-contained file with the diagram and the table."""

import operator
import os

from sat_tf.atomic_file import written_whole
from sat_tf.planning.diagram import diagram_element
from sat_tf.planning.plan_table import (
    NUMBERS,
    number_text,
    operators_text,
    summary,
    totals,
    verdict,
)
from sat_tf.planning.planned_model import Export, Fate, LayerPlan, PlannedModel, shape_text
from sat_tf.presentation.page import render_page
from sat_tf.presentation.tables import Column, Table, digits

# The diagram is as wide, in pixels, as a window of 1280 has room for.
_WIDTH = 1230.0
_KINDS = {Fate.PROBLEM: "problem", Fate.INSERTED: "inserted"}


def write_page(plan: PlannedModel, path: str | os.PathLike[str]) -> None:
    """Writes the page; the file appears whole, or not at all.

    Raises:
        ValueError: the path cannot be written.
    """
    with written_whole(path) as temporary:
        temporary.write_text(plan_page(plan), encoding="utf-8")


def plan_page(plan: PlannedModel) -> str:
    """HTML that shows all of a plan."""
    layers = Table(
        columns=[*_WORDS, *_NUMBERS],
        rows=plan.rows,
        kind=lambda row: _KINDS.get(row.fate, ""),
        totals=["in all", *[""] * len(_WORDS), *totals(plan, _NUMBERS[1:])],
    )
    return render_page(
        "planning/plan_page.html",
        plan=plan,
        verdict=verdict(plan),
        summary=summary(plan),
        diagram=diagram_element(plan, _WIDTH),
        layers=layers.to_html("layers"),
        policy={name: str(value) for name, value in plan.policy.to_dict().items()},
    )


def weights_text(row: LayerPlan) -> str:
    """How the weights are quantized, in few words."""
    return "-" if row.weights is None else str(row.weights)


def output_text(row: LayerPlan) -> str:
    """The quantizer of the output, or why it has none."""
    if row.problems:
        return " ".join(row.problems)
    if row.activation is None:
        return row.reason or row.activation_reason
    if row.inserted:
        return f"{row.activation}; {row.activation_reason}"
    return str(row.activation)


def file_text(row: LayerPlan) -> str:
    """How the layer gets into the file."""
    if row.fused_into:
        return f"{row.export.value}, fused into {', '.join(row.fused_into)}"
    if row.operators:
        return f"{row.export.value}: {operators_text(row)}"
    if row.export in (Export.REFUSED, Export.NOTHING) and row.export_reason:
        return f"{row.export.value}: {row.export_reason}"
    return row.export.value


_WORDS: tuple[Column[LayerPlan], ...] = (
    Column("layer", lambda row: row.name),
    Column("kind", lambda row: f"{row.kind} {row.detail}".strip()),
    Column("shape", lambda row: row.shape, shape_text),
    Column("becomes", lambda row: row.fate.value),
    Column("weights", weights_text),
    Column("output", output_text),
    Column("in the file", file_text),
)
_NUMBERS = (
    Column("reads bits", operator.attrgetter("reading_bits"), digits("", "-"), number=True),
    *NUMBERS,
    Column("float bytes", operator.attrgetter("float_bytes"), number_text, number=True),
)
