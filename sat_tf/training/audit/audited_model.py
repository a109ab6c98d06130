"""An audit: which rules a measured model breaks; its tables, its rows, and its page."""

import dataclasses
import enum
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from sat_tf.files import write_text
from sat_tf.messages import first_ones, say
from sat_tf.presentation.charts import DotChart, Dots
from sat_tf.presentation.tables import (
    Column,
    Marked,
    RowTable,
    Table,
    digits,
    marked_text,
    percent,
    render,
)


class Verdict(enum.Enum):
    """How well a layer or a model keeps the rules."""

    OK = "ok"
    WATCH = "watch"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A rule that a layer breaks."""

    rule: str  # Its name: a key of `RULES`.
    verdict: Verdict  # WATCH or BROKEN.
    reason: str  # What was measured, and what the rule requires.
    remedy: str  # What to do.


RULES = {
    "rule I": "The classifier's weights are small enough that the softmax does not saturate.",
    "rule II": "Gradients keep their size from layer to layer.",
    "gradient": "Gradients reach every layer.",
    "weight codes": "The weights use the codes that their bits pay for.",
    "activation codes": "The activations use the codes that their bits pay for.",
    "clipping": "The clipping level cuts off only the tail.",
    "numbers": "All weights are finite.",
}


@dataclasses.dataclass(frozen=True)
class Limit:
    """A threshold, and where it comes from."""

    value: float
    reason: str


KAPPA_0_WANTED = Limit(
    0.1, "Rule I of the paper: empirically, a ratio of less than 0.1 is adequate."
)
KAPPA_0_SATURATING = Limit(
    1.0,
    "At 1 logits of normalized features have a deviation of 1, where the softmax starts to "
    "saturate; the paper's clamped models, which train badly, lie from 0.5 to 2.",
)
NEURONS_TIMES_VARIANCE = Limit(
    10.0,
    "Rule II requires a weight variance of the order of 1/n or 1/n̂ if no normalization is right "
    "behind; 10 is one order of magnitude. The usual initializations give 0.3 to 2.",
)
KAPPA_WATCHED = Limit(
    10.0,
    "The law's constants are of order 1 (the paper; 0.2 to 3 in the ResNet-18 and MobileNet-V2 "
    "of this package at the start); 10 is one order of magnitude.",
)
KAPPA_BROKEN = Limit(
    1000.0,
    "Gradients thirty times too large or too small from one layer to the next: three orders in "
    "their variance.",
)
FEW_BITS = Limit(4, "From 5 bits on, layers are too small and tails too long to use every code.")
CODES_USED = Limit(0.5, "With half of the codes or fewer in use, one bit less would do.")
CLIPPED = Limit(
    0.25,
    "The paper's clipping levels settle where a few percent are clipped; with a quarter at the top "
    "code, most of the information is lost.",
)
FEW_IMAGES = Limit(
    8, "The gradient variance on one or a few images predicts little about the next batch."
)

LIMITS = {
    "kappa_0 wanted below": KAPPA_0_WANTED,
    "kappa_0 saturating from": KAPPA_0_SATURATING,
    "n VAR or n̂ VAR within a factor of": NEURONS_TIMES_VARIANCE,
    "kappa_1, kappa_2 watched beyond a factor of": KAPPA_WATCHED,
    "kappa_1, kappa_2 broken beyond a factor of": KAPPA_BROKEN,
    "codes are judged up to bits": FEW_BITS,
    "share of codes used above": CODES_USED,
    "share clipped below": CLIPPED,
    "images wanted at least": FEW_IMAGES,
}


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict that follows from findings."""
    verdicts = {finding.verdict for finding in findings}
    return next((v for v in (Verdict.BROKEN, Verdict.WATCH) if v in verdicts), Verdict.OK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerAudit:
    """One linear layer with its kernel; what it does not have, or was not measured, is None.

    Variances are centred, over the whole kernel.
    """

    name: str  # Of the user's layer, with the path of models that it is nested in.
    kind: str  # Class of the layer.
    fan_in: int  # N, inputs of one output, the kernel's area included.
    fan_out: int  # N̂, outputs of one input, the kernel's area included.
    normalization: str | None = None  # Class of the normalization right behind it.
    reads_image: bool = False  # No linear layer comes before it.
    is_classifier: bool = False  # Its output is the model's.
    weights: int  # How many there are.
    weight_bits: int | None = None  # Of the codes.
    rescale: str | None = None  # Name of SAT's rescaling.
    latent_variance: float | None = None  # VAR[W], of the variable that the optimizer updates.
    clamped_variance: float | None = None  # VAR[Ŵ].
    quantized_variance: float | None = None  # VAR[Q].
    effective_variance: float | None = None  # VAR[Ξ].
    weight_codes: int | None = None  # How many codes the grid has.
    weight_codes_used: int | None = None  # How many of them occur.
    pooled_area: int | None = None  # K²_pool right before the classifier.
    kappa_0: float | None = None  # Of the classifier; wanted below 0.1.
    gradient_variance: float | None = None  # VAR[∂L/∂Ξ].
    following: tuple[str, ...] = ()  # Names of the layers that follow, nearest along the graph.
    # Constant of the gradient-flowing law with normalization behind; wanted near 1.
    kappa_1: float | None = None
    kappa_2: float | None = None  # The same without.
    unknown: str = ""  # Why there are no constants, if so.
    findings: tuple[Finding, ...] = ()  # The rules it breaks.

    @property
    def kappa(self) -> float | None:
        """The constant that applies here: κ₁ with normalization, otherwise κ₂."""
        return self.kappa_2 if self.normalization is None else self.kappa_1

    @property
    def can_be_rescaled(self) -> bool:
        """Whether its weights are clamped, and not rescaled."""
        return self.clamped_variance is not None and self.rescale in (None, "none")

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return worst(self.findings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationAudit:
    """One tensor with a clipping level; what was not measured is None."""

    name: str  # Of the layer that makes it, or of an inserted quantizer.
    bits: int  # Of its codes.
    clipping_level: float  # Of a tensor that can be negative, on both sides.
    ceiling: float | None = None  # Of the rectifier that the quantizer replaces.
    # Share of its values at or beyond the clipping level, in inference.
    clipped: float | None = None
    codes: int | None = None  # How many codes its grid has.
    codes_used: int | None = None  # How many of them occur.
    # Derivative of the loss with respect to the clipping level.
    level_gradient: float | None = None
    findings: tuple[Finding, ...] = ()  # The rules it breaks.

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return worst(self.findings)


def judge_layer(layer: LayerAudit, *, measured: bool) -> tuple[Finding, ...]:
    """The rules that a linear layer breaks."""
    if layer.effective_variance is not None and not math.isfinite(layer.effective_variance):
        reason = "it has weights that are NaN or infinite"
        remedy = "load the weights again, or train again with a lower learning rate"
        return (Finding("numbers", Verdict.BROKEN, reason, remedy),)
    return (
        *_rule_1(layer),
        *_weights_of_rule_2(layer),
        *(_gradient(layer) if measured else ()),
        *_weight_codes(layer),
    )


def _rule_1(layer: LayerAudit) -> Iterator[Finding]:
    kappa = layer.kappa_0
    if kappa is None or kappa < KAPPA_0_WANTED.value:
        return
    saturates = kappa >= KAPPA_0_SATURATING.value
    remedy = "start it with smaller weights: variance 1/n̂ or less"
    if layer.can_be_rescaled:
        remedy = 'rescale it: BitPolicy(rescale="constant")'
    elif layer.pooled_area == 1:
        remedy = "average-pool the features right before it, or start it with smaller weights"
    yield Finding(
        "rule I",
        Verdict.BROKEN if saturates else Verdict.WATCH,
        f"kappa_0 = {kappa:.3g}{', saturating' if saturates else ''}; wanted below "
        f"{KAPPA_0_WANTED.value:g}",
        remedy,
    )


def _weights_of_rule_2(layer: LayerAudit) -> Iterator[Finding]:
    variance = layer.effective_variance
    # The classifier is under rule I; a layer that is normalized behind may have any variance.
    if variance is None or layer.normalization is not None or layer.is_classifier:
        return
    products = sorted((layer.fan_in * variance, layer.fan_out * variance))
    limit = NEURONS_TIMES_VARIANCE.value
    if products[0] <= limit and products[1] >= 1 / limit:
        return
    size = "large" if products[0] > limit else "small"
    yield Finding(
        "rule II",
        Verdict.BROKEN,
        f"no normalization is right behind it, and its weights are too {size}: n VAR = "
        f"{layer.fan_in * variance:.3g}, n̂ VAR = {layer.fan_out * variance:.3g}; wanted one of "
        "them near 1",
        _rescaled_or_normalized(layer),
    )


def _rescaled_or_normalized(layer: LayerAudit) -> str:
    if layer.can_be_rescaled:
        return 'rescale it: BitPolicy(rescale="constant"); or put BatchNormalization behind it'
    return "put BatchNormalization right behind it, or start it with weights of variance 1/n"


def _gradient(layer: LayerAudit) -> Iterator[Finding]:
    if layer.gradient_variance is None or layer.gradient_variance == 0.0:
        yield Finding(
            "gradient",
            Verdict.BROKEN,
            "no gradient reaches it" if layer.gradient_variance is None else "its gradient is zero",
            "check what is behind it: weights or activations that are all zero, or clipped",
        )
        return
    kappa = layer.kappa
    # Images in [0, 255] do not meet the law's assumptions; the paper leaves this layer out too.
    if kappa is None or layer.reads_image:
        return
    watched, broken = KAPPA_WATCHED.value, KAPPA_BROKEN.value
    if 1.0 / watched <= kappa <= watched:
        return
    form, behind, remedy = "kappa_2", "no normalization", _rescaled_or_normalized(layer)
    if layer.normalization is not None:
        form, behind, remedy = (
            "kappa_1",
            layer.normalization,
            "check the layers between: pools of a map as small as the kernel, dead or saturated "
            "activations, and factors that bypass normalization",
        )
    yield Finding(
        "rule II",
        Verdict.WATCH if 1.0 / broken <= kappa <= broken else Verdict.BROKEN,
        f"{form} = {kappa:.3g} between it and {' and '.join(layer.following)} ({behind} behind "
        "it); wanted near 1",
        remedy,
    )


def _weight_codes(layer: LayerAudit) -> Iterator[Finding]:
    if layer.weight_codes is None:
        return
    usable = min(layer.weight_codes, layer.weights)
    if _are_few(layer.weight_codes_used, usable, layer.weight_bits):
        yield Finding(
            "weight codes",
            Verdict.BROKEN,
            f"{layer.weight_codes_used} of {layer.weight_codes} codes occur",
            'more weight bits, or a range for each channel: BitPolicy(weight_range="channel")',
        )


def _are_few(used: int | None, usable: int | None, bits: int | None) -> bool:
    """Whether fewer bits would hold the codes that occur."""
    if used is None or usable is None or bits is None:
        return False
    return bits <= FEW_BITS.value and usable > 2 and used <= CODES_USED.value * usable


def judge_activation(activation: ActivationAudit) -> Iterator[Finding]:
    """The rules that a quantized tensor breaks."""
    clipped, ceiling = activation.clipped, activation.ceiling
    # A rectifier's ceiling also clips the float model, and no level starts above it.
    at_ceiling = ceiling is not None and activation.clipping_level >= ceiling
    if clipped is not None and clipped >= CLIPPED.value and not at_ceiling:
        yield Finding(
            "clipping",
            Verdict.BROKEN,
            f"{100 * clipped:.0f} % of the values are at or beyond the clipping level "
            f"{activation.clipping_level:.3g}; wanted less than {100 * CLIPPED.value:.0f} %",
            "start with a higher clipping level: sat_tf.calibrate, or initial_clipping_level",
        )
    if _are_few(activation.codes_used, activation.codes, activation.bits):
        yield Finding(
            "activation codes",
            Verdict.BROKEN,
            f"{activation.codes_used} of {activation.codes} codes occur below the clipping level "
            f"{activation.clipping_level:.3g}",
            "start with a lower clipping level: sat_tf.calibrate, or initial_clipping_level; or "
            "more activation bits",
        )


_MARKS = {Verdict.OK: "good", Verdict.WATCH: "watch", Verdict.BROKEN: "bad"}
_NONE = "-"
_MOST_NAMED = 3

# Three digits, or a dash if there is no value.
_number = digits(".3g", missing=_NONE)

_FIELDS = (*dataclasses.fields(LayerAudit), *dataclasses.fields(ActivationAudit))
COLUMNS = (
    *("row", "verdict"),
    *dict.fromkeys(field.name for field in _FIELDS if field.name != "findings"),
    *("rules", "reasons", "remedies"),
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Audit(RowTable):
    """A model measured by the rules of efficient training."""

    COLUMNS = COLUMNS
    _width = 160

    model: str  # Its name.
    layers: tuple[LayerAudit, ...]  # The linear layers, in graph order.
    # The tensors with clipping levels, in graph order.
    activations: tuple[ActivationAudit, ...] = ()
    kappa_0: float | None = None  # Of the classifier, if there is one.
    # How many images gradients and activations were measured on; 0 without any.
    num_images: int = 0
    loss: float | None = None  # Cross entropy of these images, in nats.
    # Variance of the logits over classes, its mean over the images.
    logit_variance: float | None = None
    notes: tuple[str, ...] = ()  # What could not be measured, and why.

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return worst(finding for _, finding in self.findings())

    def findings(self) -> Iterator[tuple[str, Finding]]:
        """The broken rules, each with the name of the layer."""
        for audited in self._audited():
            for finding in audited.findings:
                yield audited.name, finding

    def _audited(self) -> list[LayerAudit | ActivationAudit]:
        return [*self.layers, *self.activations]

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each linear layer and each activation, all with the same keys."""
        rows = []
        for audited in self._audited():
            row = {name: getattr(audited, name, None) for name in COLUMNS}
            row |= {
                "row": "activation",
                "verdict": audited.verdict.value,
                "rules": "; ".join(finding.rule for finding in audited.findings),
                "reasons": "; ".join(finding.reason for finding in audited.findings),
                "remedies": "; ".join(finding.remedy for finding in audited.findings),
            }
            if isinstance(audited, LayerAudit):
                row |= {"row": "layer", "following": " ".join(audited.following)}
            rows.append(row)
        return rows

    def print_to(self, console: Console) -> None:
        """Prints the verdict, the layers and their findings."""
        words = Marked(self.verdict.value, _MARKS[self.verdict])
        verdict = Text.assemble(f"{self.model}: ", marked_text(words))
        say(console, verdict.append(f"; {self._summary()}"))
        for title, table in self._tables().items():
            if table.rows:
                shown = table.for_width(console.width)
                console.print(shown.to_rich(title=title.lower(), title_justify="left"))
        for rule, named in self._by_rule().items():
            console.print(Text.assemble((f"{rule}: ", "bold"), RULES[rule]), highlight=False)
            for line in named:
                say(console, f"  {line}")
        for note in self.notes:
            say(console, note)

    def _headline(self) -> Marked:
        words = f"{self.model}: {self.verdict.value}; {self._summary()}"
        return Marked(words, _MARKS[self.verdict])

    def _tables(self) -> dict[str, Table[Any]]:
        layers = [*_LAYER_NAMES, _BEHIND, *_LAYER_NUMBERS, _VERDICT]
        activations = [_ACTIVATION_NAME, *_ACTIVATION_NUMBERS, _VERDICT]
        return {
            "Linear layers": Table(columns=layers, rows=self.layers).without_empty(_NONE),
            "Quantized activations": Table(columns=activations, rows=self.activations),
        }

    def _notes(self) -> list[str]:
        wrong = self._by_rule().items()
        return [*(f"{rule}: {line}" for rule, lines in wrong for line in lines), *self.notes]

    def _by_rule(self) -> dict[str, list[str]]:
        """The findings under each rule; layers with the same verdict and remedy together."""
        rules: dict[str, dict[tuple[str, str], list[str]]] = {}
        for name, finding in self.findings():
            # The numbers are in the table; dozens of layers of a network share a finding.
            remedies = rules.setdefault(finding.rule, {})
            layers = remedies.setdefault((finding.verdict.value, finding.remedy), [])
            layers.append(f"{name} ({finding.reason})")
        return {
            rule: [
                f"{verdict}: {first_ones(named, _MOST_NAMED, between='; ')}. Remedy: {remedy}."
                for (verdict, remedy), named in remedies.items()
            ]
            for rule, remedies in rules.items()
        }

    def _summary(self) -> str:
        """The verdict in a line."""
        verdicts = [row.verdict for row in self._audited()]
        parts = [f"{len(self.layers)} linear layers"]
        if self.activations:
            parts.append(f"{len(self.activations)} quantized activations")
        parts.append(
            f"{verdicts.count(Verdict.BROKEN)} broken, {verdicts.count(Verdict.WATCH)} to watch"
        )
        if self.kappa_0 is not None:
            parts.append(f"kappa_0 {_number(self.kappa_0)}")
        if self.loss is not None and self.logit_variance is not None:
            parts.append(
                f"loss {self.loss:.4g}, variance of the logits {_number(self.logit_variance)} on "
                f"{self.num_images} images"
            )
        return "; ".join(parts)

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with tables and pictures: one self-contained HTML file."""
        wrong = {rule: (RULES[rule], lines) for rule, lines in self._by_rule().items()}
        activations = [_ACTIVATION_NAME, _VERDICT, *_ACTIVATION_NUMBERS]
        page = render(
            "training/audit/page.html",
            audit=self,
            kind=_MARKS[self.verdict],
            summary=self._summary(),
            wrong=wrong,
            charts=[chart.to_figure() for chart in _charts(self)],
            layers=_numbered(_LAYER_OF_PAGE, self.layers).to_html("linear layers"),
            activations=_numbered(activations, self.activations).to_html("quantized activations"),
            limits=Table(columns=_LIMIT, rows=list(LIMITS.items())).to_html("limits"),
        )
        write_text(path, page)


def _share(part: int | None, whole: int | None) -> str:
    """Used of all, or a dash."""
    return _NONE if part is None or whole is None else f"{part}/{whole}"


def _kappa_cell(row: LayerAudit) -> str:
    """The constant that applies to a layer, with its name."""
    if row.kappa is None:
        return f"κ₀ {_number(row.kappa_0)}" if row.kappa_0 is not None else _NONE
    return f"{'κ₂' if row.normalization is None else 'κ₁'} {_number(row.kappa)}"


def _judged(row: LayerAudit | ActivationAudit) -> Marked:
    """The verdict on a layer, with the rules that it breaks."""
    rules = ", ".join(dict.fromkeys(finding.rule for finding in row.findings))
    return Marked(row.verdict.value + (f": {rules}" if rules else ""), _MARKS[row.verdict])


_SHORT = {
    "BatchNormalization": "BN",
    "SyncBatchNormalization": "BN",
    "LayerNormalization": "LN",
    "GroupNormalization": "GN",
}
# Narrower terminals have no columns for these; the page and the CSV have them.
_WIDE = 120

_VERDICT: Column[Any] = Column("verdict", _judged)
_LAYER_NAMES: tuple[Column[LayerAudit], ...] = (
    Column("layer", lambda row: row.name, wrap="never"),
    Column("kind", lambda row: row.kind, wrap="never", least_width=_WIDE),
)
_BEHIND: Column[LayerAudit] = Column(
    "behind",
    lambda row: _SHORT.get(row.normalization or "", row.normalization or _NONE),
    wrap="never",
)
_LAYER_NUMBERS: tuple[Column[LayerAudit], ...] = tuple(
    Column(title, value, show, number=True, wrap="never", least_width=width)
    for title, value, show, width in (
        ("n", lambda row: row.fan_in, str, 0),
        ("n̂", lambda row: row.fan_out, str, 0),
        ("bits", lambda row: row.weight_bits, digits("", missing=_NONE), 0),
        ("VAR W", lambda row: row.latent_variance, _number, _WIDE),
        ("VAR Ŵ", lambda row: row.clamped_variance, _number, _WIDE),
        ("VAR Q", lambda row: row.quantized_variance, _number, _WIDE),
        ("VAR Ξ", lambda row: row.effective_variance, _number, 0),
        ("codes", lambda row: _share(row.weight_codes_used, row.weight_codes), str, _WIDE),
        ("VAR ∂Ξ", lambda row: row.gradient_variance, _number, 0),
        ("κ", _kappa_cell, str, 0),
    )
)
_LAYER_OF_PAGE: list[Column[Any]] = [
    *_LAYER_NAMES,
    Column("behind", lambda row: row.normalization or _NONE),
    Column("followed by", lambda row: ", ".join(row.following) or _NONE),
    _VERDICT,
    *_LAYER_NUMBERS,
]
_ACTIVATION_NAME: Column[ActivationAudit] = Column("made by", lambda row: row.name, wrap="never")
_ACTIVATION_NUMBERS: tuple[Column[ActivationAudit], ...] = tuple(
    Column(title, value, show, number=True)
    for title, value, show in (
        ("bits", lambda row: row.bits, str),
        ("clipping level", lambda row: row.clipping_level, _number),
        ("clipped %", lambda row: row.clipped, percent(unit="", missing=_NONE)),
        ("codes", lambda row: _share(row.codes_used, row.codes), str),
        ("∂L/∂level", lambda row: row.level_gradient, _number),
    )
)
_LIMIT: list[Column[tuple[str, Limit]]] = [
    Column("limit", lambda row: row[0]),
    Column("value", lambda row: row[1].value, digits("g")),
    Column("why", lambda row: row[1].reason),
]


def _numbered(columns: Sequence[Column[Any]], rows: Sequence[Any]) -> Table[tuple[int, Any]]:
    """A table of the page, in which every row has a number, which the charts refer to."""

    def of_row(column: Column[Any]) -> Column[tuple[int, Any]]:
        return dataclasses.replace(column, value=lambda row: column.value(row[1]))

    number: Column[tuple[int, Any]] = Column("#", lambda row: row[0])
    return Table(columns=[number, *map(of_row, columns)], rows=list(enumerate(rows, 1)))


def _charts(audit: Audit) -> list[DotChart]:
    layers, activations, kappa = audit.layers, audit.activations, KAPPA_WATCHED.value

    def chart(
        rows: Sequence[LayerAudit | ActivationAudit],
        title: str,
        y_label: str,
        dots: dict[str, list[float | None]],
        **options: Any,
    ) -> DotChart:
        what = "linear layer" if rows is layers else "quantized activation"
        return DotChart(
            title=title,
            x_label=f"{what}, in graph order",
            y_label=y_label,
            names=[row.name for row in rows],
            dots=[Dots(name, values) for name, values in dots.items()],
            **options,
        )

    constants = {
        "κ₁, normalization behind": [row.kappa_1 if row.normalization else None for row in layers],
        "κ₂, none behind": [None if row.normalization else row.kappa_2 for row in layers],
    }
    gradients = {"VAR ∂L/∂Ξ": [row.gradient_variance for row in layers]}
    weights = {
        "W, latent": [row.latent_variance for row in layers],
        "Ŵ, clamped": [row.clamped_variance for row in layers],
        "Q, quantized": [row.quantized_variance for row in layers],
        "Ξ, effective": [row.effective_variance for row in layers],
    }
    title = "Gradient-flowing law: constant of each layer"
    charts = [
        chart(layers, title, "κ₁ or κ₂", constants, wanted=(1 / kappa, kappa)),
        chart(layers, "Gradient with respect to the effective weights", "VAR ∂L/∂Ξ", gradients),
        chart(layers, "Weights, from latent to effective", "variance", weights),
    ]
    if not activations:
        return charts
    codes_used = [share_of(row.codes_used, row.codes) for row in activations]
    for name, whole, shares, wanted in (
        ("clipped", "values", [row.clipped for row in activations], (0.0, CLIPPED.value)),
        ("codes used", "codes", codes_used, (CODES_USED.value, 1.0)),
    ):
        words = f"Activations: {name}", f"share of {whole}"
        charts.append(chart(activations, *words, {name: shares}, wanted=wanted, is_share=True))
    return charts


def share_of(used: int | None, whole: int | None) -> float | None:
    """The share of codes that occur; None where they were not counted."""
    return None if used is None or whole is None else used / whole
