"""The plan of a quantization, layer by layer: to read, to print, and to write to a file."""

import collections
import dataclasses
import enum
import operator
from collections.abc import Iterable
from typing import Any

from sat_tf.exact.targets.operator_constraints import TARGETS, CpuFallback, Target
from sat_tf.messages import did_you_mean, first_ones
from sat_tf.messages.tables import Cell, Column, Marked, RowTable, Table
from sat_tf.qat.policy import BitPolicy


class Fate(enum.Enum):
    """How a layer is treated when its model is quantized."""

    INPUT = "input"
    QUANTIZED = "quantized"
    ABSORBED = "absorbed"
    OBSERVED = "observed"
    MOVES = "moves codes"
    FLOAT = "left float"
    PROBLEM = "problem"
    INSERTED = "inserted"


class Export(enum.Enum):
    """How a layer gets into the TFLite file."""

    INTEGER = "integer"
    FLOAT = "float operators"
    CONVERTER = "float, by TensorFlow's converter"
    NOTHING = "no operator"
    REFUSED = "not at all"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightPlan:
    """How the kernel of a linear layer, or a table, is quantized."""

    bits: int | None  # Bits of its codes; None if it is clamped but not rounded.
    grid: str  # Name of the grid.
    range: str  # "layer" or "channel": which of them has a maximum of its own.
    rescale: str | None  # Name of SAT's rescaling, or None.
    rescale_reason: str  # Why it has one or none.
    bits_reason: str = ""  # The origin of its number of bits.
    start: str = ""  # How its latent weights start, and why.
    quantizer: str = ""  # Its description, if it is not the default one.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationPlan:
    """The quantizer of a tensor."""

    bits: int  # Bits of its codes.
    signed: bool  # Whether it has codes for negative values.
    clipping_level: float | None = None  # The initial level; None without one, as for an image.
    gradient: str | None = None  # The level's gradient, a row of `gradients.CLIPPING_GRADIENTS`.
    # It has the bits of streams: layers other than linear ones read it, no rectifier made it, or it
    # is a sum, mean or concatenation that can be negative.
    stream: bool = False
    quantizer: str = ""  # Its description, if it is not the default one.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """One layer of the float model, or an inserted quantizer."""

    name: str  # The layer's name, as the user knows it.
    kind: str  # Its class.
    short_kind: str = ""  # The name of its class in narrow tables.
    detail: str = ""  # Its size, such as that of its kernel or window, and its strides.
    # Names of the layers whose outputs it reads, inserted quantizers included.
    reads: tuple[str, ...]
    shape: tuple[int | None, ...]  # Its output's shape without the batch; None if a size is open.
    fate: Fate  # How it is treated.
    reason: str = ""  # Why it is not quantized, if it is not.
    weights: WeightPlan | None = None  # The plan of its kernel or table, if that is quantized.
    activation: ActivationPlan | None = None  # The quantizer of its output, if it has one.
    activation_reason: str = ""  # Why its output has this one or none.
    observed: bool = False  # Its output is not quantized, but its range is watched for the export.
    absorbed_by: str = ""  # The reader that has the quantizer instead.
    export: Export = Export.UNKNOWN  # How it gets into the file.
    # The layers into whose operators it is fused, if it has none of its own.
    fused_into: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()  # Its operators in the file.
    export_reason: str = ""  # Why it is not in the file as integers.
    # Bits of the codes that a linear layer reads; None if they are float.
    reading_bits: int | None = None
    reading_reason: str = ""  # Why these are not its activation bits.
    parameters: int = 0  # How many values its weights have.
    multiply_adds: int | None = 0  # Multiply-adds of one image; None if they are unknown.
    bit_operations: int | None = 0  # These times the bits of both factors, 32 for float ones.
    bytes: int | None = None  # Its bytes in the TFLite file, estimated; None without a file.
    float_bytes: int = 0  # Its bytes in a float TFLite file of the model, estimated.
    problems: tuple[str, ...] = ()  # Why it cannot be quantized as asked, with the fix.
    inserted: bool = False  # It is not a layer of the model.
    readers: tuple[str, ...] = ()  # The readers of an inserted quantizer.


_COLUMNS = (
    *("row", "name", "kind", "detail", "reads", "shape", "fate", "reason", "weight_bits"),
    *("weight_grid", "weight_range", "rescale", "rescale_reason", "latent_start", "reading_bits"),
    *("reading_reason", "activation_bits", "activation_signed", "stream", "clipping_level"),
    *("clipping_gradient", "activation_reason", "absorbed_by", "export", "fused_into"),
    *("operators", "export_reason", "parameters", "multiply_adds", "bit_operations", "bytes"),
    *("float_bytes", "problems"),
)
# Columns with a field of the quantizer of a layer's weights or output.
_OF_QUANTIZERS = {
    "weight_bits": ("weights", "bits"),
    "weight_grid": ("weights", "grid"),
    "weight_range": ("weights", "range"),
    "rescale_reason": ("weights", "rescale_reason"),
    "latent_start": ("weights", "start"),
    "activation_bits": ("activation", "bits"),
    "activation_signed": ("activation", "signed"),
    "stream": ("activation", "stream"),
    "clipping_level": ("activation", "clipping_level"),
    "clipping_gradient": ("activation", "gradient"),
}


