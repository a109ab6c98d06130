"""An audit for its user: to read, to print, and to write to a file."""

import dataclasses
import io
import os
from collections.abc import Iterator
from typing import Any

import rich.console

from sat_tf.analysis.audit.audited_model import ActivationAudit, AuditedModel, LayerAudit
from sat_tf.analysis.audit.page import write_page
from sat_tf.analysis.audit.table import print_audit
from sat_tf.presentation.tables import RowTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit(AuditedModel, RowTable):
    """A model measured by the rules of efficient training; see `AuditedModel`."""

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each linear layer and each activation, all with the same keys."""
        return [
            *(_row("layer", layer) for layer in self.layers),
            *(_row("activation", activation) for activation in self.activations),
        ]

    def _columns(self) -> tuple[str, ...]:
        return COLUMNS

    def table(self, *, width: int | None = None) -> str:
        """The audit as text for the terminal.

        Args:
            width: columns of the terminal; by default as wide as needed.
        """
        text = io.StringIO()
        print_audit(self, rich.console.Console(file=text, width=width or 160))
        return text.getvalue()

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with tables and pictures: one self-contained HTML file.

        Raises:
            ValueError: the path cannot be written.
        """
        write_page(self, path)


def _columns() -> Iterator[str]:
    yield from ("row", "verdict")
    for kind in (LayerAudit, ActivationAudit):
        yield from (field.name for field in dataclasses.fields(kind) if field.name != "findings")
    yield from ("rules", "reasons", "remedies")


COLUMNS = tuple(dict.fromkeys(_columns()))


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
