"""An audit as an HTML page: one self-contained file without scripts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from sat_tf.analysis.audit import audited_model as rules
from sat_tf.analysis.audit.audited_model import (
    LIMITS,
    RULES,
    ActivationAudit,
    AuditedModel,
    Limit,
)
from sat_tf.analysis.audit.table import (
    ACTIVATION,
    ACTIVATION_NUMBERS,
    KINDS,
    LAYER,
    LAYER_NUMBERS,
    VERDICT,
    by_rule,
    summary,
)
from sat_tf.presentation.charts import DotChart, Dots
from sat_tf.presentation.page import render_page
from sat_tf.presentation.tables import Column, Table, digits


def audit_page(audit: AuditedModel) -> str:
    """HTML that shows all of an audit."""
    activations = audit.activations
    return render_page(
        "analysis/audit/page.html",
        audit=audit,
        kind=KINDS[audit.verdict],
        summary=summary(audit),
        wrong={rule: (RULES[rule], lines) for rule, lines in by_rule(audit).items()},
        charts=[chart.to_figure() for chart in _charts(audit)],
        layers=Table(columns=_LAYER, rows=_numbered(audit.layers)).to_html("linear layers"),
        activations=Table(columns=_ACTIVATION, rows=_numbered(activations)).to_html(
            "quantized activations"
        ),
        limits=Table(columns=_LIMIT, rows=list(LIMITS.items())).to_html("limits"),
    )


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


# On the page every row has a number, which the charts refer to.
_Numbered = tuple[int, Any]


def _numbered(rows: Sequence[Any]) -> list[_Numbered]:
    return list(enumerate(rows, 1))


def _behind_its_number(column: Column[Any]) -> Column[_Numbered]:
    return dataclasses.replace(column, value=lambda row: column.value(row[1]))


_NUMBER: Column[_Numbered] = Column("#", lambda row: row[0])
_LAYER = [
    _NUMBER,
    *map(
        _behind_its_number,
        (
            *LAYER,
            Column("behind", lambda row: row.normalization or "-"),
            Column("followed by", lambda row: ", ".join(row.following) or "-"),
            VERDICT,
            *LAYER_NUMBERS,
        ),
    ),
]
_ACTIVATION = [
    _NUMBER,
    *map(_behind_its_number, (ACTIVATION, VERDICT, *ACTIVATION_NUMBERS)),
]
_LIMIT: list[Column[tuple[str, Limit]]] = [
    Column("limit", lambda row: row[0]),
    Column("value", lambda row: row[1].value, digits("g")),
    Column("why", lambda row: row[1].reason),
]
