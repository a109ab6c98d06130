"""The result of a verification: tables on the screen, and whether the command has failed."""

import rich.table
from rich.console import Console
from rich.text import Text

from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.certificate.page import accuracy_column, difference_columns
from sat_tf.exact.certificate.runtimes import REFERENCE_TITLES, runtime_table
from sat_tf.messages import in_one_line, say
from sat_tf.presentation.tables import Column, Marked, Table, digits, marked_text

_MOST_TENSORS_LISTED = 10


def conclude(subject: object, headline: Marked | None, console: Console) -> bool:
    """Ends a command that has a headline, such as that of a certificate, with a line if it is red.

    All commands that end in a certificate, or judge one, have their exit status from here: of
    False, where it is red, `sat_tf.commands.main` makes 1.
    """
    if headline is None or headline.kind != "bad":
        return True
    say(console, in_one_line(f"{subject}: red: {headline.words}"), style="red")
    return False


def print_certificate(certificate: Certificate, path: str, console: Console) -> None:
    """Prints verdict and statements, a line for each runtime, and the tensors that differ."""
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
    for statement in certificate.statements:
        say(console, marked_text(statement))
    console.print(
        runtime_table(certificate.runtimes, certificate.reference, certificate.top1).to_rich()
    )
    if len(certificate.runtimes["xnnpack"].outputs) > 1:
        console.print(_outputs(certificate))
    _print_differing(certificate, console)


def _outputs(certificate: Certificate) -> rich.table.Table:
    counts = certificate.runtimes["xnnpack"].outputs
    columns: list[Column[int]] = [
        Column("output", lambda index: counts[index].name, wrap="fold"),
        accuracy_column(certificate, "tflite"),
        *difference_columns(REFERENCE_TITLES[certificate.reference], counts),
    ]
    return Table(columns=columns, rows=range(len(counts))).to_rich()


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
