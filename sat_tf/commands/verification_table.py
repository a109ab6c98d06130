"""What a verification found, as tables on the screen."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sat_tf.export.certificate.certificate import Certificate, RuntimeCount
from sat_tf.export.certificate.page import RUNTIME_TITLES, percent

_MOST_TENSORS_LISTED = 10


def print_certificate(certificate: Certificate, path: str, console: Console) -> None:
    """Prints the verdict, a line for each runtime, and the tensors that differ."""
    colour = "red" if certificate.codes_differing else "green"
    verdict = Text.assemble(
        f"{path}: ",
        (
            f"{certificate.codes_differing:,} of {certificate.codes_compared:,} codes differ",
            colour,
        ),
        f" ({certificate.num_images:,} images, {len(certificate.codes)} tensors)",
    )
    if certificate.trained:
        verdict.append(f"; of the trained model's own, {100 * certificate.trained_differing:.4f} %")
    if certificate.float_verdict:
        verdict.append(f"; {certificate.float_verdict}")
    console.print(verdict, highlight=False, soft_wrap=True)
    for note in certificate.float_notes:
        console.print(
            f"Beside the float model: {note.text}",
            style="red" if note.is_bad else None,
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    console.print(_runtimes(certificate))
    if len(certificate.runtimes["xnnpack"].outputs) > 1:
        console.print(_outputs(certificate))
    for name, reason in certificate.refused.items():
        console.print(
            f"{RUNTIME_TITLES[name]} does not run the file: {reason}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    _print_differing(certificate, console)


def _runtimes(certificate: Certificate) -> Table:
    reference = "Keras" if certificate.reference == "keras" else "simulation"
    table = Table()
    table.add_column("runtime")
    table.add_column("codes differing", justify="right")
    table.add_column("first that differs", overflow="fold")
    table.add_column("top-1", justify="right")
    table.add_column(f"classes of {reference}", justify="right")
    table.add_column("worst output", justify="right")
    for name, count in certificate.runtimes.items():
        table.add_row(name, *_cells(count))
    if certificate.top1:
        names = {"quantized": "Keras", "simulation": "simulation", "float": "float model"}
        for name, title in names.items():
            if name in certificate.top1:
                table.add_row(title, "", "", f"{100 * certificate.top1[name]:.2f} %", "", "")
    return table


def _outputs(certificate: Certificate) -> Table:
    table = Table()
    table.add_column("output", overflow="fold")
    for title in ("right", "same class", "mean difference", "largest"):
        table.add_column(title, justify="right")
    for count in certificate.runtimes["xnnpack"].outputs:
        table.add_row(
            Text(count.name),
            percent(certificate.accuracy.get(count.name, {}).get("tflite")),
            percent(count.agreement),
            f"{count.mean_difference:.4g}",
            f"{count.largest_difference:.4g}",
        )
    return table


def _cells(count: RuntimeCount) -> tuple[Text | str, ...]:
    differing = count.codes_differing
    return (
        Text(f"{differing:,} of {count.codes_compared:,}", "red" if differing else "green"),
        Text(count.first_differing or "none"),
        "" if count.top1 is None else f"{100 * count.top1:.2f} %",
        percent(count.agreement),
        f"{count.largest_output_difference:.4g}",
    )


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
    table = Table(title="Codes that differ", title_justify="left")
    table.add_column("tensor", overflow="fold")
    for runtime in counts:
        table.add_column(runtime, justify="right")
    for name in names[:_MOST_TENSORS_LISTED]:
        table.add_row(Text(name), *(f"{found[name]:,}" for found in counts.values()))
    console.print(table)
    hidden = len(names) - _MOST_TENSORS_LISTED
    if hidden > 0:
        console.print(f"and {hidden} more tensors; the certificate has all", highlight=False)
