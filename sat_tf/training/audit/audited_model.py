"""An audit: which rules a measured model breaks; its tables and its rows."""

import dataclasses
import enum
import math
from collections.abc import Iterable, Iterator
from typing import Any

from sat_tf.messages import first_ones
from sat_tf.messages.tables import Column, Marked, RowTable, Table, digits, percent


class Verdict(enum.Enum):
    """How well a layer or a model keeps the rules."""

    OK = "ok"
    WATCH = "watch"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A rule that a layer breaks."""

    # "rule I", "rule II", "gradient", "weight codes", "activation codes", "clipping" or "numbers".
    rule: str
    verdict: Verdict  # WATCH or BROKEN.
    reason: str  # The measured value, and the one that the rule requires.
    remedy: str  # The action to take.


# Rule I of the paper: empirically, a ratio of less than 0.1 is adequate. At 1 logits of normalized
# features have a deviation of 1, where the softmax starts to saturate; the paper's clamped models,
# which train badly, lie from 0.5 to 2.
KAPPA_0_WANTED, KAPPA_0_SATURATING = 0.1, 1.0
# Rule II requires a weight variance of the order of 1/n or 1/n̂ if no normalization is right after;
# 10 is one order of magnitude. The usual initializations give 0.3 to 2.
NEURONS_TIMES_VARIANCE = 10.0
# The law's constants are of order 1 (the paper; 0.2 to 3 in the ResNet-18 and MobileNet-V2 of this
# package at the start); 10 is one order of magnitude. At 1000 gradients are thirty times too large
# or too small from one layer to the next.
KAPPA_WATCHED, KAPPA_BROKEN = 10.0, 1000.0
# Layers are too small and tails too long to use every code of 5 bits and more. If half of the codes
# or fewer are in use, one bit less would do.
FEW_BITS, CODES_USED = 4, 0.5
# The paper's clipping levels settle where a few percent are clipped; with a quarter at the top
# code, most of the information is lost.
CLIPPED = 0.25
# The gradient variance on one or a few images predicts little about the next batch.
FEW_IMAGES = 8


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict that follows from findings."""
    verdicts = {finding.verdict for finding in findings}
    return next((v for v in (Verdict.BROKEN, Verdict.WATCH) if v in verdicts), Verdict.OK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Audited:
    # The user's layer, with the path of models that it is nested in, or an inserted quantizer.
    name: str
    findings: tuple[Finding, ...] = ()  # The rules it breaks.

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its findings."""
        return worst(self.findings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerAudit(_Audited):
    """One linear layer with its kernel; None stands for what it lacks, or what was not measured.

    Variances are centred, over the whole kernel.
    """

    kind: str  # Class of the layer.
    fan_in: int  # N, inputs of one output, the kernel's area included.
    fan_out: int  # N̂, outputs of one input, the kernel's area included.
    normalization: str | None = None  # Class of the normalization right after it.
    reads_image: bool = False  # No linear layer comes before it.
    is_classifier: bool = False  # Its output is the model's.
    weights: int  # The number of weights.
    weight_bits: int | None = None  # Bits of the codes.
    rescale: str | None = None  # Name of SAT's rescaling.
    latent_variance: float | None = None  # VAR[W], of the variable that the optimizer updates.
    clamped_variance: float | None = None  # VAR[Ŵ].
    quantized_variance: float | None = None  # VAR[Q].
    effective_variance: float | None = None  # VAR[Ξ].
    weight_codes: int | None = None  # How many codes the grid has.
    weight_codes_used: int | None = None  # How many of these codes occur.
    pooled_area: int | None = None  # K²_pool right before the classifier.
    kappa_0: float | None = None  # κ₀ of the classifier; wanted below 0.1.
    gradient_variance: float | None = None  # VAR[∂L/∂Ξ].
    following: tuple[str, ...] = ()  # Names of the layers that follow, nearest along the graph.
    # Constant of the gradient-flowing law with normalization after the layer; wanted near 1.
    kappa_1: float | None = None
    kappa_2: float | None = None  # The constant without normalization.
    unknown: str = ""  # The reason why there are no constants; "" where there are.

    @property
    def kappa(self) -> float | None:
        """The constant that applies here: κ₁ with normalization, otherwise κ₂."""
        return self.kappa_2 if self.normalization is None else self.kappa_1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationAudit(_Audited):
    """One tensor with a clipping level; None stands for what was not measured."""

    bits: int  # Bits of its codes.
    clipping_level: float  # The level, on both sides of a tensor that can be negative.
    ceiling: float | None = None  # The ceiling of the rectifier that the quantizer replaces.
    # Share of its values at or beyond the clipping level, in inference.
    clipped: float | None = None
    codes: int | None = None  # How many codes its grid has.
    codes_used: int | None = None  # How many of these codes occur.
    # Derivative of the loss with respect to the clipping level.
    level_gradient: float | None = None


def judge_layer(layer: LayerAudit, *, measured: bool) -> Iterator[Finding]:
    """Yields the rules that a linear layer breaks; those on gradients only where `measured`."""
    variance, kappa_0, kappa = layer.effective_variance, layer.kappa_0, layer.kappa
    can_be_rescaled = layer.clamped_variance is not None and layer.rescale in (None, "none")
    if variance is not None and not math.isfinite(variance):
        reason = "it has weights that are NaN or infinite"
        remedy = "load the weights again, or train again with a lower learning rate"
        yield Finding("numbers", Verdict.BROKEN, reason, remedy)
        return
    if kappa_0 is not None and kappa_0 >= KAPPA_0_WANTED:
        saturates = kappa_0 >= KAPPA_0_SATURATING
        remedy = "start it with smaller weights: variance 1/n̂ or less"
        if can_be_rescaled:
            remedy = 'rescale it: BitPolicy(rescale="constant")'
        elif layer.pooled_area == 1:
            remedy = "average-pool the features right before it, or start it with smaller weights"
        yield Finding(
            "rule I",
            Verdict.BROKEN if saturates else Verdict.WATCH,
            f"kappa_0 = {kappa_0:.3g}{', saturating' if saturates else ''}; wanted below "
            f"{KAPPA_0_WANTED:g}",
            remedy,
        )
    normalized = "put BatchNormalization right after it, or start it with weights of variance 1/n"
    if can_be_rescaled:
        normalized = 'rescale it: BitPolicy(rescale="constant"); or put BatchNormalization after it'
    # The classifier is under rule I; a layer that normalization follows may have any variance.
    if variance is not None and layer.normalization is None and not layer.is_classifier:
        products = sorted((layer.fan_in * variance, layer.fan_out * variance))
        size = "large" if products[0] > NEURONS_TIMES_VARIANCE else "small"
        if size == "large" or products[1] < 1 / NEURONS_TIMES_VARIANCE:
            yield Finding(
                "rule II",
                Verdict.BROKEN,
                f"no normalization is right after it, and its weights are too {size}: n VAR = "
                f"{layer.fan_in * variance:.3g}, n̂ VAR = {layer.fan_out * variance:.3g}; wanted "
                "one of them near 1",
                normalized,
            )
    if measured and not layer.gradient_variance:
        yield Finding(
            "gradient",
            Verdict.BROKEN,
            "no gradient reaches it" if layer.gradient_variance is None else "its gradient is zero",
            "check what is after it: weights or activations that are all zero, or clipped",
        )
    # Images in [0, 255] do not meet the law's assumptions; the paper leaves this layer out too.
    elif measured and not layer.reads_image and _is_beyond(kappa, KAPPA_WATCHED):
        form, remedy = "kappa_2", normalized
        if layer.normalization is not None:
            form, remedy = (
                "kappa_1",
                "check the layers between: pools of a map as small as the kernel, dead or "
                "saturated activations, and factors that bypass normalization",
            )
        yield Finding(
            "rule II",
            Verdict.BROKEN if _is_beyond(kappa, KAPPA_BROKEN) else Verdict.WATCH,
            f"{form} = {kappa:.3g} between it and {' and '.join(layer.following)} "
            f"({layer.normalization or 'no normalization'} after it); wanted near 1",
            remedy,
        )
    codes = layer.weight_codes
    if codes and _are_few(layer.weight_codes_used, min(codes, layer.weights), layer.weight_bits):
        yield Finding(
            "weight codes",
            Verdict.BROKEN,
            f"{layer.weight_codes_used} of {codes} codes occur",
            'more weight bits, or a range for each channel: BitPolicy(weight_range="channel")',
        )


def _is_beyond(kappa: float | None, factor: float) -> bool:
    return kappa is not None and not 1.0 / factor <= kappa <= factor


def _are_few(used: int | None, usable: int | None, bits: int | None) -> bool:
    """Whether fewer bits would hold the codes that occur."""
    if used is None or usable is None or bits is None:
        return False
    return bits <= FEW_BITS and usable > 2 and used <= CODES_USED * usable


def judge_activation(activation: ActivationAudit) -> Iterator[Finding]:
    """Yields the rules that a quantized tensor breaks."""
    clipped, ceiling = activation.clipped, activation.ceiling
    # A rectifier's ceiling also clips the float model, and no level starts above it.
    at_ceiling = ceiling is not None and activation.clipping_level >= ceiling
    if clipped is not None and clipped >= CLIPPED and not at_ceiling:
        yield Finding(
            "clipping",
            Verdict.BROKEN,
            f"{100 * clipped:.0f} % of the values are at or beyond the clipping level "
            f"{activation.clipping_level:.3g}; wanted less than {100 * CLIPPED:.0f} %",
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
    _page = "training/audit/page.html"

    model: str  # Its name.
    layers: tuple[LayerAudit, ...]  # The linear layers, in graph order.
    # The tensors with clipping levels, in graph order.
    activations: tuple[ActivationAudit, ...] = ()
    kappa_0: float | None = None  # κ₀ of the classifier, if there is one.
    # How many images gradients and activations were measured on; 0 without any.
    num_images: int = 0
    loss: float | None = None  # Cross entropy of these images, in nats.
    # Variance of the logits over classes, averaged over the images.
    logit_variance: float | None = None
    notes: tuple[str, ...] = ()  # Remarks on what could not be measured, and why.

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return worst(finding for _, finding in self.findings())

    def findings(self) -> Iterator[tuple[str, Finding]]:
        """The broken rules, each with the name of the layer."""
        for audited in (*self.layers, *self.activations):
            for finding in audited.findings:
                yield audited.name, finding

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each linear layer and each activation, all with the same keys."""
        rows = []
        for audited in (*self.layers, *self.activations):
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

    def _headline(self) -> Marked:
        verdicts = [row.verdict for row in (*self.layers, *self.activations)]
        facts = [
            f"{self.model}: {self.verdict.value}",
            f"{len(self.layers)} linear layers, {len(self.activations)} quantized activations",
            f"{verdicts.count(Verdict.BROKEN)} broken, {verdicts.count(Verdict.WATCH)} to watch",
        ]
        if self.kappa_0 is not None:
            facts.append(f"kappa_0 {_number(self.kappa_0)}")
        if self.loss is not None:
            facts.append(
                f"loss {self.loss:.4g}, variance of the logits {_number(self.logit_variance)} on "
                f"{self.num_images} images"
            )
        return Marked("; ".join(facts), _MARKS[self.verdict])

    def _tables(self) -> dict[str, Table[Any]]:
        return {
            "Linear layers": Table(columns=_LAYER, rows=self.layers).without_empty(_NONE),
            "Quantized activations": Table(columns=_ACTIVATION, rows=self.activations),
        }

    def _notes(self) -> list[str]:
        """A line for the layers that break a rule with the same verdict and remedy, and notes."""
        # The numbers are in the table; dozens of layers of a network share a finding.
        layers: dict[tuple[str, str, str], list[str]] = {}
        for name, finding in self.findings():
            key = finding.rule, finding.verdict.value, finding.remedy
            layers.setdefault(key, []).append(f"{name} ({finding.reason})")
        return [
            *(
                f"{rule}: {verdict}: {first_ones(named, 3, between='; ')}. Remedy: {remedy}."
                for (rule, verdict, remedy), named in sorted(layers.items())
            ),
            *self.notes,
        ]


def _share(used: int | None, whole: int | None) -> str:
    """Used of all, or a dash."""
    return _NONE if used is None or whole is None else f"{used}/{whole}"


def _kappa_cell(row: LayerAudit) -> str:
    """The constant that applies to a layer, with its name."""
    if row.kappa is None:
        return f"κ₀ {_number(row.kappa_0)}" if row.kappa_0 is not None else _NONE
    return f"{'κ₂' if row.normalization is None else 'κ₁'} {_number(row.kappa)}"


def _judged(row: LayerAudit | ActivationAudit) -> Marked:
    """The verdict on a layer, with the rules that it breaks."""
    rules = ", ".join(dict.fromkeys(finding.rule for finding in row.findings))
    return Marked(row.verdict.value + (f": {rules}" if rules else ""), _MARKS[row.verdict])


# Narrower terminals have no columns for these; the page and the CSV have them.
_WIDE = 120

_LAYER: tuple[Column[LayerAudit], ...] = (
    Column("layer", lambda row: row.name, wrap="never"),
    Column("kind", lambda row: row.kind, wrap="never", least_width=_WIDE),
    Column(
        "behind",
        lambda row: (row.normalization or _NONE).replace("Normalization", ""),
        wrap="never",
    ),
    *(
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
    ),
    Column("verdict", _judged),
)
_ACTIVATION: tuple[Column[ActivationAudit], ...] = (
    Column("made by", lambda row: row.name, wrap="never"),
    *(
        Column(title, value, show, number=True)
        for title, value, show in (
            ("bits", lambda row: row.bits, str),
            ("clipping level", lambda row: row.clipping_level, _number),
            ("clipped %", lambda row: row.clipped, percent(unit="", missing=_NONE)),
            ("codes", lambda row: _share(row.codes_used, row.codes), str),
            ("∂L/∂level", lambda row: row.level_gradient, _number),
        )
    ),
    Column("verdict", _judged),
)


def share_of(used: int | None, whole: int | None) -> float | None:
    """The share of codes that occur; None where they were not counted."""
    return None if used is None or whole is None else used / whole
