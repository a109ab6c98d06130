"""The certificate as a page to read: one file, without scripts and without anything to load."""

import math
import os
import pathlib
from collections.abc import Iterable, Sequence

from sat_tf.atomic_file import check_writable, written_whole
from sat_tf.export.certificate.certificate import (
    Certificate,
    FloatNote,
    RuntimeCount,
    TensorCodes,
    TensorCount,
)
from sat_tf.presentation.page import facts, page, row, table, text

_HEIGHT = 24
_WIDTH = 128
# Between bars, of their distance; many codes are drawn without.
_GAP = 0.25
_MOST_WITH_GAPS = 32
_WIDEST_BAR = 8.0


def histogram(counts: Sequence[int], caption: str) -> str:
    """An SVG with a bar for every code, used or not; its colours are the page's.

    Heights are square roots of shares, as one code, often that of 0, has most of them. A code that
    occurs at all has a bar that can be seen, and one that does not has none.

    Args:
        counts: how often each code occurs.
        caption: what it shows, for who points at it and for who cannot see it.
    """
    pitch = _WIDTH / len(counts)
    width = min(pitch * (1.0 - _GAP), _WIDEST_BAR) if len(counts) <= _MOST_WITH_GAPS else pitch
    largest = max(counts, default=0)
    bars = []
    for index, count in enumerate(counts):
        if count:
            height = max(1.5, (_HEIGHT - 2) * math.sqrt(count / largest))
            left = index * pitch + (pitch - width) / 2
            bars.append(f"M{left:.4g} {_HEIGHT - 1}v-{height:.3g}h{width:.4g}v{height:.3g}z")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">'
        f"<title>{caption}</title>"
        f'<path d="M0 {_HEIGHT - 0.5}h{_WIDTH}" stroke="currentColor" opacity=".4"/>'
        f'<path d="{"".join(bars)}" fill="currentColor"/></svg>'
    )


RUNTIME_TITLES = {
    "xnnpack": "LiteRT with XNNPACK",
    "builtin": "LiteRT, builtin kernels",
    "reference": "LiteRT, reference kernels",
}

_MODELS = {
    "quantized": "Keras",
    "simulation": "simulation",
    "tflite": "LiteRT",
    "float": "float model",
}


