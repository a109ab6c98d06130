"""Names that attack pages, terminals, tables and paths: of layers, models, classes, files, runs.

Whoever makes a model, a file or a folder of pictures chooses them. A case puts one such name in one
place, and runs commands that show it. Whether these take it or refuse it: a terminal is never told
what to do, no line is forged, a page has no element and no script that a name has made, no cell of
a table is a formula, and no file appears elsewhere.
"""

import csv
import functools
import html.parser
import io
import itertools
import json
import os
import pathlib
import random
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from tests.campaign import cases
from tests.campaign.cases import CLEAR, CONTROL, SOUND, FindingError, Verdict, findings_of
from tests.campaign.chains import begin, run
from tests.campaign.moments import LOG
from tests.campaign.mutation import archive, members_of
from tests.campaign.originals import FOREIGN, original
from tests.campaign.processes import TRIAL, Ended
from tests.export.damage import changed

FORGED = "error: forged"
NAMES = (
    # For pages.
    f'=1+1<script>document.title="hostile"</script>\x1b[2J\u202e\n{FORGED}',
    *('<script>document.title="hostile"</script>', '"><img src=x onerror=alert(1)><hostile>'),
    *("'--><svg onload=alert(1)><hostile></title></style>", "<!--<hostile>"),
    *("&lt;hostile&gt;<hostile>", "javascript:alert(1)", "{{ 7 * 7 }}{% include 'x' %}"),
    # For terminals and lines.
    *("\x1b[2J\x1b[31mred", "\x1b]0;hostile\x07", "\x9b2J\x84", "\x1b[1A\x1b[2K"),
    *(f"a\n{FORGED}", f"a\r{FORGED}", f"a\u2028{FORGED}\u2029", "\u202egnp.exe\u2066"),
    *("\u200f\u200ehidden", "[bold red]markup[/][link=http://hostile]x[/link]"),
    # For tables.
    *("=cmd|' /C calc'!A0", '=HYPERLINK("http://hostile","x")', "+1+1", "-2+3+cmd|' /C calc'!A0"),
    *("@SUM(1,2)", "\t=1+1", "\r=1+1", "a,b;c\"d'e", "a|b`c`*d*"),
    # For paths and formats.
    *("../../outside", "..", "../outside.html", "~/outside", "%s%n%(name)s{0}", "x" * 240),
    *(" ", "con"),
)


