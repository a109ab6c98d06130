"""Damaged files: whatever is wrong with one, a command says it in one message."""

import random
import shutil

import pytest

from sat_tf.commands import main
from tests.campaign.originals import write_one_of_each

_RUN = ("verify", "model.tflite", "--runtime", "xnnpack", "--out", "proof", "--images")
# For each file, a command that reads it.
_READERS = {
    "float.keras": ("explain", "float.keras"),
    "float.h5": ("explain", "float.h5"),
    "quantized.keras": ("export", "quantized.keras", "--dry_run"),
    "saved/keras_metadata.pb": ("explain", "saved"),
    "saved/variables/variables.index": ("explain", "saved"),
    "saved/variables/variables.data-00000-of-00001": ("explain", "saved"),
    "model.tflite": (*_RUN, "images.npy"),
    "images.npy": (*_RUN, "images.npy"),
    "policy.yaml": ("explain", "float.keras", "--policy", "policy.yaml"),
    "proof/certificate.json": (
        *("verify", "model.tflite", "--certificate", "proof/certificate.json"),
        *("--images", "images.npy", "--runtime", "xnnpack"),
    ),
    "device.json": (
        *("verify", "model.tflite", "--certificate", "device.json"),
        *("--images", "images.npy"),
    ),
    "pictures/b.png": (*_RUN, "pictures"),
    "pictures/c.jpg": (*_RUN, "pictures"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with one good file of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    write_one_of_each(folder)
    return folder


def _damaged(content, kind, rng):
    """The file broken off, with some bytes changed, or with some of its first ones changed."""
    found = bytearray(content)
    if kind == "cut":
        return bytes(found[: rng.randrange(len(found))])
    end = min(len(found), 400) if kind == "head" else len(found)
    for _ in range(rng.randint(1, 6)):
        found[rng.randrange(end)] = rng.randrange(256)
    return bytes(found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", _READERS)
@pytest.mark.parametrize("kind", ["cut", "bytes", "head"])
def test_a_damaged_file_is_one_message(name, kind, whole, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "folder"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    rng = random.Random(f"{name} {kind}")
    for _ in range(3):
        (folder / name).write_bytes(_damaged((whole / name).read_bytes(), kind, rng))
        status = main.main(list(_READERS[name]))
        said = capsys.readouterr().err
        assert status in (0, 1, 2), "weights and pixels may be other ones"
        assert said.count("error: ") == (status == 2), said
        assert "Traceback" not in said


@pytest.mark.parametrize("name", _READERS)
def test_an_empty_file_is_refused(name, whole, tmp_path, monkeypatch, capsys):
    if name in ("policy.yaml", "pictures/b.png", "pictures/c.jpg"):
        pytest.skip("nothing to set, or a picture that is left out and named")
    folder = tmp_path / "folder"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    (folder / name).write_bytes(b"")
    assert main.main(list(_READERS[name])) == 2
    assert capsys.readouterr().err.count("error: ") == 1
