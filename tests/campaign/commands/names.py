"""Names that attack pages, terminals, tables and paths: of layers, models, classes, files, runs.

Whoever makes a model, a file or a folder of pictures chooses them. A case puts one such name in one
place, and runs commands that show it. Whether these take it or refuse it: a terminal is never told
what to do, no line is forged, a page has no element and no script that a name has made, no cell of
a table is a formula, and no file appears elsewhere.
"""

import csv
import html.parser
import io
import json
import os
import pathlib
import random
import re
import shutil
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

from tests.campaign.commands.chains import begin, run
from tests.campaign.commands.moments import LOG
from tests.campaign.processes import TRIAL, Ended, server
from tests.campaign.verdicts import CLEAR, SOUND, Verdict, judge_process

FORGED = "error: forged"
NAMES = (
    f'=1+1<script>document.title="hostile"</script>\x1b[2J\u202e\n{FORGED}',
    '<script>document.title="hostile"</script>',
    '"><img src=x onerror=alert(1)><hostile>',
    "'--><svg onload=alert(1)><hostile></title></style>",
    "<!--<hostile>",
    "&lt;hostile&gt;<hostile>",
    "javascript:alert(1)",
    "\x1b[2J\x1b[31mred",
    "\x1b]0;hostile\x07",
    "\x9b2J\x84",
    "\x1b[1A\x1b[2K",
    f"a\n{FORGED}",
    f"a\r{FORGED}",
    f"a\u2028{FORGED}\u2029",
    "=cmd|' /C calc'!A0",
    '=HYPERLINK("http://hostile","x")',
    "+1+1",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1,2)",
    "\t=1+1",
    "\r=1+1",
    "../../outside",
    "..",
    "../outside.html",
    "~/outside",
    "\u202egnp.exe\u2066",
    "\u200f\u200ehidden",
    "[bold red]markup[/][link=http://hostile]x[/link]",
    "{{ 7 * 7 }}{% include 'x' %}",
    "%s%n%(name)s{0}",
    "x" * 240,
    "a,b;c\"d'e",
    "a|b`c`*d*",
    " ",
    "con",
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
    commands, taken = SURFACES[surface](name, place, rng), 0
    for words in commands:
        ended = run(words, place)
        if found := judge_process(ended, most_seconds=60):
            return Verdict(found.name, f"{about}: {found.text}")
        if ended.status not in (0, 1, 2):
            return Verdict("crash", f"{about}: status {ended.status}: {ended.err[-500:]}")
        taken += ended.status != 2
        if wrong := _wrong_text(ended):
            said = (ended.out + ended.err)[-700:]
            return Verdict("unclear", f"{about}: {words[0]}: {wrong}: {said!r}")
        if len(ended.err) > 2000 and ended.status == 2:
            return Verdict("unclear", f"{about}: {words[0]}: {len(ended.err)} characters")
    there = {name for name in os.listdir(folder) if not name.startswith(TRIAL)}
    if new := sorted({*there, *os.listdir(folder / "outside")} - before):
        return Verdict("left-over", f"{about}: outside its folder: {new}")
    for path in sorted(place.rglob("*")):
        check = _CHECKS.get(path.suffix)
        if check and path.is_file() and (wrong := check(path.read_text("utf-8"))):
            return Verdict("unclear", f"{about}: {path.relative_to(place)}: {wrong}")
    return Verdict(SOUND if taken else CLEAR, about)


# -- what is looked at -----------------------------------------------------------------------------

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# How a cell begins that a spreadsheet takes for a formula, unless it is a number.
_FORMULA = re.compile(r"\s*[=+\-@\t\r]")
# Elements with these would load or run something.
_LOADING = ("src", "href", "action", "data", "xlink:href", "style")


def _wrong_text(ended: Ended) -> str | None:
    """Says what is wrong with what a command has printed; None where nothing is."""
    said = ended.out + ended.err
    if found := _CONTROL.search(said):
        return f"the control character {found[0]!r}"
    if any(line.lstrip(" │").startswith(FORGED) for line in said.splitlines()):
        return "a forged line"
    return None


