"""The last lines of `sat-tf quantize`: accuracy, size, verdict, what to do next, and the files."""

from rich.console import Console
from rich.text import Text

from sat_tf import output_folder
from sat_tf.export.certificate.certificate import Certificate, read_certificate
from sat_tf.messages import say
from sat_tf.output_folder import OutputFolder
from sat_tf.presentation.tables import Marked, marked_text, points
from sat_tf.report.results import Results

# A network that is not trained loses accuracy with fewer bits.
_FEWEST_WITHOUT_TRAINING = 7
# A smaller loss of top-1 is no reason to train.
_SMALL_LOSS = 0.005
_LABEL_WIDTH = 10


def print_ending(bits: int, folder: OutputFolder, why_not: str, console: Console) -> None:
    """Prints the lines; nothing where the folder has no file yet."""
    from sat_tf.report.report import headline_of

    if not folder.file(output_folder.CERTIFICATE).exists():
        return
    certificate = read_certificate(folder.file(output_folder.CERTIFICATE))
    has_results = folder.file(output_folder.RESULTS).exists()
    results = Results.read(folder) if has_results else None
    model, *others = (
        folder.file(name)
        for name in (
            output_folder.TFLITE_MODEL,
            output_folder.CERTIFICATE_PAGE,
            output_folder.REPORT,
            output_folder.QUANTIZED_MODEL,
        )
        if folder.file(name).exists()
    )
    headline = headline_of(folder) or certificate.verdict
    files = f"{model} for the device; beside it {', '.join(one.name for one in others)}"
    # Without labels nothing tells which answers are right.
    is_measured = results is not None and results.gained is not None
    lines: dict[str, str | Marked] = {
        "Accuracy" if is_measured else "Answers": accuracy(certificate, results),
        "Size": f"{certificate.bytes:,} bytes, {certificate.gzip_bytes:,} after gzip",
        "Proof": headline,
        "Next": next_step(bits, headline, results, why_not, is_exact=certificate.is_exact),
        "Files": files,
    }
    for label, words in lines.items():
        say(console, Text.assemble(f"{label + ':':{_LABEL_WIDTH}}", marked_text(words)))


def accuracy(certificate: Certificate, results: Results | None) -> str:
    """The accuracy of the file beside that of the float model, or how near their outputs are."""
    if results is not None and results.shipped is not None and results.float_top1 is not None:
        top1, float_top1 = results.shipped.share, results.float_top1
        return (
            f"{100 * top1:.2f} % of {results.held_out_images:,} held-out pictures right, the "
            f"float model {100 * float_top1:.2f} % ({points(top1 - float_top1)} points)"
        )
    notes = [
        note.words.removeprefix("Beside the float model: ") for note in certificate.float_notes
    ]
    return "; ".join(notes) or "not measured"


def next_step(
    bits: int, headline: Marked, results: Results | None, why_not: str, *, is_exact: bool = True
) -> str:
    """What to do with the file, or to get a better one.

    Args:
        bits: of weights and activations.
        headline: the verdict on the file.
        results: what was measured; None where nothing was.
        why_not: why the pictures cannot be trained on; empty where they can.
        is_exact: the file computes what the quantized model does.
    """
    ready = f"build {output_folder.TFLITE_MODEL} into the app"
    if headline.kind == "bad":
        ready = f"do not ship it; {output_folder.CERTIFICATE_PAGE} says where it goes wrong"
        if not is_exact:
            return ready
    is_trained = results is not None and results.learning_rate is not None
    gained = None if results is None else results.gained
    if gained is None:
        if is_trained or bits >= _FEWEST_WITHOUT_TRAINING:
            return ready
        trains = "" if why_not else "; --epochs 5 trains, also without labels"
        return (
            f"{bits} bits without training can cost accuracy; with pictures in folders of the "
            f"model's classes, or --labels of an .npy file, it is measured{trains}"
        )
    if gained >= -_SMALL_LOSS:
        return ready
    if is_trained:
        how = "after training"
        fix = (
            "more epochs and more bits cost less, and sat-tf sensitivity names the layers to blame"
        )
    elif why_not:
        how = "without training"
        fix = f"--epochs refuses {why_not}, " + (
            "more bits cost less" if bits < 8 else "sat-tf sensitivity names the layers to blame"
        )
    else:
        how, fix = "without training", "--epochs 5 trains"
    return f"{bits} bits {how} cost {-100 * gained:.2f} points of top-1; {fix}"