def check_certificate_path(path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """Where a certificate and its page go: the page has the suffix .html.

    Raises:
        ValueError: they cannot be written there.
    """
    path = check_writable(path)
    beside = path.with_suffix(".html")
    if beside == path:
        raise ValueError(
            f"{path}: received the name of a page, expected that of a JSON file; the page goes "
            "beside it: end the name with .json."
        )
    return path, check_writable(beside)


def write_both(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Writes a certificate and, beside it, its page; each file appears whole, or not at all.

    Raises:
        ValueError: a path cannot be written.
    """
    path, beside = check_certificate_path(path)
    certificate.write(path)
    with written_whole(beside) as temporary:
        temporary.write_text(certificate_page(certificate), encoding="utf-8")


def certificate_page(certificate: Certificate) -> str:
    """HTML that shows all of a certificate."""
    return page(
        f"Certificate of {certificate.file}",
        [
            _verdict(certificate),
            float_notes(certificate.float_notes),
            _facts(certificate),
            *_outputs(certificate),
            "<h2>Runtimes</h2>",
            _runtimes(certificate),
            f"<p>{_ON_RUNTIMES}</p>",
            "<h2>Tensors</h2>",
            f"<p>{_CAPTION}</p>",
            _tensors(certificate),
        ],
    )


_ON_RUNTIMES = (
    "XNNPACK is what LiteRT uses by itself, and is held to be exact. The other kernels round twice "
    "where it rounds once: their differences are counted, not errors."
)
_CAPTION = (
    "Every integer tensor in the order in which it is computed. A histogram has a place for each "
    "code the tensor can have; the height of a bar is the square root of its share. Weights are "
    "shown without the factor that the export multiplies them by. A code that differs can change "
    "all that are computed from it."
)


def _verdict(certificate: Certificate) -> str:
    differing, compared = certificate.codes_differing, certificate.codes_compared
    kind = "bad" if differing else "good"
    lines = [
        f'<p class="verdict {kind}">{differing:,} of {compared:,} codes differ</p>',
        "<p>LiteRT with XNNPACK against the integer simulation of "
        + ("the trained model" if certificate.trained else "the file")
        + f", {len(certificate.codes)} tensors, {certificate.num_images:,} images "
        f"({text(certificate.images_from.description)}).",
    ]
    first = certificate.runtimes["xnnpack"].first_differing
    if first is not None:
        lines.append(f"The first tensor that differs is <b>{text(first)}</b>.")
    if certificate.trained:
        share = 100 * certificate.trained_differing
        lines.append(f"Of the codes that Keras itself computes, {share:.4f} % differ.")
    if certificate.float_verdict:
        lines.append(f"{certificate.float_verdict}.")
    return "\n".join(lines) + "</p>"


def float_notes(notes: Iterable[FloatNote]) -> str:
    """How the file and the float model part, in red where it is by more than a few points."""
    return "\n".join(
        f'<p><span class="{"bad" if note.is_bad else "good"}">Beside the float model: '
        f"{text(note.text)}</span></p>"
        for note in notes
    )


def _outputs(certificate: Certificate) -> list[str]:
    """A table of the outputs, where there is more to say than the table of runtimes does."""
    counts = certificate.runtimes["xnnpack"].outputs
    plain = all(count.places and len(count.shape) == 1 for count in counts)
    if not certificate.float_outputs and len(counts) < 2 and plain:
        return []
    models = [name for name in _MODELS if any(name in a for a in certificate.accuracy.values())]
    reference = "Keras" if certificate.reference == "keras" else "simulation"
    sides = {reference if reference == "Keras" else "the simulation": counts}
    if certificate.float_outputs:
        sides["the float model"] = certificate.float_outputs
    head = ["output", "shape", "classified"]
    numbers = [f"right, {_MODELS[name]}" for name in models]
    for side in sides:
        numbers += [f"same class as {side}", "mean difference", "largest difference"]
    numbers.append("standard deviation")
    rows = []
    for index, count in enumerate(counts):
        right = certificate.accuracy.get(count.name, {})
        cells = [_unbroken(percent(right.get(name))) for name in models]
        for of_side in sides.values():
            other = of_side[index]
            cells += [
                _unbroken(percent(other.agreement)),
                f"{other.mean_difference:.4g}",
                f"{other.largest_difference:.4g}",
            ]
        shape = "×".join(map(str, count.shape))
        named = [f"<b>{text(count.name)}</b>", shape, f"{count.places:,}" if count.places else "–"]
        rows.append(row(named, [*cells, f"{count.spread:.4g}"]))
    note = (
        "What LiteRT with XNNPACK gives, each output by itself. Classified are images, or the "
        "pixels, rows or boxes of them; where an output is a number and no class, only its values "
        "are compared."
    )
    return [
        "<h2>Outputs</h2>",
        f"<p>{note}</p>",
        table((*head, *numbers), rows, label="Outputs", right=len(numbers)),
    ]


def _unbroken(words: str) -> str:
    return words.replace(" ", "&nbsp;")


def percent(share: float | None) -> str:
    """A share in percent; a dash where there is none."""
    return "–" if share is None else f"{100 * share:.2f} %"


def _facts(certificate: Certificate) -> str:
    operators = ", ".join(f"{count} {name}" for name, count in certificate.operators.items())
    rows = {
        "File": f"{certificate.bytes:,} bytes, {certificate.gzip_bytes:,} after gzip",
        "SHA-256": certificate.sha256,
        "Model": certificate.model,
        "Operators": operators,
        "Float operators": ", ".join(certificate.float_operators) or "none",
        "Layers left float": ", ".join(certificate.islands),
        "SHA-256 of the images": certificate.images_sha256,
        "Top-1": ", ".join(
            f"{_MODELS.get(name, name)} {100 * share:.2f} %"
            for name, share in certificate.top1.items()
        ),
        "Versions": ", ".join(
            f"{name} {version}" for name, version in certificate.versions.items()
        ),
        "Notes": "; ".join(certificate.warnings),
    }
    return facts(rows)


def _runtimes(certificate: Certificate) -> str:
    head = (
        "runtime",
        "codes differing",
        "first tensor that differs",
        "top-1",
        f"classes of {'Keras' if certificate.reference == 'keras' else 'the simulation'}",
        "largest output difference",
        "operators in XNNPACK",
    )
    rows = [_runtime(name, count) for name, count in certificate.runtimes.items()]
    rows += [
        f'<tr><td>{RUNTIME_TITLES[name]}</td><td colspan="6">does not run the file: '
        f"{text(reason)}</td></tr>"
        for name, reason in certificate.refused.items()
    ]
    return table(head, rows, label="Runtimes")


def _runtime(name: str, count: RuntimeCount) -> str:
    delegation = count.delegation
    pieces = f"{delegation.delegated} of {delegation.operators} in {delegation.partitions}"
    cells = (
        RUNTIME_TITLES[name],
        f"{_count(name, count.codes_differing)} of {count.codes_compared:,}",
        text(count.first_differing or "none"),
        "" if count.top1 is None else f"{100 * count.top1:.2f} %",
        percent(count.agreement),
        f"{count.largest_output_difference:.4g}",
        f"{pieces} piece{'s' if delegation.partitions != 1 else ''}",
    )
    return row(cells)


def _tensors(certificate: Certificate) -> str:
    counts = {name: _by_name(count.tensors) for name, count in certificate.runtimes.items()}
    if certificate.trained:
        counts["Keras"] = _by_name(certificate.trained)
    head = ("tensor", "operator", "shape", "bits", "codes used", "", "weights used", "")
    numbers = tuple(f"differing, {name}" for name in counts)
    rows = []
    for tensor in certificate.codes:
        differing = [
            _count(name, found[tensor.name].codes_differing) if tensor.name in found else ""
            for name, found in counts.items()
        ]
        rows.append(row(_tensor(tensor), differing))
    return table((*head, *numbers), rows, label="Tensors", right=len(numbers))


def _tensor(tensor: TensorCodes) -> tuple[str, ...]:
    first = tensor.lowest - tensor.zero_point
    last = first + len(tensor.counts) - 1
    return (
        f"<b>{text(tensor.name)}</b>",
        text(tensor.operator.replace("_2D", "")),
        "×".join(map(str, tensor.shape)),
        str(tensor.bits),
        f"{tensor.codes_used} of {len(tensor.counts)}",
        histogram(tensor.counts, f"codes {first} to {last}"),
        str(len(tensor.weights) or ""),
        _weights(tensor.weights) if tensor.weights else "",
    )


def _weights(counts: dict[int, int]) -> str:
    lowest, highest = min(counts), max(counts)
    codes = sorted(counts)
    # The DoReFa grid has odd codes only.
    step = math.gcd(*(code - lowest for code in codes)) or 1
    places = [counts.get(code, 0) for code in range(lowest, highest + 1, step)]
    return histogram(places, f"weight codes {lowest} to {highest} in steps of {step}")


def _by_name(tensors: list[TensorCount]) -> dict[str, TensorCount]:
    return {tensor.name: tensor for tensor in tensors}


def _count(runtime: str, differing: int) -> str:
    """A number that is marked where it should be 0."""
    number = f"{differing:,}"
    return f'<span class="bad">{number}</span>' if differing and runtime == "xnnpack" else number
