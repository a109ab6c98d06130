"""Hostile configurations, texts, certificates, kits and models.

What is read is the same when it is written and read again; what a text says is what a file gets; a
certificate that holds has the hashes of the file's own codes, and a kit that was changed is
refused; a model that was packed otherwise, with all that it means, computes what it did.
"""

import io
import json
import pathlib
import random
import shutil
import zipfile
import zipimport
import zlib
from typing import Any

import numpy as np
import yaml

from sat_tf.exact.device import check
from tests.campaign import mutation
from tests.campaign.cases import Case
from tests.campaign.mutation import (
    HOSTILE_TEXTS,
    archive,
    damaged,
    hostile,
    members_of,
    put_no_file,
)
from tests.campaign.originals import original


def _copy(*names: str) -> None:
    for name in names:
        shutil.copy(original(name), name)


def _write(name: str, rng: random.Random, source: str = "") -> str:
    """Writes a hostile file like a good one, and gives its name."""
    pathlib.Path(name).write_bytes(hostile(name, original(source or name).read_bytes(), rng))
    return name


_READ = """\
import sys
from sat_tf.commands.main import report_errors
from sat_tf.commands.train import load_config
from sat_tf.training.config import config_text, parse_config

def read():
    found = load_config("run.yaml")
    text = config_text(found)
    if parse_config(text) != found:
        raise SystemError(f"it is another one when it is read again: {text}")

sys.exit(report_errors(read))
"""
_RUN = ("run/*", "run/.lock")


def make_configs(rng: random.Random) -> Case:
    """A configuration that is read and written again."""
    pathlib.Path("read").write_text(_READ)
    return Case(["python", "read"], [_write("run.yaml", rng)])


def make_trained(rng: random.Random) -> Case:
    """A configuration with other values, trained for two steps at most."""
    from sat_tf.messages import RunError
    from sat_tf.training.config import config_text, parse_config

    shutil.copytree(original("classes"), "classes")
    values = yaml.safe_load(original("run.yaml").read_text("utf-8"))
    for _ in range(100):
        try:
            text = config_text(
                parse_config(mutation.as_yaml(mutation.changed_value(values, rng)).decode())
            )
        except (RunError, UnicodeError):
            continue
        values = yaml.safe_load(text)
        break
    pathlib.Path("run.yaml").write_bytes(mutation.as_yaml(_with_little_to_do(values)))
    # An error is about one of these. A run that fails keeps what it has done, to be resumed.
    sections = (
        *("run.yaml", "classes", "run", "stage", "polic", "calibration", "export", "recipes"),
        *("loss", "training", "data", "model", "TF_CONFIG"),
    )
    words = ["train", "--config", "run.yaml", "--out", "run"]
    return Case(words, sections, _RUN, _unfinished, leaves=_RUN, most_seconds=60)


def _with_little_to_do(values: dict[str, Any]) -> dict[str, Any]:
    """The same with few steps, images and repetitions, as time is not what is tried here."""
    for stage in values["stages"].values():
        if stage is not None:
            stage["steps"] = min(2, stage["steps"] or 2)
    options = {"data_dir": "classes", "image_size": 8, "resize_ratio": 1.0}
    values["data"] = {**values["data"], "name": "folder", "options": options}
    for section, key, most in (
        ("calibration", "num_images", 64),
        ("calibration", "reconstruction_steps", 2),
        ("export", "verify_images", 4),
    ):
        if values[section].get(key) is not None:
            values[section][key] = min(values[section][key], most)
    return values


def _unfinished(status: int) -> str | None:
    """Says what a run lacks that ended well."""
    if not pathlib.Path("run/results.json").is_file():
        return "there are no results"
    return "codes differ" if status == 1 else None


_ADDRESSES = (
    *("localhost:0", "localhost:65536", "localhost", ":2222", "localhost:x", "localhost:-1"),
    *("a b:1", "localhost:22", "256.1.1.1:2222", "[::1]:2222", "localhost:٣", "localhost:2222/x"),
    *("", 5, None),
)


def make_clusters(rng: random.Random) -> Case:
    """A short run in an environment that describes no cluster, or one of one process."""
    address = "localhost:2222" if rng.random() < 0.7 else rng.choice((*_ADDRESSES, *HOSTILE_TEXTS))
    cluster = {rng.choice(("worker", "chief")): [address]}
    task = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    content = hostile("TF_CONFIG.json", json.dumps(task).encode(), rng)
    environment = {"TF_CONFIG": content.decode("utf-8", "replace").replace("\0", " ")[:100_000]}
    _copy("run.yaml")
    shutil.copytree(original("classes"), "classes")
    words = ["train", "--config", "run.yaml", "--out", "run", "--set"]
    words.append(f"distribution={rng.choice(('auto', 'multi_worker'))}")
    return Case(words, ["TF_CONFIG"], _RUN, leaves=_RUN, environment=environment, most_seconds=40)


