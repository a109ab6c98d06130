"""The certificate as a page to read: one file, without scripts and without anything to load."""

import html
import math
import os
import pathlib
from collections.abc import Iterable

from sat_tf.export.certificate import Certificate, RuntimeCount, TensorCodes, TensorCount
from sat_tf.export.histogram import histogram
from sat_tf.wholefile import check_writable, written_whole

RUNTIME_TITLES = {
    "xnnpack": "LiteRT with XNNPACK",
    "builtin": "LiteRT, builtin kernels",
    "reference": "LiteRT, reference kernels",
}


def check_certificate_path(path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """Where a certificate and its page go: the page has the suffix .html.

    Raises:
        ValueError: they cannot be written there.
    """
    path = check_writable(path)
    page = path.with_suffix(".html")
    if page == path:
        raise ValueError(
            f"{path}: received the name of a page, expected that of a JSON file; the page goes "
            "beside it: end the name with .json."
        )
    return path, check_writable(page)


def write_both(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Writes a certificate and, beside it, its page; each file appears whole, or not at all.

    Raises:
        ValueError: a path cannot be written.
    """
    path, page = check_certificate_path(path)
    certificate.write(path)
    with written_whole(page) as temporary:
        temporary.write_text(certificate_page(certificate), encoding="utf-8")


def certificate_page(certificate: Certificate) -> str:
    """HTML that shows all of a certificate."""
    title = f"Certificate of {_text(certificate.file)}"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
            f"<h1>{title}</h1>",
            _verdict(certificate),
            _facts(certificate),
            "<h2>Runtimes</h2>",
            _runtimes(certificate),
            f"<p>{_ON_RUNTIMES}</p>",
            "<h2>Tensors</h2>",
            f"<p>{_CAPTION}</p>",
            _tensors(certificate),
            "</main>\n</body>\n</html>\n",
        ]
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
        f"({_text(certificate.images_from.description)}).",
    ]
    first = certificate.runtimes["xnnpack"].first_differing
    if first is not None:
        lines.append(f"The first tensor that differs is <b>{_text(first)}</b>.")
    if certificate.trained:
        share = 100 * certificate.trained_differing
        lines.append(f"Of the codes that Keras itself computes, {share:.4f} % differ.")
    if certificate.float_verdict:
        lines.append(f"{certificate.float_verdict}.")
    return "\n".join(lines) + "</p>"


def _facts(certificate: Certificate) -> str:
    operators = ", ".join(f"{count} {name}" for name, count in certificate.operators.items())
    names = {"quantized": "Keras", "simulation": "simulation", "tflite": "LiteRT"}
    rows = {
        "File": f"{certificate.bytes:,} bytes, {certificate.gzip_bytes:,} after gzip",
        "SHA-256": certificate.sha256,
        "Model": certificate.model,
        "Operators": operators,
        "Float operators": ", ".join(certificate.float_operators) or "none",
        "Layers left float": ", ".join(certificate.islands),
        "SHA-256 of the images": certificate.images_sha256,
        "Top-1": ", ".join(
            f"{names.get(name, name)} {100 * share:.2f} %"
            for name, share in certificate.top1.items()
        ),
        "Versions": ", ".join(
            f"{name} {version}" for name, version in certificate.versions.items()
        ),
        "Notes": "; ".join(certificate.warnings),
    }
    lines = [f"<dt>{name}</dt><dd>{_text(text)}</dd>" for name, text in rows.items() if text]
    return "\n".join(["<dl>", *lines, "</dl>"])


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
        f"{_text(reason)}</td></tr>"
        for name, reason in certificate.refused.items()
    ]
    return _table(head, rows)


def _runtime(name: str, count: RuntimeCount) -> str:
    delegation = count.delegation
    pieces = f"{delegation.delegated} of {delegation.operators} in {delegation.partitions}"
    cells = (
        RUNTIME_TITLES[name],
        f"{_count(name, count.codes_differing)} of {count.codes_compared:,}",
        _text(count.first_differing or "none"),
        "" if count.top1 is None else f"{100 * count.top1:.2f} %",
        f"{100 * count.agreement:.2f} %",
        f"{count.largest_output_difference:.4g}",
        f"{pieces} piece{'s' if delegation.partitions != 1 else ''}",
    )
    return _row(cells)


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
        rows.append(_row(_tensor(tensor), differing))
    return _table((*head, *numbers), rows, right=len(numbers))


def _tensor(tensor: TensorCodes) -> tuple[str, ...]:
    first = tensor.lowest - tensor.zero_point
    last = first + len(tensor.counts) - 1
    return (
        f"<b>{_text(tensor.name)}</b>",
        _text(tensor.operator.replace("_2D", "")),
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
    text = f"{differing:,}"
    return f'<span class="bad">{text}</span>' if differing and runtime == "xnnpack" else text


def _table(head: tuple[str, ...], rows: Iterable[str], right: int = 0) -> str:
    """A table whose last so many columns are numbers."""
    left = len(head) - right
    names = "".join(
        f"<th>{name}</th>" if index < left else f'<th class="number">{name}</th>'
        for index, name in enumerate(head)
    )
    body = "\n".join(rows)
    return (
        f'<div class="wide"><table>\n<thead><tr>{names}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _row(cells: Iterable[str], numbers: Iterable[str] = ()) -> str:
    left = "".join(f"<td>{cell}</td>" for cell in cells)
    right = "".join(f'<td class="number">{number}</td>' for number in numbers)
    return f"<tr>{left}{right}</tr>"


def _text(text: str) -> str:
    return html.escape(text)


_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --paper: #fff; --soft: #667; --line: #d9dce1;
  --bars: #2f6fb0; --good: #137a3d; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6e9; --paper: #16181b; --soft: #9aa3ad;
  --line: #363b41; --bars: #7db4ea; --good: #5fce8b; --bad: #ff8a80; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
main { max-width: 84rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.1rem; margin: 0; } h2 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .3rem 0; }
.verdict { font-size: 2rem; font-weight: 650; } .good { color: var(--good); }
.bad { color: var(--bad); font-weight: 650; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0 0; }
dt, th { color: var(--soft); font-weight: 500; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .12rem .7rem .12rem 0; border-bottom: 1px solid var(--line);
  vertical-align: middle; }
th { font-size: .85em; vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
svg { display: block; color: var(--bars); } .number { text-align: right; }
@page { size: A4 landscape; margin: 10mm; }
@media print { :root { --ink: #000; --paper: #fff; --soft: #555; --line: #bbb; --bars: #2f6fb0;
  --good: #137a3d; --bad: #b3261e; } body { font-size: 8.5px; }
  main { padding: 0; max-width: none; } svg { height: 12px; width: 90px; }
  .wide { overflow: visible; } thead { display: table-header-group; } tr { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
