"""An audit: its tables on the screen, its rows, and its page, an HTML file without scripts."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from sat_tf.files import write_text
from sat_tf.messages import first_ones, say
from sat_tf.presentation.charts import DotChart, Dots
from sat_tf.presentation.page import render_page
from sat_tf.presentation.tables import Column, Marked, RowTable, Table, digits, marked_text, percent
from sat_tf.training.audit.rules import (
    CLIPPED,
    CODES_USED,
    KAPPA_WATCHED,
    LIMITS,
    RULES,
    ActivationAudit,
    Finding,
    LayerAudit,
    Limit,
    Verdict,
    worst,
)

_KINDS = {Verdict.OK: "good", Verdict.WATCH: "watch", Verdict.BROKEN: "bad"}
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
        return [
            *(_row("layer", layer) for layer in self.layers),
            *(_row("activation", activation) for activation in self.activations),
        ]

    def print_to(self, console: Console) -> None:
        """Prints the verdict, the layers and their findings."""
        words = Marked(self.verdict.value, _KINDS[self.verdict])
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
        return Marked(words, _KINDS[self.verdict])

    def _tables(self) -> dict[str, Table[Any]]:
        layers = Table(
            columns=[*_LAYER_NAMES, _BEHIND, *_LAYER_NUMBERS, _VERDICT], rows=self.layers
        )
        activations = [_ACTIVATION_NAME, *_ACTIVATION_NUMBERS, _VERDICT]
        return {
            "Linear layers": layers.without_empty(_NONE),
            "Quantized activations": Table(columns=activations, rows=self.activations),
        }

    def _notes(self) -> list[str]:
        wrong = self._by_rule().items()
        return [*(f"{rule}: {line}" for rule, lines in wrong for line in lines), *self.notes]

    def _by_rule(self) -> dict[str, list[str]]:
        """The findings under each rule; layers with the same verdict and remedy together."""
        found: dict[str, dict[tuple[str, str], list[str]]] = {}
        for name, finding in self.findings():
            # The numbers are in the table; dozens of layers of a network share a finding.
            remedies = found.setdefault(finding.rule, {})
            remedies.setdefault((finding.verdict.value, finding.remedy), []).append(
                f"{name} ({finding.reason})"
            )
        return {
            rule: [
                f"{verdict}: {first_ones(named, _MOST_NAMED, between='; ')}. Remedy: {remedy}."
                for (verdict, remedy), named in remedies.items()
            ]
            for rule, remedies in found.items()
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
        page = render_page(
            "training/audit/page.html",
            audit=self,
            kind=_KINDS[self.verdict],
            summary=self._summary(),
            wrong=wrong,
            charts=[chart.to_figure() for chart in _charts(self)],
            layers=_numbered(_LAYER_OF_PAGE, self.layers).to_html("linear layers"),
            activations=_numbered(activations, self.activations).to_html("quantized activations"),
            limits=Table(columns=_LIMIT, rows=list(LIMITS.items())).to_html("limits"),
        )
        write_text(path, page)


def _row(kind: str, audited: LayerAudit | ActivationAudit) -> dict[str, Any]:
    own = {name: getattr(audited, name) for name in COLUMNS if hasattr(audited, name)}
    if isinstance(audited, LayerAudit):
        own["following"] = " ".join(audited.following)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    return {
        **row,
        **own,
        "row": kind,
        "verdict": audited.verdict.value,
        "rules": "; ".join(finding.rule for finding in audited.findings),
        "reasons": "; ".join(finding.reason for finding in audited.findings),
        "remedies": "; ".join(finding.remedy for finding in audited.findings),
    }


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
    return Marked(row.verdict.value + (f": {rules}" if rules else ""), _KINDS[row.verdict])


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
    Column(title, value, show, unit=unit, number=True)
    for title, unit, value, show in (
        ("bits", "", lambda row: row.bits, str),
        ("clipping level", "", lambda row: row.clipping_level, _number),
        ("clipped", "%", lambda row: row.clipped, percent(unit="", missing=_NONE)),
        ("codes", "", lambda row: _share(row.codes_used, row.codes), str),
        ("∂L/∂level", "", lambda row: row.level_gradient, _number),
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

    gradients = [row.gradient_variance for row in layers]
    of_layers = [
        chart(
            layers,
            "Gradient-flowing law: constant of each layer",
            "κ₁ or κ₂",
            {
                "κ₁, normalization behind": [
                    row.kappa_1 if row.normalization else None for row in layers
                ],
                "κ₂, none behind": [None if row.normalization else row.kappa_2 for row in layers],
            },
            wanted=(1 / kappa, kappa),
        ),
        chart(
            layers,
            "Gradient with respect to the effective weights",
            "VAR ∂L/∂Ξ",
            {"VAR ∂L/∂Ξ": gradients},
        ),
        chart(
            layers,
            "Weights, from latent to effective",
            "variance",
            {
                "W, latent": [row.latent_variance for row in layers],
                "Ŵ, clamped": [row.clamped_variance for row in layers],
                "Q, quantized": [row.quantized_variance for row in layers],
                "Ξ, effective": [row.effective_variance for row in layers],
            },
        ),
    ]
    if not activations:
        return of_layers
    shares = {
        "clipped": [row.clipped for row in activations],
        "codes used": [share_of(row.codes_used, row.codes) for row in activations],
    }
    wanted = {"clipped": (0.0, CLIPPED.value), "codes used": (CODES_USED.value, 1.0)}
    labels = {"clipped": "share of values", "codes used": "share of codes"}
    return [
        *of_layers,
        *(
            chart(
                activations,
                f"Activations: {name}",
                labels[name],
                {name: values},
                wanted=wanted[name],
                is_share=True,
            )
            for name, values in shares.items()
        ),
    ]


def share_of(used: int | None, whole: int | None) -> float | None:
    """The share of codes that occur; None where they were not counted."""
    return None if used is None or whole is None else used / whole
