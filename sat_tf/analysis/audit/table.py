"""An audit as tables on the screen."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sat_tf.analysis.audit.audited_model import (
    RULES,
    ActivationAudit,
    AuditedModel,
    LayerAudit,
    Verdict,
)

_COLOURS = {Verdict.OK: "green", Verdict.WATCH: "yellow", Verdict.BROKEN: "red"}
_NONE = "-"
_FORMS = {True: "κ₁", False: "κ₂"}


def print_audit(audit: AuditedModel, console: Console, *, only_findings: bool = False) -> None:
    """Prints the verdict, the layers and what is wrong with them.

    Args:
        audit: what was found.
        console: where to print.
        only_findings: leave out layers and activations that keep all rules.
    """
    console.print(_verdict(audit), highlight=False, soft_wrap=True)
    layers = [row for row in audit.layers if not only_findings or row.findings]
    if layers:
        console.print(_layers(layers, wide=console.width >= _WIDE))
    activations = [row for row in audit.activations if not only_findings or row.findings]
    if activations:
        console.print(_activations(activations))
    for rule, named in by_rule(audit).items():
        console.print(Text.assemble((f"{rule}: ", "bold"), RULES[rule]), highlight=False)
        for line in named:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    for note in audit.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def by_rule(audit: AuditedModel) -> dict[str, list[str]]:
    """What is wrong, as sentences under the rule; layers with the same fault and cure together."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name, finding in audit.findings():
        # The numbers are in the table; a network has dozens of layers with one fault.
        cures = found.setdefault(finding.rule, {})
        cures.setdefault((finding.verdict.value, finding.remedy), []).append(
            f"{name} ({finding.reason})"
        )
    return {
        rule: [
            f"{verdict}: {_listed(named)}. Remedy: {remedy}."
            for (verdict, remedy), named in cures.items()
        ]
        for rule, cures in found.items()
    }


_MOST_NAMED = 3


def _listed(named: list[str]) -> str:
    more = len(named) - _MOST_NAMED
    return "; ".join(named[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


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


def number(value: float | None) -> str:
    """Three digits, or a dash for what is not there."""
    return _NONE if value is None else f"{value:.3g}"


def share(part: int | None, whole: int | None) -> str:
    """How many of how many, or a dash."""
    return _NONE if part is None or whole is None else f"{part}/{whole}"


def _verdict(audit: AuditedModel) -> Text:
    verdict = audit.verdict
    return Text.assemble(
        f"{audit.model}: ", (verdict.value, _COLOURS[verdict]), f"; {summary(audit)}"
    )


# What a terminal of 80 columns has no room for; the page and the CSV have it.
_WIDE = 120
_FOR_WIDE = ("kind", "VAR W", "VAR Ŵ", "VAR Q", "codes")


def _layers(rows: list[LayerAudit], *, wide: bool) -> Table:
    columns: dict[str, list[str]] = {
        "kind": [row.kind for row in rows],
        "behind": [SHORT.get(row.normalization or "", row.normalization or _NONE) for row in rows],
        "n": [str(row.fan_in) for row in rows],
        "n̂": [str(row.fan_out) for row in rows],
        "bits": [_NONE if row.weight_bits is None else str(row.weight_bits) for row in rows],
        "VAR W": [number(row.latent_variance) for row in rows],
        "VAR Ŵ": [number(row.clamped_variance) for row in rows],
        "VAR Q": [number(row.quantized_variance) for row in rows],
        "VAR Ξ": [number(row.effective_variance) for row in rows],
        "codes": [share(row.weight_codes_used, row.weight_codes) for row in rows],
        "VAR ∂Ξ": [number(row.gradient_variance) for row in rows],
        "κ": [kappa_cell(row) for row in rows],
    }
    shown = {
        title: cells
        for title, cells in columns.items()
        if (wide or title not in _FOR_WIDE) and set(cells) != {_NONE}
    }
    table = Table(title="linear layers", title_justify="left")
    table.add_column("layer", no_wrap=True)
    for title in shown:
        words = title in ("kind", "behind")
        table.add_column(title, justify="left" if words else "right", no_wrap=True)
    table.add_column("verdict")
    for index, row in enumerate(rows):
        cells = [column[index] for column in shown.values()]
        table.add_row(row.name, *cells, _judged(row))
    return table


SHORT = {
    "BatchNormalization": "BN",
    "SyncBatchNormalization": "BN",
    "LayerNormalization": "LN",
    "GroupNormalization": "GN",
}


def kappa_cell(row: LayerAudit) -> str:
    """The constant that holds for a layer, with its name."""
    if row.kappa is None:
        return f"κ₀ {number(row.kappa_0)}" if row.kappa_0 is not None else _NONE
    return f"{_FORMS[row.normalization is not None]} {number(row.kappa)}"


def _activations(rows: list[ActivationAudit]) -> Table:
    table = Table(title="quantized activations", title_justify="left")
    table.add_column("made by", no_wrap=True)
    for name in ("bits", "clipping level", "clipped %", "codes", "∂L/∂level"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in rows:
        table.add_row(
            row.name,
            str(row.bits),
            number(row.clipping_level),
            _NONE if row.clipped is None else f"{100 * row.clipped:.2f}",
            share(row.codes_used, row.codes),
            number(row.level_gradient),
            _judged(row),
        )
    return table


def _judged(row: LayerAudit | ActivationAudit) -> Text:
    rules = ", ".join(dict.fromkeys(finding.rule for finding in row.findings))
    words = row.verdict.value + (f": {rules}" if rules else "")
    return Text(words, style=_COLOURS[row.verdict])
