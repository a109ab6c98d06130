"""A plan as text on the screen."""

import collections
import operator
from collections.abc import Iterable
from typing import Any

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.text import Text

from sat_tf.messages import first_ones, say
from sat_tf.planning.planned_model import Export, Fate, LayerPlan, PlannedModel
from sat_tf.presentation.tables import Cell, Column, Marked, Table, marked_text

_WIDE = 120
_NONE = "-"
_MOST_NAMED = 3
_KINDS = {Fate.PROBLEM: "bad", Fate.FLOAT: "watch", Fate.INSERTED: "soft"}


def number_text(value: int | None) -> str:
    """A number with commas, or "unknown"."""
    return "unknown" if value is None else f"{value:,}" if value else _NONE


# A layer and a whole plan have the same numbers.
NUMBERS: tuple[Column[Any], ...] = tuple(
    Column(title, operator.attrgetter(field), number_text, number=True, wrap="never")
    for title, field in (
        ("parameters", "parameters"),
        ("multiply-adds", "multiply_adds"),
        ("BOPs", "bit_operations"),
        ("bytes", "bytes"),
    )
)


def print_plan(plan: PlannedModel, console: Console) -> None:
    """Prints the layers, the sums, and the problems."""
    console.print(_table(plan, wide=console.width >= _WIDE))
    console.print(Text.assemble(f"{plan.model}: ", marked_text(verdict(plan))), soft_wrap=True)
    for line in summary(plan):
        say(console, line)
    if plan.problems:
        console.print(Text("cannot be quantized as asked:", style="red"))
        _print_lines(console, plan.problems)
        console.print(
            "The rows above are without them: such layers left float, such overrides left out."
        )
    if plan.export_problems:
        console.print(Text("cannot be exported:", style="red"))
        _print_lines(console, plan.export_problems)
    for line in reasons(plan):
        say(console, line)
    for note in plan.notes:
        say(console, f"note: {note}")


def verdict(plan: PlannedModel) -> Marked:
    """Whether the model can be quantized and exported, in a few words."""
    return Marked(_verdict(plan), "bad" if plan.problems or plan.export_problems else "good")


def _verdict(plan: PlannedModel) -> str:
    if plan.problems:
        return f"cannot be quantized as asked: {_count(len(plan.problems), 'problem')}"
    if plan.export_problems:
        count = _count(len(plan.export_problems), "problem")
        return f"can be quantized, but not exported: {count}"
    left_float = plan.float_layers
    if left_float:
        return f"can be quantized and exported, with {_count(len(left_float), 'layer')} left float"
    return "can be quantized and exported"


def summary(plan: PlannedModel) -> list[str]:
    """The sums, in words."""
    quantized = sum(row.weights is not None for row in plan.layers)
    lines = [
        f"{_count(len(plan.layers), 'layer')}, {quantized} with quantized weights, "
        f"{_count(len(plan.insertions), 'inserted quantizer')}, "
        f"{sum(row.fate is Fate.FLOAT for row in plan.layers)} left float; "
        f"{plan.parameters:,} parameters",
        *plan.inputs,
    ]
    lines.append(_operations(plan))
    if plan.bytes is None:
        lines.append(f"TFLite file: unknown; float: about {plan.float_bytes:,} bytes")
    else:
        share = plan.bytes / plan.float_bytes
        lines.append(
            f"TFLite file: about {plan.bytes:,} bytes, {share:.2f} of a float one "
            f"({plan.float_bytes:,})"
        )
    return lines


def _operations(plan: PlannedModel) -> str:
    products, bops, whole = plan.multiply_adds, plan.bit_operations, plan.float_bit_operations
    if products is None or bops is None or whole is None:
        known = sum(row.multiply_adds or 0 for row in plan.rows)
        if any(None in row.shape for row in plan.rows):
            return "multiply-adds: unknown, because image sizes are open; give image_size"
        return f"multiply-adds: at least {known:,}; unknown for {', '.join(plan.unknown)}"
    share = f", {bops / whole:.4f} of float32" if whole else ""
    return f"{products:,} multiply-adds an image, {bops:,} bit operations (BOPs){share}"


def _table(plan: PlannedModel, *, wide: bool) -> rich.table.Table:
    title = f"{plan.model}: quantization plan"
    return layers(plan, wide=wide).to_rich(title=title, title_justify="left", box=SIMPLE_HEAD)


