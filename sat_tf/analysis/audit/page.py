"""An audit as a page to read: one file, without scripts and without anything to load."""

import os
from collections.abc import Iterable

from sat_tf.analysis.audit import audited_model as rules
from sat_tf.analysis.audit.audited_model import (
    LIMITS,
    RULES,
    ActivationAudit,
    AuditedModel,
    LayerAudit,
    Verdict,
)
from sat_tf.analysis.audit.table import by_rule, kappa_cell, number, share, summary
from sat_tf.atomic_file import written_whole
from sat_tf.presentation.dot_chart import STYLE, DotChart, Dots
from sat_tf.presentation.page import page, row, table, text

_CLASSES = {Verdict.OK: "good", Verdict.WATCH: "watch", Verdict.BROKEN: "bad"}


def write_page(audit: AuditedModel, path: str | os.PathLike[str]) -> None:
    """Writes the page; the file appears whole, or not at all.

    Raises:
        ValueError: the path cannot be written.
    """
    with written_whole(path) as temporary:
        temporary.write_text(audit_page(audit), encoding="utf-8")


def audit_page(audit: AuditedModel) -> str:
    """HTML that shows all of an audit."""
    return page(
        f"Audit of {audit.model}",
        [
            f'<p class="verdict {_CLASSES[audit.verdict]}">{audit.verdict.value}</p>',
            f"<p>{text(summary(audit))}.</p>",
            *(f"<p>{text(note)}</p>" for note in audit.notes),
            *_what_is_wrong(audit),
            "<h2>Pictures</h2>",
            *(chart.to_svg() for chart in _charts(audit)),
            "<h2>Linear layers</h2>",
            f"<p>{_ON_LAYERS}</p>",
            _layers(audit),
            *_activations(audit.activations),
            "<h2>Limits</h2>",
            _limits(),
        ],
        style=STYLE,
    )


_ON_LAYERS = (
    "n: inputs of one output. n̂: outputs of one input. W: latent weights; Ŵ: clamped; Q: "
    "quantized; Ξ: effective, what the layer multiplies by. VAR: variance over the kernel. κ₁ "
    "(normalization right behind) and κ₂ (none) are the constants of the gradient-flowing law "
    "between a layer and those that follow it; κ₀ is the classifier's."
)


def _what_is_wrong(audit: AuditedModel) -> Iterable[str]:
    for rule, lines in by_rule(audit).items():
        yield f"<h2>{text(rule)}</h2><p>{text(RULES[rule])}</p><ul>"
        yield from (f"<li>{text(line)}</li>" for line in lines)
        yield "</ul>"


def _charts(audit: AuditedModel) -> list[DotChart]:
    layers, names = audit.layers, [layer.name for layer in audit.layers]
    kappa = rules.KAPPA_WATCHED.value
    of_layers = [
        DotChart(
            title="Gradient-flowing law: constant of each layer",
            x_label="linear layer, in graph order",
            y_label="κ₁ or κ₂",
            names=names,
            dots=[
                Dots("κ₁, normalization behind", [_if(r.normalization, r.kappa_1) for r in layers]),
                Dots("κ₂, none behind", [_if(not r.normalization, r.kappa_2) for r in layers]),
            ],
            wanted=(1 / kappa, kappa),
        ),
        DotChart(
            title="Gradient with respect to the effective weights",
            x_label="linear layer, in graph order",
            y_label="VAR ∂L/∂Ξ",
            names=names,
            dots=[Dots("VAR ∂L/∂Ξ", [row.gradient_variance for row in layers])],
        ),
        DotChart(
            title="Weights, from latent to effective",
            x_label="linear layer, in graph order",
            y_label="variance",
            names=names,
            dots=[
                Dots("W, latent", [row.latent_variance for row in layers]),
                Dots("Ŵ, clamped", [row.clamped_variance for row in layers]),
                Dots("Q, quantized", [row.quantized_variance for row in layers]),
                Dots("Ξ, effective", [row.effective_variance for row in layers]),
            ],
        ),
    ]
    if not audit.activations:
        return of_layers
    return [
        *of_layers,
        DotChart(
            title="Activations: clipped",
            x_label="quantized activation, in graph order",
            y_label="share of values",
            names=[row.name for row in audit.activations],
            dots=[Dots("clipped", [row.clipped for row in audit.activations])],
            wanted=(0.0, rules.CLIPPED.value),
            is_share=True,
        ),
        DotChart(
            title="Activations: codes used",
            x_label="quantized activation, in graph order",
            y_label="share of codes",
            names=[row.name for row in audit.activations],
            dots=[Dots("codes used", [_used(row) for row in audit.activations])],
            wanted=(rules.CODES_USED.value, 1.0),
            is_share=True,
        ),
    ]


def _if(condition: object, value: float | None) -> float | None:
    return value if condition else None


def _used(row: ActivationAudit) -> float | None:
    return None if row.codes is None or row.codes_used is None else row.codes_used / row.codes


def _layers(audit: AuditedModel) -> str:
    head = ["#", "layer", "kind", "behind", "followed by", "verdict"]
    numbers = ["n", "n̂", "bits", "VAR W", "VAR Ŵ", "VAR Q", "VAR Ξ", "codes", "VAR ∂Ξ", "κ"]
    rows = [_layer(index, layer) for index, layer in enumerate(audit.layers, 1)]
    return table([*head, *numbers], rows, label="linear layers", right=len(numbers))


def _layer(index: int, layer: LayerAudit) -> str:
    cells = [
        str(index),
        text(layer.name),
        text(layer.kind),
        text(layer.normalization or "-"),
        text(", ".join(layer.following) or "-"),
        _judged(layer),
    ]
    numbers = [
        str(layer.fan_in),
        str(layer.fan_out),
        "-" if layer.weight_bits is None else str(layer.weight_bits),
        number(layer.latent_variance),
        number(layer.clamped_variance),
        number(layer.quantized_variance),
        number(layer.effective_variance),
        share(layer.weight_codes_used, layer.weight_codes),
        number(layer.gradient_variance),
        kappa_cell(layer),
    ]
    return row(cells, numbers)


def _activations(activations: tuple[ActivationAudit, ...]) -> list[str]:
    if not activations:
        return []
    numbers = ["bits", "clipping level", "clipped %", "codes", "∂L/∂level"]
    rows = [
        row(
            [str(index), text(activation.name), _judged(activation)],
            [
                str(activation.bits),
                number(activation.clipping_level),
                "-" if activation.clipped is None else f"{100 * activation.clipped:.2f}",
                share(activation.codes_used, activation.codes),
                number(activation.level_gradient),
            ],
        )
        for index, activation in enumerate(activations, 1)
    ]
    head = ["#", "made by", "verdict", *numbers]
    return [
        "<h2>Quantized activations</h2>",
        table(head, rows, label="quantized activations", right=len(numbers)),
    ]


def _judged(audited: LayerAudit | ActivationAudit) -> str:
    broken = ", ".join(dict.fromkeys(finding.rule for finding in audited.findings))
    words = audited.verdict.value + (f": {broken}" if broken else "")
    return f'<span class="{_CLASSES[audited.verdict]}">{text(words)}</span>'


def _limits() -> str:
    rows = [
        row([text(name), f"{limit.value:g}", text(limit.reason)]) for name, limit in LIMITS.items()
    ]
    return table(["limit", "value", "why"], rows, label="limits")