def make_tables(rng: random.Random) -> Case:
    """A text of a user, or what is none, and a command that reads it."""
    if rng.random() < 0.5:
        name, model = "labels.txt", "quantized.keras"
        pathlib.Path(name).write_bytes(_labels(rng))
        words = ["export", model, "--out", "own.tflite", "--labels", name]
        case = Case(words, [name, "labels: "], ["own.tflite"], _other_labels, most_seconds=20)
    else:
        name, model = "policy.yaml", "float.keras"
        _write(name, rng)
        words = ["explain", model, "--policy", name]
        case = Case(words, [name, "--policy"], most_seconds=20)
    if rng.random() < 0.1:
        pathlib.Path(name).unlink()
        put_no_file(pathlib.Path(name), rng)
    _copy(model)
    return case


def _labels(rng: random.Random) -> bytes:
    animals = ["cat", "dog", "cow"]
    names = animals.copy()
    for _ in range(rng.choice((0, 1, 1, 2))):
        end = rng.choice(("\x0c", "\x1c", "\x85", "\u2028", " ", "\t", "\r"))
        others = rng.choice(
            ([rng.choice(HOSTILE_TEXTS)], [f"cat{end}"], animals * rng.choice((1, 30_000)), [])
        )
        place = rng.randrange(3)
        names[place : place + 1] = others
    text = rng.choice(("", "", "\ufeff")) + rng.choice(("\n", "\n", "\r\n")).join(names)
    content = (text + rng.choice(("", "\n"))).encode("utf-8", "surrogatepass")
    return damaged(content, rng) if rng.random() < 0.15 else content


def _other_labels(status: int) -> str | None:
    with zipfile.ZipFile("own.tflite") as written_archive:
        written = written_archive.read("labels.txt").decode()
    content = pathlib.Path("labels.txt").read_bytes().decode("utf-8-sig")
    text = io.StringIO(content, newline=None).read()
    same = written.removesuffix("\n") == text.removesuffix("\n")
    return None if same else f"{text!r:.300} was written as {written!r:.300}"


_GIVEN = ("model.tflite", "images.npy")
_VERIFY = ("verify", "model.tflite", "--images", "images.npy", "--runtime", "xnnpack")


def make_kits(rng: random.Random) -> Case:
    """A hostile certificate or kit, and what reads it."""
    _copy(*_GIVEN)
    return rng.choices((_certificate, _kit, _kit_in_the_way), (65, 30, 5))[0](rng)


def _certificate(rng: random.Random) -> Case:
    """A certificate of ours, or of a device, whose seals fit as a forger makes them fit."""
    source = rng.choice(("proof/certificate.json", "device.json"))
    _write("proof.json", rng, source)
    if source == "device.json" and rng.random() < 0.7:
        values = json.loads(original(source).read_bytes())
        part = rng.choice(("kit", "device", "tensors"))
        values[part] = mutation.changed_value(values[part], rng)
        if isinstance(values["kit"], dict):
            values["kit"]["seal"] = check.seal(values["kit"])
        values["seal"] = check.seal(values)
        content = json.dumps(values).encode("utf-8", "replace")
        pathlib.Path("proof.json").write_bytes(content)
    words = [*_VERIFY, "--certificate", "proof.json"]
    return Case(words, ["proof.json", *_GIVEN], (), lambda status: _other_codes(source, status))


def _other_codes(source: str, status: int) -> str | None:
    """Says whether hashes were believed that are not those of the file's codes."""
    found = json.loads(pathlib.Path("proof.json").read_text("utf-8"))
    expected = json.loads(original(source).read_text("utf-8"))

    def hashes(values: Any) -> Any:
        return {tensor["name"]: tensor["sha256"] for tensor in values}

    if source == "device.json":
        if hashes(found["kit"]["tensors"]) != hashes(expected["kit"]["tensors"]):
            return "a kit that expects other codes was believed"
        same = hashes(found["tensors"]) == hashes(expected["tensors"])
    else:
        same = hashes(found["codes"]) == hashes(expected["codes"])
        same = same and found["sha256"] == expected["sha256"]
    return "other codes, or those of another file, were believed" if not (status or same) else None


def _kit(rng: random.Random) -> Case:
    """A kit that Python starts, run as on a device."""
    whole = members_of(original("kit.zip").read_bytes())
    path = pathlib.Path("kit.zip")
    path.write_bytes(b"")
    while not _is_started(path, whole["__main__.py"]):
        _write("kit.zip", rng)
    written = [f"certificate_{name}.json" for name in ("x86_64", "aarch64", "AMD64", "arm64")]
    about = ["kit", "check.py", "__main__", *_GIVEN]
    return Case(["python", "kit.zip"], about, written, lambda status: _changed_kit(whole))


