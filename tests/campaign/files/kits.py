"""Hostile certificates and proof kits: changed, resealed as by a forger, and packed otherwise.

A certificate that holds has the hashes of the file's own codes; a kit that was changed is refused.
"""

import json
import pathlib
import random
import shutil
import zipimport
import zlib
from typing import Any

from sat_tf.export.device import check
from tests.campaign.cases import Case
from tests.campaign.mutation import changed_value, damaged, hostile_archive, members_of
from tests.campaign.originals import original

_GIVEN = ("model.tflite", "images.npy")
_RUNTIME = ("--runtime", "xnnpack")


def make(rng: random.Random) -> Case:
    """A hostile certificate or kit, and what reads it."""
    for name in _GIVEN:
        shutil.copy(original(name), name)
    return rng.choices((_certificate, _device, _kit, _target), (30, 35, 30, 5))[0](rng)


def _verify(name: str, check_result: Any = lambda status: None) -> Case:
    words = ["verify", _GIVEN[0], "--images", _GIVEN[1], *_RUNTIME, "--certificate", name]
    return Case(words, [name, *_GIVEN], (), check_result)


def _written(value: Any, content: bytes, rng: random.Random) -> bytes:
    """JSON with its parts changed, or broken in its text."""
    if rng.random() < 0.15:
        return damaged(content, rng)
    if rng.random() < 0.05:
        depth = rng.choice((500, 100_000))
        return b'{"kit": ' + b"[" * depth + b"]" * depth + b"}"
    return json.dumps(changed_value(value, rng)).encode("utf-8", "replace")


def _certificate(rng: random.Random) -> Case:
    content = original("proof/certificate.json").read_bytes()
    pathlib.Path("proof.json").write_bytes(_written(json.loads(content), content, rng))
    return _verify("proof.json", lambda status: _other_codes("proof.json", status))


def _codes(values: Any) -> Any:
    return {one["name"]: one["sha256"] for one in values["codes"]}, values["sha256"]


def _other_codes(name: str, status: int) -> str | None:
    """Says whether a certificate was held to be right whose codes are not those of the file."""
    found = json.loads(pathlib.Path(name).read_text("utf-8"))
    expected = json.loads(original("proof/certificate.json").read_text("utf-8"))
    if status == 0 and _codes(found) != _codes(expected):
        return "a certificate with other codes or of another file was accepted"
    return None


def _device(rng: random.Random) -> Case:
    content = original("device.json").read_bytes()
    values = json.loads(content)
    if rng.random() < 0.3:
        found = _written(values, content, rng)
    else:  # a forger makes the seals fit
        part = rng.choice(("kit", "device", "tensors"))
        values[part] = changed_value(values[part], rng)
        if isinstance(values["kit"], dict):
            values["kit"]["seal"] = check.seal(values["kit"])
        values["seal"] = check.seal(values)
        found = json.dumps(values).encode("utf-8", "replace")
    pathlib.Path("device.json").write_bytes(found)
    return _verify("device.json", _other_hashes)


def _other_hashes(status: int) -> str | None:
    """Says whether a device was believed whose hashes are not those of the file's codes."""
    found = json.loads(pathlib.Path("device.json").read_text("utf-8"))
    expected = json.loads(original("device.json").read_text("utf-8"))

    def hashes(values: Any) -> Any:
        return {one["name"]: one["sha256"] for one in values}

    if status == 0 and hashes(found["tensors"]) != hashes(expected["tensors"]):
        return "a device with other codes was believed"
    if hashes(found["kit"]["tensors"]) != hashes(expected["kit"]["tensors"]):
        return "a kit that expects other codes was believed"
    return None


def _kit(rng: random.Random) -> Case:
    """A kit that Python starts, run as on a device."""
    whole = members_of(original("kit.zip").read_bytes())
    path = pathlib.Path("kit.zip")
    path.write_bytes(b"")
    while not _is_started(path, whole["__main__.py"]):
        path.write_bytes(hostile_archive(whole, rng, _changed_member))
    written = [f"certificate_{name}.json" for name in ("x86_64", "aarch64", "AMD64", "arm64")]
    about = ["kit", "check.py", "__main__", "model.tflite", "images.npy"]
    return Case(["python", "kit.zip"], about, written, lambda status: _changed_kit(whole))


def _is_started(path: pathlib.Path, script: bytes) -> bool:
    """Whether Python finds the script of a kit that starts it; who changes that runs anything."""
    try:
        importer = zipimport.zipimporter(str(path))
        importer.invalidate_caches()  # of what lay there before
        found = importer.get_data("__main__.py")
    except (zipimport.ZipImportError, OSError, EOFError, zlib.error):
        return False
    return found == script


def _changed_member(name: str, content: bytes, rng: random.Random) -> bytes:
    if name == "kit.json" and rng.random() < 0.6:
        return json.dumps(changed_value(json.loads(content), rng)).encode("utf-8", "replace")
    return damaged(content, rng)


def _changed_kit(whole: dict[str, bytes]) -> str | None:
    """Says whether a kit has run whose files are not those it was made with."""
    try:
        found = members_of(pathlib.Path("kit.zip").read_bytes())
    except Exception as error:  # it ran, and cannot be opened
        return f"a kit has run that cannot be opened: {error}"
    changed = [name for name, content in whole.items() if found.get(name) != content]
    if "kit.json" in changed and json.loads(found["kit.json"]) == json.loads(whole["kit.json"]):
        changed.remove("kit.json")
    if changed:
        return f"a kit has run that was changed in {', '.join(changed)}"
    return None


def _target(rng: random.Random) -> Case:
    """A kit that is to be written where something else is."""
    kind = rng.choice(("folder", "link", "dangling", "file", "no folder"))
    if kind == "folder":
        pathlib.Path("kit.zip").mkdir()
    elif kind == "link":
        pathlib.Path("kit.zip").symlink_to("images.npy")
    elif kind == "dangling":
        pathlib.Path("kit.zip").symlink_to("nowhere/kit")
    elif kind == "file":
        pathlib.Path("kit.zip").write_bytes(b"old")
    name = "none/kit.zip" if kind == "no folder" else "kit.zip"
    words = ["verify", _GIVEN[0], "--images", _GIVEN[1], *_RUNTIME, "--kit", name]
    words += ["--out", "proof"]
    written = ("certificate.json", "certificate.html", "overlay.json")
    outputs = ["kit.zip", "none/kit.zip", *(f"proof/{name}" for name in written)]
    return Case(words, ["kit.zip", "none"], outputs)
