"""The plan of a quantization for its user: to read, to print, and to write to a file."""

import dataclasses
import os
from typing import Any

from sat_tf.planning.diagram import write_diagram
from sat_tf.planning.plan_page import write_page
from sat_tf.planning.plan_table import layers, plan_text, reasons, summary, verdict
from sat_tf.planning.planned_model import LayerPlan, PlannedModel, shape_text
from sat_tf.presentation.notebook import Displayed
from sat_tf.presentation.tables import Cell, Marked, RowTable, Table


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Displayed, PlannedModel, RowTable):
    """The plan of a model; see `PlannedModel` for its attributes."""

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows as plain values, all with the same keys; None where something is unknown."""
        return [_plain(row) for row in self.rows]

    def _columns(self) -> tuple[str, ...]:
        return COLUMNS

    def table(self, width: int | None = None) -> str:
        """The plan as text for the terminal.

        Args:
            width: columns of the terminal; by default as wide as needed.
        """
        return plan_text(self, width)

    def __str__(self) -> str:
        return self.table()

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
        write_page(self, path)

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