def _plain(row: LayerPlan, column: str) -> Any:
    """Returns the value of a column; None where a layer has no such quantizer."""
    if column in _OF_QUANTIZERS:
        plan, field = _OF_QUANTIZERS[column]
        return getattr(getattr(row, plan), field, None)
    if column == "row":
        return "inserted" if row.inserted else "layer"
    if column == "shape":
        return "x".join("?" if size is None else str(size) for size in row.shape)
    if column == "rescale":
        return row.weights and (row.weights.rescale or "none")
    value = getattr(row, column)
    if isinstance(value, tuple):
        return ("; " if column == "problems" else ", ").join(value)
    return value.value if isinstance(value, enum.Enum) else value


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Plan(RowTable):
    """How a model will be quantized and exported: its layers, and their sums."""

    COLUMNS = _COLUMNS
    _width = 160
    _page = "planning/plan_page.html"

    model: str  # Its name.
    policy: BitPolicy  # The policy that it is quantized by.
    # The layers of the model in graph order, each once, and after each the quantizers that are
    # inserted after it.
    rows: tuple[LayerPlan, ...]
    # Why `quantize_model` refuses the model, with the fix, if it does. Rows are then planned as if
    # the layers that have problems were left float.
    problems: tuple[str, ...] = ()
    export_problems: tuple[str, ...] = ()  # The same for `export_tflite`.
    notes: tuple[str, ...] = ()  # The warnings of the export.
    # The values that each input of the model is fed, and those that the file takes for it.
    inputs: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()  # The inputs that stay as they are, without codes.
    # The operators of the file that the NPU it is for leaves to the CPU, or that TFLite Micro
    # refuses.
    cpu_fallback: tuple[CpuFallback, ...] = ()
    # How many operators the file has; None where it is for LiteRT, which computes all, or unknown.
    file_operators: int | None = None

    def __getitem__(self, name: str) -> LayerPlan:
        for row in self.rows:
            if row.name == name:
                return row
        hint = did_you_mean(name, [row.name for row in self.rows])
        raise KeyError(f"{name!r} is not a layer of the plan. {hint}")

    @property
    def layers(self) -> tuple[LayerPlan, ...]:
        """The layers of the model."""
        return tuple(row for row in self.rows if not row.inserted)

    @property
    def insertions(self) -> tuple[LayerPlan, ...]:
        """The inserted quantizers."""
        return tuple(row for row in self.rows if row.inserted)

    @property
    def float_layers(self) -> tuple[str, ...]:
        """The layers that TensorFlow's converter has to write."""
        return tuple(row.name for row in self.rows if row.export is Export.CONVERTER)

    @property
    def target(self) -> Target:
        """The processor that the file is for."""
        return TARGETS[self.policy.processor.name]

    @property
    def parameters(self) -> int:
        """Numbers in the weights of the float model."""
        return sum(row.parameters for row in self.rows)

    @property
    def multiply_adds(self) -> int | None:
        """Multiply-adds of one image; None where those of some layer are unknown."""
        return _total(row.multiply_adds for row in self.rows)

    @property
    def bit_operations(self) -> int | None:
        """Bit operations of one image; None where those of some layer are unknown."""
        return _total(row.bit_operations for row in self.rows)

    @property
    def float_bit_operations(self) -> int | None:
        """The bit operations of the float model for one image; None where some are unknown."""
        total = self.multiply_adds
        return None if total is None else 32 * 32 * total

    @property
    def bytes(self) -> int | None:
        """The estimated size of the TFLite file; None without a file."""
        return _total(row.bytes for row in self.rows)

    @property
    def float_bytes(self) -> int:
        """The estimated size of a float TFLite file of the model."""
        return sum(row.float_bytes for row in self.rows)

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows as plain values, all with the same keys; None where something is unknown."""
        return [{name: _plain(row, name) for name in _COLUMNS} for row in self.rows]

    def _headline(self) -> Marked:
        if self.problems:
            number = len(self.problems)
            return Marked(f"{self.model} cannot be quantized as asked; problems: {number}", "bad")
        if self.export_problems:
            words = f"can be quantized, but not exported; problems: {len(self.export_problems)}"
            return Marked(f"{self.model} {words}", "bad")
        suffix = f"; layers left float: {len(self.float_layers)}" if self.float_layers else ""
        return Marked(f"{self.model} can be quantized and exported{suffix}", "good")

    def _tables(self) -> dict[str, Table[Any]]:
        layers = Table(
            columns=[*_WORDS, *_NUMBERS],
            rows=self.rows,
            kind=lambda row: _STYLES.get(row.fate, ""),
            totals=["in all", *[""] * (len(_WORDS) - 1), *(field.cell(self) for field in _NUMBERS)],
        )
        return {"Quantization plan": layers}

    def _notes(self) -> list[Cell]:
        notes: list[Cell] = [
            *(Marked(problem, "bad") for problem in (*self.problems, *self.export_problems)),
            *_summary(self),
            *_reasons(self),
            *(f"note: {note}" for note in self.notes),
        ]
        if self.problems:
            notes.append(
                "The rows above are with unsupported='float' (--unsupported=float), which leaves "
                "such layers float, and without such overrides."
            )
        if self.file_operators is not None:
            # The statements say how much runs on an NPU, or what a CPU refuses, and why.
            notes += self.target.statements(self.cpu_fallback, self.file_operators)
        return notes


def _total(numbers: Iterable[int | None]) -> int | None:
    counts = list(numbers)
    return None if None in counts else sum(number or 0 for number in counts)


# -- on a terminal --------------------------------------------------------------------------------

_WIDE = 120
_NONE = "-"
_MOST_NAMED = 3
_STYLES = {Fate.PROBLEM: "bad", Fate.FLOAT: "watch", Fate.INSERTED: "soft"}


def _number_text(value: int | None) -> str:
    """A number with commas, or "unknown"."""
    return "unknown" if value is None else f"{value:,}" if value else _NONE


# The numbers of a layer, and of a whole plan. Those of width 0 are in the CSV alone.
_NUMBERS: tuple[Column[Any], ...] = tuple(
    Column(title, operator.attrgetter(field), _number_text, number=True, least_width=width)
    for title, field, width in (
        ("parameters", "parameters", _WIDE),
        ("multiply-adds", "multiply_adds", _WIDE),
        ("BOPs", "bit_operations", 0),
        ("bytes", "bytes", 0),
    )
)


def _summary(plan: Plan) -> list[str]:
    """The sums, in words."""
    quantized = sum(row.weights is not None for row in plan.layers)
    lines = [
        f"{len(plan.layers)} layers, {quantized} with quantized weights, "
        f"{sum(row.fate is Fate.FLOAT for row in plan.layers)} left float; quantizers inserted: "
        f"{len(plan.insertions)}; {plan.parameters:,} parameters",
        *plan.inputs,
    ]
    products, bops, whole = plan.multiply_adds, plan.bit_operations, plan.float_bit_operations
    if products is not None and bops is not None and whole is not None:
        share = f", {bops / whole:.4f} of float32" if whole else ""
        line = f"{products:,} multiply-adds an image, {bops:,} bit operations (BOPs){share}"
    else:
        unknown = [row.name for row in plan.rows if row.multiply_adds is None]
        line = f"multiply-adds: unknown for {first_ones(unknown)}; give image_size where it is open"
    size = "unknown" if plan.bytes is None else f"about {plan.bytes:,} bytes"
    file = f"TFLite file: {size}; a float one: about {plan.float_bytes:,} bytes"
    return [*lines, line, file]


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
    if not row.operators:
        return _NONE
    counts = collections.Counter(row.operators)
    names = (f"{count} {name}" if count > 1 else name for name, count in counts.items())
    return ("float: " if row.export is Export.FLOAT else "") + ", ".join(names)


_WORDS: tuple[Column[LayerPlan], ...] = (
    Column("layer", lambda row: row.name),
    Column("kind", _kind),
    Column("weights", _weights),
    Column("output", _output),
    Column("in the file", _file),
)


def _reasons(plan: Plan) -> list[str]:
    """The reasons for the plans of layers, layers with the same reason together."""
    layers_of: dict[str, list[str]] = {}
    for row in plan.layers:
        reasons = []
        if (weights := row.weights) is not None:
            rescale = f"{weights.rescale} rescale" if weights.rescale else "no rescale"
            by = f"weights by {weights.quantizer}" if weights.quantizer else ""
            reasons.append(by or f"{rescale}: {weights.rescale_reason}")
            if weights.bits_reason:
                reasons.append(f"{weights.bits} bits: {weights.bits_reason}")
            reasons.append(f"start: {weights.start}")
        if row.activation is not None and row.activation.quantizer:
            reasons.append(f"output by {row.activation.quantizer}")
        if row.reading_reason:
            reasons.append(f"reads {row.reading_bits} bits: {row.reading_reason}")
        if row.observed:
            reasons.append(f"observed: {row.activation_reason}")
        if row.fate is Fate.FLOAT:
            reasons.append(f"float: {row.reason}")
        for reason in reasons:
            layers_of.setdefault(reason, []).append(row.name)
    return [f"{reason} ({first_ones(names, _MOST_NAMED)})" for reason, names in layers_of.items()]
