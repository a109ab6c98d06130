"""An audit as tables on the screen, and the columns that its page shares."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from sat_tf.analysis.audit.audited_model import (
    RULES,
    ActivationAudit,
    AuditedModel,
    LayerAudit,
    Verdict,
)
from sat_tf.messages import first_ones, say
from sat_tf.presentation.tables import Column, Marked, Table, digits, marked_text, percent

KINDS = {Verdict.OK: "good", Verdict.WATCH: "watch", Verdict.BROKEN: "bad"}
_NONE = "-"
_FORMS = {True: "κ₁", False: "κ₂"}

# Three digits, or a dash if there is no value.
number = digits(".3g", missing=_NONE)


def print_audit(audit: AuditedModel, console: Console, *, only_findings: bool = False) -> None:
    """Prints the verdict, the layers and their findings.

    Args:
        audit: what was found.
        console: where to print.
        only_findings: leave out layers and activations that keep all rules.
    """
    verdict = Text.assemble(f"{audit.model}: ", marked_text(judged_model(audit)))
    say(console, verdict.append(f"; {summary(audit)}"))
    layers = [row for row in audit.layers if not only_findings or row.findings]
    if layers:
        table = layer_table(layers, wide=console.width >= _WIDE)
        console.print(table.to_rich(title="linear layers", title_justify="left"))
    activations = [row for row in audit.activations if not only_findings or row.findings]
    if activations:
        table = activation_table(activations)
        console.print(table.to_rich(title="quantized activations", title_justify="left"))
    for rule, named in by_rule(audit).items():
        console.print(Text.assemble((f"{rule}: ", "bold"), RULES[rule]), highlight=False)
        for line in named:
            say(console, f"  {line}")
    for note in audit.notes:
        say(console, note)


def by_rule(audit: AuditedModel) -> dict[str, list[str]]:
    """The findings under each rule; layers with the same verdict and remedy together."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name, finding in audit.findings():
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


_MOST_NAMED = 3


def summary(audit: AuditedModel) -> str:
    """The verdict in a line."""
    rows: list[LayerAudit | ActivationAudit] = [*audit.layers, *audit.activations]
    broken = sum(row.verdict is Verdict.BROKEN for row in rows)
    watched = sum(row.verdict is Verdict.WATCH for row in rows)
    parts = [f"{len(audit.layers)} linear layers"]
    if audit.activations:
        parts.append(f"{len(audit.activations)} quantized activations")
    parts.append(f"{broken} broken, {watched} to watch")
    if audit.kappa_0 is not None:
        parts.append(f"kappa_0 {number(audit.kappa_0)}")
    if audit.loss is not None and audit.logit_variance is not None:
        parts.append(
            f"loss {audit.loss:.4g}, variance of the logits {number(audit.logit_variance)} on "
            f"{audit.num_images} images"
        )
    return "; ".join(parts)


def _share(part: int | None, whole: int | None) -> str:
    """Used of all, or a dash."""
    return _NONE if part is None or whole is None else f"{part}/{whole}"


def kappa_cell(row: LayerAudit) -> str:
    """The constant that applies to a layer, with its name."""
    if row.kappa is None:
        return f"κ₀ {number(row.kappa_0)}" if row.kappa_0 is not None else _NONE
    return f"{_FORMS[row.normalization is not None]} {number(row.kappa)}"


def judged(row: LayerAudit | ActivationAudit) -> Marked:
    """The verdict on a layer, with the rules that it breaks."""
    rules = ", ".join(dict.fromkeys(finding.rule for finding in row.findings))
    return Marked(row.verdict.value + (f": {rules}" if rules else ""), KINDS[row.verdict])


_SHORT = {
    "BatchNormalization": "BN",
    "SyncBatchNormalization": "BN",
    "LayerNormalization": "LN",
    "GroupNormalization": "GN",
}
# Left out on narrow terminals; the page and the CSV have them.
_WIDE = 120
_FOR_WIDE = ("kind", "VAR W", "VAR Ŵ", "VAR Q", "codes")

VERDICT: Column[Any] = Column("verdict", judged)
LAYER: tuple[Column[LayerAudit], ...] = (
    Column("layer", lambda row: row.name, wrap="never"),
    Column("kind", lambda row: row.kind, wrap="never"),
)
LAYER_NUMBERS: tuple[Column[LayerAudit], ...] = tuple(
    Column(title, value, show, number=True, wrap="never")
    for title, value, show in (
        ("n", lambda row: row.fan_in, str),
        ("n̂", lambda row: row.fan_out, str),
        ("bits", lambda row: row.weight_bits, digits("", missing=_NONE)),
        ("VAR W", lambda row: row.latent_variance, number),
        ("VAR Ŵ", lambda row: row.clamped_variance, number),
        ("VAR Q", lambda row: row.quantized_variance, number),
        ("VAR Ξ", lambda row: row.effective_variance, number),
        ("codes", lambda row: _share(row.weight_codes_used, row.weight_codes), str),
        ("VAR ∂Ξ", lambda row: row.gradient_variance, number),
        ("κ", kappa_cell, str),
    )
)
ACTIVATION: Column[ActivationAudit] = Column("made by", lambda row: row.name, wrap="never")
ACTIVATION_NUMBERS: tuple[Column[ActivationAudit], ...] = tuple(
    Column(title, value, show, unit=unit, number=True)
    for title, unit, value, show in (
        ("bits", "", lambda row: row.bits, str),
        ("clipping level", "", lambda row: row.clipping_level, number),
        ("clipped", "%", lambda row: row.clipped, percent(unit="", missing=_NONE)),
        ("codes", "", lambda row: _share(row.codes_used, row.codes), str),
        ("∂L/∂level", "", lambda row: row.level_gradient, number),
    )
)


def _short_normalization(row: LayerAudit) -> str:
    return _SHORT.get(row.normalization or "", row.normalization or _NONE)


def layer_table(rows: Sequence[LayerAudit], *, wide: bool = True) -> Table[Any]:
    """The linear layers."""
    behind = Column("behind", _short_normalization, wrap="never")
    columns = [*LAYER, behind, *LAYER_NUMBERS, VERDICT]
    shown = [column for column in columns if wide or column.title not in _FOR_WIDE]
    return Table(columns=shown, rows=rows).without_empty(_NONE)


def activation_table(rows: Sequence[ActivationAudit]) -> Table[Any]:
    """The tensors with clipping levels."""
    return Table(columns=[ACTIVATION, *ACTIVATION_NUMBERS, VERDICT], rows=rows)


def judged_model(audit: AuditedModel) -> Marked:
    """The verdict on the whole model."""
    return Marked(audit.verdict.value, KINDS[audit.verdict])
