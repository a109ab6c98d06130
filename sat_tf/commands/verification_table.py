"""The result of a verification: tables on the screen, and whether the command has failed."""

from rich.console import Console
from rich.text import Text

from sat_tf.exact.certificate import rules
from sat_tf.exact.certificate.certificate import Certificate, codes_differing, runtime_table
from sat_tf.messages import in_one_line, say
from sat_tf.messages.tables import Column, Marked, Table, digits, marked_text

_MOST_TENSORS_LISTED = 10


def conclude(subject: object, headline: Marked | None, console: Console) -> bool:
    """Ends a command that has a headline, such as that of a certificate, with a line if it is red.

    All commands that end in a certificate, or judge one, have their exit status from here: False,
    for a red headline, becomes 1 in `sat_tf.commands.main`.
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
    if float_values := rules.float_values(certificate):
        verdict.append(f"; {float_values}")
    say(console, verdict)
    for statement in certificate.statements:
        say(console, marked_text(statement))
    if certificate.top1:
        say(console, f"top-1: {rules.sentence('top1', certificate)}")
    console.print(runtime_table(certificate).to_rich())
    counts = codes_differing(certificate)
    names = [
        tensor.name
        for tensor in certificate.codes
        if any(by_tensor[tensor.name] for by_tensor in counts.values())
    ]
    if not names:
        return
    columns: list[Column[str]] = [
        Column("tensor", str, wrap="fold"),
        *(Column(name, counts[name].__getitem__, digits(","), number=True) for name in counts),
    ]
    table = Table(columns=columns, rows=names[:_MOST_TENSORS_LISTED])
    console.print(table.to_rich(title="Codes that differ", title_justify="left"))
    hidden = len(names) - _MOST_TENSORS_LISTED
    if hidden > 0:
        console.print(f"and {hidden} more tensors; the certificate has all", highlight=False)
