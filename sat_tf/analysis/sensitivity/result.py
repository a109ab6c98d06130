"""A sensitivity analysis for its user: to read, to print, and to write to a file."""

import dataclasses
import io
import os
from collections.abc import Iterator
from typing import Any

import rich.console

from sat_tf.analysis.sensitivity.damage import METRICS
from sat_tf.analysis.sensitivity.measured_model import LayerSensitivity, MeasuredModel
from sat_tf.analysis.sensitivity.picture import write_picture
from sat_tf.analysis.sensitivity.table import print_sensitivity
from sat_tf.presentation.tables import RowTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sensitivity(MeasuredModel, RowTable):
    """What a model loses when each of its layers is quantized alone, and when all are.

    See `MeasuredModel` for its attributes.
    """

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer, all with the same keys, in graph order."""
        return [_row(layer) for layer in self.layers]

    def _columns(self) -> tuple[str, ...]:
        return COLUMNS

    def table(self, *, width: int | None = None) -> str:
        """The layers as text for the terminal, the one that loses most first.

        Args:
            width: columns of the terminal; by default as wide as needed.
        """
        text = io.StringIO()
        print_sensitivity(self, rich.console.Console(file=text, width=width or 120))
        return text.getvalue()

    def write_picture(self, path: str | os.PathLike[str]) -> None:
        """Draws what each layer loses; the file appears whole, or not at all.

        Args:
            path: ends in .png or .svg.

        Raises:
            ValueError: the path cannot be written, or has another suffix.
        """
        write_picture(self, path)


_PARTS = {"": "damage", "weights_": "weights", "activations_": "activations", "stream_": "stream"}


def _columns() -> Iterator[str]:
    for field in dataclasses.fields(LayerSensitivity):
        if field.name not in _PARTS.values() and not field.name.endswith("_errors"):
            yield field.name
    for prefix in _PARTS:
        yield from (f"{prefix}{metric.field}" for metric in METRICS.values())


COLUMNS = tuple(_columns())


def _row(layer: LayerSensitivity) -> dict[str, Any]:
    row = {name: getattr(layer, name) for name in COLUMNS if hasattr(layer, name)}
    for prefix, part in _PARTS.items():
        damage = getattr(layer, part)
        for metric in METRICS.values():
            row[f"{prefix}{metric.field}"] = damage and getattr(damage, metric.field)
    return row