def play(seed: int, folder: pathlib.Path) -> Verdict:
    """Puts a name in a place, runs what shows it, and looks at all that is shown."""
    rng = random.Random(f"names {seed}")
    surface = sorted(SURFACES)[seed % len(SURFACES)]
    name = NAMES[seed // len(SURFACES) % len(NAMES)]
    place = begin(folder)
    about = f"{surface} {name!r}"
    (folder / "outside").mkdir()
    before = set(os.listdir(folder)) | {"out", "err", "tmp", LOG}
    taken = False
    with findings_of(about):
        for words in SURFACES[surface](name, place, rng):
            ended = run(words, place)
            _expect_nothing_told(ended)
            taken |= ended.status != 2
        there = {name for name in os.listdir(folder) if not name.startswith(TRIAL)}
        if new := sorted({*there, *os.listdir(folder / "outside")} - before):
            raise FindingError("left-over", f"outside its folder: {new}")
        for path in sorted(place.rglob("*")):
            check = _CHECKS.get(path.suffix)
            if check and path.is_file() and (wrong := check(path.read_text("utf-8"))):
                raise FindingError("unclear", f"{path.relative_to(place)}: {wrong}")
    return Verdict(SOUND if taken else CLEAR, about)


# How a cell begins that a spreadsheet takes for a formula, unless it is a number.
_FORMULA = re.compile(r"\s*[=+\-@\t\r]")
# These elements, and those with these attributes, would load or run something.
_RUNNING = ("hostile", "script", "iframe", "object", "embed", "link", "base", "meta-refresh")
_LOADING = ("src", "href", "action", "data", "xlink:href")


def _expect_nothing_told(ended: Ended) -> None:
    """Raises the finding of what a command has printed."""
    cases.expect_an_end(ended, most_seconds=60)
    said = ended.out + ended.err
    if ended.status not in (0, 1, 2):
        raise FindingError("crash", f"status {ended.status}: {ended.err[-500:]}")
    if found := CONTROL.search(said):
        raise FindingError("unclear", f"the control character {found[0]!r}: {said[-700:]!r}")
    if any(line.lstrip(" │").startswith(FORGED) for line in said.splitlines()):
        raise FindingError("unclear", f"a forged line: {said[-700:]!r}")
    if len(ended.err) > cases.LONGEST_MESSAGE and ended.status == 2:
        raise FindingError("unclear", f"{len(ended.err)} characters")


class _Page(html.parser.HTMLParser):
    """Collects what a name can have made of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _RUNNING:
            self.problems.append(f"the element {tag}")
        for key, value in attrs:
            if key.startswith("on"):
                self.problems.append(f"the attribute {key} of {tag}")
            is_inside = re.match(r"#|data:image/|[a-z]+\.(html|json|tflite)$", value or "")
            if key in _LOADING and not is_inside:
                self.problems.append(f"{tag} with {key}={value!r}")

    def handle_data(self, data: str) -> None:
        if CONTROL.search(data):
            self.problems.append(f"a control character in {data[:50]!r}")


def _wrong_page(text: str) -> str | None:
    page = _Page()
    page.feed(text)
    page.close()
    return "; ".join(page.problems[:3]) or None


def _wrong_table(text: str) -> str | None:
    for cell in itertools.chain.from_iterable(csv.reader(io.StringIO(text))):
        if len(cell) > 1 and _FORMULA.match(cell):
            try:
                is_number = not cell[0].isspace() and float(cell) is not None
            except ValueError:
                is_number = False
            if not is_number:
                return f"a formula: {cell[:80]!r}"
    return None


_CHECKS: dict[str, Callable[[str], str | None]] = {
    ".html": _wrong_page,
    ".svg": _wrong_page,
    ".csv": _wrong_table,
}

Words = Sequence[str]
_OUTS = ("--out", "plan.html", "--out", "plan.csv", "--out", "plan.json")
_RANGE = ("--input_range", "0,255")
_PICTURES = (*_RANGE, "--images", "pictures", "--out", "done")


def _renamed(value: Any, old: str, new: str) -> Any:
    """JSON with a word replaced wherever it stands alone."""
    if isinstance(value, dict):
        return {_renamed(k, old, new): _renamed(v, old, new) for k, v in value.items()}
    if isinstance(value, list):
        return [_renamed(one, old, new) for one in value]
    return new if value == old else value


def _in_model(model: str, name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    """A layer, or the model, has the name."""
    members = members_of(original(model).read_bytes())
    old = rng.choice(("conv", "relu", "head", json.loads(members["config.json"])["config"]["name"]))
    config = _renamed(json.loads(members["config.json"]), old, name)
    members["config.json"] = json.dumps(config).encode("utf-8", "replace")
    (place / model).write_bytes(archive(members.items()))
    return [
        ("explain", model, *_RANGE, *_OUTS),
        ("audit", model, "--out", "audit.html", "--out", "audit.csv"),
        ("quantize", model, *_PICTURES),
        ("export", "done/quantized.keras", "--dry_run"),
        ("verify", "done/quantized.keras", "done/model.tflite", "--out", "proof"),
    ]


def _of_class(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    _moved(place / "classes" / "class_1", name)
    return [
        ("quantize", "float.keras", *_RANGE, "--images", "classes", "--out", "done"),
        ("verify", "done/model.tflite", "--images", "classes", "--out", "proof"),
        ("evaluate", "done/model.tflite", "--images", "classes"),
    ]


def _of_picture(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    _moved(place / "pictures" / "a.png", f"{name}.png")
    (place / "pictures" / "b.png").write_bytes(b"no picture")
    _moved(place / "pictures" / "b.png", f"{name}2.png")
    return [
        ("quantize", "float.keras", *_PICTURES),
        ("verify", "done/model.tflite", "--images", "pictures", "--out", "proof"),
    ]


def _of_file(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    shutil.copy(place / "float.keras", place / "inner.keras")
    model = _moved(place / "inner.keras", f"{name}.keras")
    return [
        ("explain", f"./{model.name}", *_RANGE, "--out", "plan.html", "--out", "plan.csv"),
        ("quantize", f"./{model.name}", *_RANGE, "--images", "pictures"),
        ("verify", f"./{model.name}", "float.keras"),
        ("explain", f"./{name}"),
    ]


def _of_run(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    path = place / "run.yaml"
    path.write_text(path.read_text().replace("name: tiny", f"name: {json.dumps(name)}"))
    train = ("train", "--config", "run.yaml")
    return [
        train,
        (*train, "--set", f"name={name}", "--out", f"./{name.replace('/', '_')}"),
        (*train, "--set", "name=x", "--set", f"model.name={name}"),
        (*train, "--set", "name=x", "--set", f"{name}=1"),
    ]


def _of_label(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    labels = ["one", name.replace("\n", " ").replace("\r", " "), "three"]
    (place / "labels.txt").write_text("\n".join(labels), "utf-8", newline="\n")
    return [
        ("export", "quantized.keras", "--labels", "labels.txt", "--out", "own.tflite"),
        ("verify", "own.tflite", "--images", "classes", "--out", "proof"),
        ("evaluate", "own.tflite", "--images", "classes"),
    ]


def _in_certificate(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    """A certificate has the name of a model, a file, a warning, a version, a tensor."""
    first = ("verify", "model.tflite", "--images", "pictures", "--out", "proof")
    run(first, place)
    path = place / "proof" / "certificate.json"
    found = json.loads(path.read_text())
    images = {**found["images_from"], "what": name, "files": {name: name}}
    others = (
        *({"model": name}, {"file": name}, {"sha256": name}, {"warnings": [name]}),
        *({"versions": {name: name}}, {"images_from": images}),
        _renamed(found, found["codes"][0]["name"], name),
    )
    path.write_text(json.dumps({**found, **rng.choice(others)}))
    again = ("verify", "model.tflite", "--certificate", "proof/certificate.json", "--out", "again")
    return [(*again, "--images", "pictures"), again]


def _of_tensor(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    """A file that another tool wrote has a tensor and a description of that name."""
    content, hostile = (
        (FOREIGN / "converter_uint8.tflite").read_bytes(),
        name.encode("utf-8", "replace"),
    )

    def rename(model: Any, graph: Any) -> None:
        model.description = hostile
        for tensor in graph.tensors[:: rng.choice((1, 2))]:
            tensor.name = hostile

    (place / "foreign.tflite").write_bytes(changed(content, rename))
    return [
        ("verify", "foreign.tflite", "--out", "proof"),
        ("verify", "foreign.tflite", "--target", "ethos-u55"),
    ]


def _moved(path: pathlib.Path, name: str) -> pathlib.Path:
    """A file or a folder under another name, as far as the file system takes it."""
    name = name.replace("/", "_").encode("utf-8", "replace").decode()[:250]
    if name.strip(".") == "" or not name.strip():
        name = f"{name}x"
    return path.rename(path.with_name(name))


SURFACES: dict[str, Callable[[str, pathlib.Path, random.Random], list[Words]]] = {
    "model": functools.partial(_in_model, "float.keras"),
    "model of Keras 3": functools.partial(_in_model, "keras3.keras"),
    "class": _of_class,
    "picture": _of_picture,
    "file": _of_file,
    "run": _of_run,
    "label": _of_label,
    "certificate": _in_certificate,
    "tensor": _of_tensor,
}
