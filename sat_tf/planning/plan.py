"""The plan of a quantization for its user: to read, to print, and to write to a file."""

import dataclasses
import operator
import os
from typing import Any

from rich.console import Console

from sat_tf.atomic_file import write_text
from sat_tf.planning.diagram import diagram_element, write_diagram
from sat_tf.planning.plan_table import (
    NUMBERS,
    layers,
    number_text,
    operators_text,
    print_plan,
    reasons,
    summary,
    totals,
    verdict,
)
from sat_tf.planning.planned_model import Export, Fate, LayerPlan, PlannedModel, shape_text
from sat_tf.presentation.notebook import Displayed
from sat_tf.presentation.page import render_page
from sat_tf.presentation.tables import Cell, Column, Marked, RowTable, Table, digits


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Displayed, PlannedModel, RowTable):
    """The plan of a model; see `PlannedModel` for its attributes."""

    _width = 160

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows as plain values, all with the same keys; None where something is unknown."""
        return [_plain(row) for row in self.rows]

    def _columns(self) -> tuple[str, ...]:
        return COLUMNS

    def _print(self, console: Console) -> None:
        print_plan(self, console)

    def _headline(self) -> Marked:
        return Marked(f"{self.model} {verdict(self).words}", verdict(self).kind)

    def _tables(self) -> dict[str, Table[LayerPlan]]:
        return {"Quantization plan": layers(self)}

    def _notes(self) -> list[Cell]:
        problems = (*self.problems, *self.export_problems)
        return [
            *(Marked(problem, "bad") for problem in problems),
            *summary(self),
            *reasons(self),
            *(f"note: {note}" for note in self.notes),
        ]

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with the diagram and the table: one file of HTML, with nothing to load.

        Raises:
            ValueError: the path cannot be written.
        """
        write_text(path, plan_page(self))

    def write_diagram(self, path: str | os.PathLike[str]) -> None:
        """Draws the graph, top to bottom, coloured by bits.

        Args:
            path: of a .svg or a .png file; it appears whole, or not at all.

        Raises:
            ValueError: the path has another suffix, or cannot be written.
        """
        write_diagram(self, path)


COLUMNS = (
    "row",
    "name",
    "kind",
    "detail",
    "reads",
    "shape",
    "fate",
    "reason",
    "weight_bits",
    "weight_grid",
    "weight_range",
    "rescale",
    "rescale_reason",
    "latent_start",
    "reading_bits",
    "reading_reason",
    "activation_bits",
    "activation_signed",
    "stream",
    "clipping_level",
    "clipping_gradient",
    "activation_reason",
    "absorbed_by",
    "export",
    "fused_into",
    "operators",
    "export_reason",
    "parameters",
    "multiply_adds",
    "bit_operations",
    "bytes",
    "float_bytes",
    "problems",
)


def _plain(row: LayerPlan) -> dict[str, Any]:
    weights, activation = row.weights, row.activation
    values: dict[str, Any] = {
        **{name: getattr(row, name, None) for name in COLUMNS},
        "row": "inserted" if row.inserted else "layer",
        "shape": shape_text(row.shape),
        "fate": row.fate.value,
        "export": row.export.value,
        "problems": "; ".join(row.problems),
    }
    for name in ("reads", "fused_into", "operators"):
        values[name] = ", ".join(getattr(row, name))
    if weights is not None:
        values |= {
            "weight_bits": weights.bits,
            "weight_grid": weights.grid,
            "weight_range": weights.range,
            "rescale": weights.rescale or "none",
            "rescale_reason": weights.rescale_reason,
            "latent_start": weights.start,
        }
    if activation is not None:
        values |= {
            "activation_bits": activation.bits,
            "activation_signed": activation.signed,
            "stream": activation.stream,
            "clipping_level": activation.clipping_level,
            "clipping_gradient": activation.gradient,
        }
    return {name: values[name] for name in COLUMNS}


# The diagram is as wide, in pixels, as a window of 1280 has room for.
_WIDTH = 1230.0
_KINDS = {Fate.PROBLEM: "problem", Fate.INSERTED: "inserted"}


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


def _weights_text(row: LayerPlan) -> str:
    """How the weights are quantized, in few words."""
    return "-" if row.weights is None else str(row.weights)


def _output_text(row: LayerPlan) -> str:
    """The quantizer of the output, or why it has none."""
    if row.problems:
        return " ".join(row.problems)
    if row.activation is None:
        return row.reason or row.activation_reason
    if row.inserted:
        return f"{row.activation}; {row.activation_reason}"
    return str(row.activation)


def _file_text(row: LayerPlan) -> str:
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
    Column("weights", _weights_text),
    Column("output", _output_text),
    Column("in the file", _file_text),
)
_NUMBERS = (
    Column("reads bits", operator.attrgetter("reading_bits"), digits("", "-"), number=True),
    *NUMBERS,
    Column("float bytes", operator.attrgetter("float_bytes"), number_text, number=True),
)