def layers(plan: PlannedModel, *, wide: bool = True) -> Table[LayerPlan]:
    """The layers, and the sums below them."""
    numbers = NUMBERS if wide else NUMBERS[2:]
    return Table(
        columns=[*_WORDS, *numbers],
        rows=plan.rows,
        kind=lambda row: _KINDS.get(row.fate, ""),
        totals=["in all", *[""] * (len(_WORDS) - 1), *totals(plan, numbers)],
    )


def totals(plan: PlannedModel, numbers: Iterable[Column[Any]]) -> list[Cell]:
    """The last row of a table of layers: the plan's sums under the same names."""
    return [number.cell(plan) for number in numbers]


def _kind(row: LayerPlan) -> str:
    return "quantizer" if row.inserted else f"{row.short_kind or row.kind} {row.detail}".strip()


def _weights(row: LayerPlan) -> str:
    """How the weights are quantized, abbreviated."""
    weights = row.weights
    if weights is None:
        return "float" if row.multiply_adds or row.multiply_adds is None else _NONE
    words = ["clamped" if weights.bits is None else f"{weights.bits} {weights.grid}"]
    words += ["a channel"] if weights.range == "channel" else []
    words += ["rescaled"] if weights.rescale else []
    return " ".join(words)


def _output(row: LayerPlan) -> str:
    """The quantizer of the output, abbreviated."""
    activation = row.activation
    if activation is not None:
        level = activation.clipping_level
        start = "" if level is None else f" from {level:g}"
        stream = " stream" if activation.stream else ""
        return f"{'s' if activation.signed else 'u'}{activation.bits}{stream}{start}"
    if row.fate is Fate.PROBLEM:
        return "problem"
    if row.absorbed_by:
        return _NONE if row.fused_into else f"absorbed by {row.absorbed_by}"
    if row.fate in (Fate.MOVES, Fate.INPUT):
        return "passed on" if row.fate is Fate.MOVES else "as fed"
    return "observed" if row.observed else "float"


def _file(row: LayerPlan) -> str:
    """How the layer gets into the file, abbreviated."""
    if row.export in (Export.REFUSED, Export.UNKNOWN):
        return row.export.value
    if row.fused_into:
        return f"in {', '.join(row.fused_into)}"
    is_float = "float: " if row.export is Export.FLOAT else ""
    return is_float + operators_text(row) if row.operators else _NONE


def operators_text(row: LayerPlan) -> str:
    """The operators of a layer in the file, those of one kind counted."""
    counts = collections.Counter(row.operators)
    return ", ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())


_WORDS: tuple[Column[LayerPlan], ...] = (
    Column("layer", lambda row: row.name, wrap="fold"),
    Column("kind", _kind, wrap="fold"),
    Column("weights", _weights, wrap="fold"),
    Column("output", _output, wrap="fold"),
    Column("in the file", _file, wrap="fold"),
)


def reasons(plan: PlannedModel) -> list[str]:
    """Why layers are planned as they are, layers with the same reason together."""
    found: dict[str, list[str]] = {}
    for row in plan.layers:
        weights = row.weights
        if weights is not None:
            kind = f"{weights.rescale} rescale" if weights.rescale else "no rescale"
            method = f"{kind}: {weights.rescale_reason}"
            if weights.quantizer:
                method = f"weights by {weights.quantizer}"
            found.setdefault(method, []).append(row.name)
            if weights.bits_reason:
                found.setdefault(f"{weights.bits} bits: {weights.bits_reason}", []).append(row.name)
            found.setdefault(f"start: {weights.start}", []).append(row.name)
        if row.activation is not None and row.activation.quantizer:
            found.setdefault(f"output by {row.activation.quantizer}", []).append(row.name)
        if row.reading_reason:
            reads = f"reads {row.reading_bits} bits: {row.reading_reason}"
            found.setdefault(reads, []).append(row.name)
        if row.observed:
            found.setdefault(f"observed: {row.activation_reason}", []).append(row.name)
        if row.fate is Fate.FLOAT:
            found.setdefault(f"float: {row.reason}", []).append(row.name)
    return [f"{reason} ({first_ones(names, _MOST_NAMED)})" for reason, names in found.items()]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        say(console, f"  {line}")