def _is_started(path: pathlib.Path, script: bytes) -> bool:
    """Whether Python finds the script of a kit that starts it; who changes that runs anything."""
    try:
        importer = zipimport.zipimporter(str(path))
        importer.invalidate_caches()  # of what lay there before
        return importer.get_data("__main__.py") == script
    except (zipimport.ZipImportError, OSError, EOFError, zlib.error):
        return False


def _changed_kit(whole: dict[str, bytes]) -> str | None:
    """Says whether a kit has run whose files are not those it was made with."""
    try:
        found = members_of(pathlib.Path("kit.zip").read_bytes())
    except Exception as error:  # it ran, and cannot be opened
        return f"a kit has run that cannot be opened: {error}"
    changed = [name for name, content in whole.items() if found.get(name) != content]
    if "kit.json" in changed and json.loads(found["kit.json"]) == json.loads(whole["kit.json"]):
        changed.remove("kit.json")
    return f"a kit has run that was changed in {', '.join(changed)}" if changed else None


def _kit_in_the_way(rng: random.Random) -> Case:
    """A kit that is to be written where something else is."""
    path, link = pathlib.Path("kit.zip"), rng.choice((None, "images.npy", "nowhere/kit"))
    if link is not None:
        path.symlink_to(link)
    elif rng.random() < 0.5:
        path.mkdir()
    else:
        path.write_bytes(b"old")
    words = [*_VERIFY, "--out", "proof", "--kit", rng.choice(("kit.zip", "none/kit.zip"))]
    outputs = ["kit.zip", "none/kit.zip", "proof/certificate.*"]
    return Case(words, ["kit.zip", "none"], outputs)


_ARCHIVES = ("float.keras", "quantized.keras", "keras3.keras")


def make_models(rng: random.Random) -> Case:
    """A hostile model, and a command that loads it."""
    makers = (
        lambda rng: _command(_write(rng.choice(_ARCHIVES), rng), rng),
        lambda rng: _command(_write("float.h5", rng), rng),
        *(_same_archive, _pickled, _saved_model),
    )
    return rng.choices(makers, (48, 25, 8, 2, 17))[0](rng)


def _command(name, rng, is_wrong=lambda status: None) -> Case:
    words = ["explain", name, "--unsupported", "float"]
    if name == "quantized.keras":
        words = ["export", name, "--dry_run"]
    elif rng.random() < 0.15:
        words = ["audit", name]
    return Case(words, [name, pathlib.Path(name).stem], (), is_wrong, most_seconds=20)


def _same_archive(rng: random.Random) -> Case:
    """Packed in another way, under another name, with more in it: the same model."""
    name = rng.choice(_ARCHIVES)
    members = members_of(original(name).read_bytes())
    config = json.loads(members["config.json"])
    spaced = json.dumps(dict(reversed(config.items())), indent=4).encode()
    content = rng.choice(
        (
            archive(members.items(), method=zipfile.ZIP_DEFLATED, comment=b"a comment"),
            archive([*reversed(members.items()), ("../more.txt", b"more")]),
            archive({**members, "config.json": spaced}.items()),
        )
    )
    pathlib.Path(name).write_bytes(content)
    return _command(name, rng, lambda status: _other_outputs(name))


class _Writes:
    """Makes a file where it is unpickled."""

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (pathlib.Path("marker"),)


def _pickled(rng: random.Random) -> Case:
    """Weights as NumPy's arrays, which unpickle what a file holds in some releases of Keras."""
    name, weights = rng.choice(_ARCHIVES), io.BytesIO()
    members = members_of(original(name).read_bytes())
    del members["model.weights.h5"]
    hostile_array = np.array([_Writes()], dtype=object)
    np.savez(weights, **{rng.choice(("layers/conv", "conv", "head")): hostile_array})
    members["model.weights.npz"] = weights.getvalue()
    pathlib.Path(name).write_bytes(archive(members.items()))
    return _command(name, rng)


def _other_outputs(name: str) -> str | None:
    """Says whether the model in a file computes something else than the original."""
    from sat_tf.keras3.incoming import read_model

    found, expected = (read_model(path).model for path in (pathlib.Path(name), original(name)))
    images = np.random.default_rng(0).uniform(0, 255, (2, *expected.input_shape[1:]))
    outputs = [model(images.astype(np.float32)).numpy() for model in (found, expected)]
    return None if np.array_equal(*outputs) else "the model computes something else"


def _saved_model(rng: random.Random) -> Case:
    shutil.copytree(original("saved"), "saved")
    paths = sorted(path for path in pathlib.Path("saved").rglob("*") if path.is_file())
    path = rng.choice([*paths, *[pathlib.Path("saved/keras_metadata.pb")] * 2])
    content = path.read_bytes()
    path.unlink()
    kind = rng.randrange(8)
    if kind == 0:
        put_no_file(path, rng)
    elif kind > 1:
        path.write_bytes(hostile(path, content, rng) if kind > 2 else b"")
    return _command("saved", rng)