class _Page(html.parser.HTMLParser):
    """Collects what a name can have made of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("hostile", "iframe", "object", "embed", "link", "base", "meta-refresh"):
            self.problems.append(f"the element {tag}")
        for key, value in attrs:
            if key.startswith("on"):
                self.problems.append(f"the attribute {key} of {tag}")
            is_inside = re.match(r"#|data:image/|[a-z]+\.(html|json|tflite)$", value or "")
            if key in _LOADING and key != "style" and not is_inside:
                self.problems.append(f"{tag} with {key}={value!r}")
        if tag == "script":
            self._in_script = True
            self.problems.append("a script that is not ours")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_script = False

    def handle_data(self, data: str) -> None:
        if not self._in_script and _CONTROL.search(data):
            self.problems.append(f"a control character in {data[:50]!r}")


def _wrong_page(text: str) -> str | None:
    page = _Page()
    page.feed(text)
    page.close()
    return "; ".join(page.problems[:3]) or None


def _wrong_table(text: str) -> str | None:
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            if len(cell) > 1 and _FORMULA.match(cell) and not _is_number(cell):
                return f"a formula: {cell[:80]!r}"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text[0].isspace()


_CHECKS: dict[str, Callable[[str], str | None]] = {
    ".html": _wrong_page,
    ".svg": _wrong_page,
    ".csv": _wrong_table,
}


# -- where a name is put ---------------------------------------------------------------------------

Words = Sequence[str]
_OUTS = ("--out", "plan.html", "--out", "plan.csv", "--out", "plan.json")
_RANGE = ("--input_range", "0,255")


def _renamed(value: Any, old: str, new: str) -> Any:
    """JSON with a word replaced wherever it stands alone."""
    if isinstance(value, dict):
        return {_renamed(k, old, new): _renamed(v, old, new) for k, v in value.items()}
    if isinstance(value, list):
        return [_renamed(one, old, new) for one in value]
    return new if value == old else value


def _with_name(path: pathlib.Path, old: str, new: str) -> None:
    """Renames a layer, or the model, in a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = _renamed(json.loads(members["config.json"]), old, new)
    members["config.json"] = json.dumps(config).encode("utf-8", "replace")
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def _of_layer(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    _with_name(place / "float.keras", rng.choice(("stem", "stem_relu", "classifier")), name)
    return [
        ("explain", "float.keras", *_RANGE, *_OUTS),
        ("audit", "float.keras", "--out", "audit.html", "--out", "audit.csv"),
        ("quantize", "float.keras", *_RANGE, "--images", "pictures", "--out", "done"),
        ("export", "done/quantized.keras", "--dry_run"),
        ("verify", "done/quantized.keras", "done/model.tflite", "--out", "proof"),
    ]


def _of_model(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    _with_name(place / "float.keras", "small", name)
    return _of_layer("stem", place, rng)


def _of_keras3(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    server("tensorflow").call(f"{__name__}:write_keras3", name, cwd=place)
    return [
        ("explain", "keras3.keras", *_RANGE, *_OUTS),
        ("quantize", "keras3.keras", *_RANGE, "--images", "pictures", "--out", "done"),
    ]


def write_keras3(name: str) -> None:
    """Saves a model of Keras 3 with a layer of this name; called in the child of a server."""
    import keras  # noqa: TID251

    image = keras.Input((8, 8, 3), name="image")
    tensor = keras.layers.Conv2D(4, 3, name="stem")(image)
    tensor = keras.layers.ReLU(name="relu")(tensor)
    tensor = keras.layers.GlobalAveragePooling2D(name="pool")(tensor)
    model = keras.Model(image, keras.layers.Dense(3, name="head")(tensor), name="small")
    model.save("keras3.keras")
    _with_name(pathlib.Path("keras3.keras"), "stem", name)


def _of_class(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    _moved(place / "classes" / "class_1", name)
    return [
        ("quantize", "float.keras", *_RANGE, "--images", "classes", "--out", "done"),
        ("verify", "done/model.tflite", "--images", "classes", "--out", "proof"),
        ("evaluate", "done/model.tflite", "--images", "classes"),
    ]


def _of_picture(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    _moved(place / "pictures" / "00.png", f"{name}.png")
    (place / "pictures" / "01.png").write_bytes(b"no picture")
    _moved(place / "pictures" / "01.png", f"{name}2.png")
    return [
        ("quantize", "float.keras", *_RANGE, "--images", "pictures", "--out", "done"),
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
    path = place / "tiny.yaml"
    path.write_text(path.read_text().replace("name: tiny", f"name: {json.dumps(name)}"))
    folder = name.replace("/", "_")
    return [
        ("train", "--config", "tiny.yaml"),
        ("train", "--config", "tiny.yaml", "--set", f"name={name}", "--out", f"./{folder}"),
        ("train", "--config", "tiny.yaml", "--set", "name=x", "--set", f"model.name={name}"),
        ("train", "--config", "tiny.yaml", "--set", "name=x", "--set", f"{name}=1"),
    ]


def _of_label(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    labels = ["one", name.replace("\n", " ").replace("\r", " "), "three"]
    (place / "labels.txt").write_text("\n".join(labels), "utf-8", newline="\n")
    return [
        ("export", "quantized.keras", "--labels", "labels.txt", "--out", "own.tflite"),
        ("verify", "own.tflite", "--images", "classes", "--out", "proof"),
        ("evaluate", "own.tflite", "--images", "classes"),
    ]


def _of_certificate(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    first = ("verify", "own.tflite", "--images", "pictures", "--out", "proof")
    for words in (("export", "quantized.keras", "--out", "own.tflite"), first):
        run(words, place)
    path = place / "proof" / "certificate.json"
    found = json.loads(path.read_text())
    place_of = rng.choice(("model", "file", "sha256", "images", "warnings", "versions", "tensors"))
    if place_of == "images":
        found["images_from"] = {**found["images_from"], "what": name, "files": {name: name}}
    elif place_of == "warnings":
        found["warnings"] = [name]
    elif place_of == "versions":
        found["versions"] = {name: name}
    elif place_of == "tensors":
        found = _renamed(found, found["codes"][0]["name"], name)
    else:
        found[place_of] = name
    path.write_text(json.dumps(found))
    again = ("verify", "own.tflite", "--certificate", "proof/certificate.json", "--out", "again")
    return [(*again, "--images", "pictures"), again]


def _of_tensor(name: str, place: pathlib.Path, rng: random.Random) -> list[Words]:
    """A file that another tool wrote, with a tensor and a description of that name."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    source = pathlib.Path(__file__).parents[2] / "export" / "foreign" / "converter_uint8.tflite"
    model = schema.ModelT.InitFromPackedBuf(source.read_bytes(), 0)
    for tensor in model.subgraphs[0].tensors[:: rng.choice((1, 2))]:
        tensor.name = name.encode("utf-8", "replace")
    model.description = name.encode("utf-8", "replace")
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    (place / "foreign.tflite").write_bytes(bytes(builder.Output()))
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
    "layer": _of_layer,
    "model": _of_model,
    "layer of Keras 3": _of_keras3,
    "class": _of_class,
    "picture": _of_picture,
    "file": _of_file,
    "run": _of_run,
    "label": _of_label,
    "certificate": _of_certificate,
    "tensor": _of_tensor,
}
