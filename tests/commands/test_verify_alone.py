"""`sat-tf verify FILE` where nothing but what the documentation says is installed."""

import json
import pathlib
import re
import subprocess
import tomllib
import venv
from importlib import metadata

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

import sat_tf
from sat_tf.export.certificate.certificate import read_certificate
from tests.export.conftest import small, small_file, small_images  # noqa: F401

_PACKAGE = pathlib.Path(sat_tf.__file__).parent
_PAGE = _PACKAGE.parent / "docs" / "guides" / "verify.md"


def _documented():
    """The packages that the page installs beside sat-tf without its requirements."""
    lines = re.findall(r"^pip install (.+)$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    others, alone = lines  # the other way round, pip complains of all that is left out
    assert alone == "--no-deps sat-tf"
    return [Requirement(word.strip("'")) for word in others.split()]


def _with_their_own(requirements):
    """The distributions that pip installs for requirements."""
    found, left = {}, [(one, "") for one in requirements]
    while left:
        one, extra = left.pop()
        if one.name in found or (one.marker and not one.marker.evaluate({"extra": extra})):
            continue
        found[one.name] = metadata.distribution(one.name)
        assert found[one.name].version in one.specifier
        left += [(Requirement(words), "") for words in found[one.name].requires or []]
    return list(found.values())


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment that has the documented packages alone."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    parts = {
        dist.locate_file(file.parts[0]).absolute()
        for dist in _with_their_own(_documented())
        for file in dist.files
        if file.parts[0] not in ("..", "__pycache__")
    }
    for part in {_PACKAGE, *parts}:
        (site / part.name).symlink_to(part)
    return folder / "bin" / "python"


def _run(python, folder, *words):
    return subprocess.run(
        [python, "-P", *words],
        cwd=folder,
        env={"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.thorough
def test_a_file_is_verified_with_what_the_documentation_installs(
    python,
    small_file,  # noqa: F811
    tmp_path,
):
    absent = ("tensorflow", "tf_keras", "keras")
    asked = f"import importlib.util as u; print(*map(u.find_spec, {absent}))"
    assert _run(python, tmp_path, "-c", asked).stdout.split() == ["None"] * len(absent)
    (tmp_path / "photos").mkdir()
    draw = np.random.default_rng(0)
    for number in range(3):
        pixels = draw.integers(0, 256, (40, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    words = ("-m", "sat_tf", "verify", str(small_file), "--images", "photos", "--out", "proof")
    done = _run(python, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    certificate = read_certificate(tmp_path / "proof" / "certificate.json")
    assert certificate.is_exact
    assert certificate.codes_compared > 0
    assert (tmp_path / "proof" / "certificate.html").is_file()
    marks = json.loads((tmp_path / "proof" / "overlay.json").read_text(encoding="utf-8"))["results"]
    assert marks.keys() == {tensor.name for tensor in certificate.runtimes["xnnpack"].tensors}
    assert all(" codes differ; " in mark["value"] for mark in marks.values())
    again = (*words[:-4], "--certificate", "proof/certificate.json", "--images", "photos")
    done = _run(python, tmp_path, *again)
    assert done.returncode == 0, done.stderr


def test_they_are_requirements_of_the_package_and_bring_no_tensorflow():
    settings = tomllib.loads((_PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    ranges = {}
    for one in map(Requirement, settings["project"]["dependencies"]):
        ranges.setdefault(one.name, one.specifier)
    for one in _documented():
        assert set(one.specifier) <= set(ranges[one.name])
    assert "tensorflow" not in {dist.name for dist in _with_their_own(_documented())}
