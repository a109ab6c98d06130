"""The result of a verification, as tables on the screen."""

import rich.table
from rich.console import Console
from rich.text import Text

from sat_tf.export.certificate.certificate import Certificate
from sat_tf.export.certificate.counts import RUNTIME_TITLES, runtime_table, shown_share
from sat_tf.export.certificate.holds import verdict_of
from sat_tf.export.certificate.outputs import OutputCount
from sat_tf.messages import say
from sat_tf.presentation.tables import Column, Table, digits, marked_text

_MOST_TENSORS_LISTED = 10


def print_certificate(certificate: Certificate, path: str, console: Console) -> None:
    """Prints the verdict, a line for each runtime, and the tensors that differ."""
    verdict = Text.assemble(
        f"{path}: ",
        marked_text(certificate.verdict),
        f" ({certificate.num_images:,} images, {len(certificate.codes)} tensors)",
    )
    if certificate.trained:
        verdict.append(f"; of the trained model's own, {100 * certificate.trained_differing:.4f} %")
    if certificate.float_verdict:
        verdict.append(f"; {certificate.float_verdict}")
    say(console, verdict)
    for words in map(marked_text, certificate.trained_notes):
        say(console, words)
    for note in certificate.float_notes:
        say(console, f"Beside the float model: {note.text}", style="red" if note.is_bad else None)
    console.print(
        runtime_table(certificate.runtimes, certificate.reference, certificate.top1).to_rich()
    )
    if len(certificate.runtimes["xnnpack"].outputs) > 1:
        console.print(_outputs(certificate))
    for name, reason in certificate.refused.items():
        say(console, f"{RUNTIME_TITLES[name]} does not run the file: {reason}")
    _print_where_it_holds(certificate, console)
    _print_differing(certificate, console)


def _print_where_it_holds(certificate: Certificate, console: Console) -> None:
    if not certificate.holds:
        return
    colour = "green" if certificate.is_portable else "yellow"
    for line, style in (
        (verdict_of(certificate.holds), colour),
        (certificate.measured_on, None),
        *((f"Note: {warning}", "yellow") for warning in certificate.warnings),
    ):
        if line:
            say(console, line, style=style)


def _outputs(certificate: Certificate) -> rich.table.Table:
    def right(count: OutputCount) -> float | None:
        return certificate.accuracy.get(count.name, {}).get("tflite")

    four = digits(".4g")
    columns: list[Column[OutputCount]] = [
        Column("output", lambda count: count.name, wrap="fold"),
        Column("right", right, shown_share, number=True),
        Column("same class", lambda count: count.agreement, shown_share, number=True),
        Column("mean difference", lambda count: count.mean_difference, four, number=True),
        Column("largest", lambda count: count.largest_difference, four, number=True),
    ]
    return Table(columns=columns, rows=certificate.runtimes["xnnpack"].outputs).to_rich()


def _print_differing(certificate: Certificate, console: Console) -> None:
    counts = {
        runtime: {tensor.name: tensor.codes_differing for tensor in count.tensors}
        for runtime, count in certificate.runtimes.items()
    }
    names = [
        tensor.name
        for tensor in certificate.codes
        if any(found[tensor.name] for found in counts.values())
    ]
    if not names:
        return
    columns: list[Column[str]] = [
        Column("tensor", lambda name: name, wrap="fold"),
        *(
            Column(runtime, found.__getitem__, digits(","), number=True)
            for runtime, found in counts.items()
        ),
    ]
    table = Table(columns=columns, rows=names[:_MOST_TENSORS_LISTED])
    console.print(table.to_rich(title="Codes that differ", title_justify="left"))
    hidden = len(names) - _MOST_TENSORS_LISTED
    if hidden > 0:
        console.print(f"and {hidden} more tensors; the certificate has all", highlight=False)
