"""An environment that holds what the guide says that checking files needs, and nothing else."""

import importlib.metadata
import json
import pathlib
import re
import subprocess
import venv

import numpy as np
import pytest
from packaging.requirements import Requirement

import sat_tf
from tests.export import zoo

_REPOSITORY = pathlib.Path(__file__).parents[2]
_GUIDE = _REPOSITORY / "docs" / "guides" / "verify.md"

# All modules of the proof, and one verification, with what that loaded.
_PROGRAM = """
import importlib.util, json, pkgutil, sys
import numpy as np
import sat_tf.exact, sat_tf.export

for module in pkgutil.walk_packages(sat_tf.exact.__path__, "sat_tf.exact."):
    importlib.import_module(module.name)
path, images = sys.argv[1:]
certificate = sat_tf.export.verify_file(path, np.load(images), progress=False)
libraries = [*filter(importlib.util.find_spec, ("tensorflow", "tf_keras", "keras"))]
print(json.dumps([certificate.codes_differing, certificate.codes_compared, libraries]))
"""


def environment(place, *names):
    """A Python with links to installed distributions, and to those that they require."""
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/*/site-packages")
    found, waiting = set(), [*names]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # It is for other versions of Python.
        if name in found:
            continue
        found.add(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(distribution.locate_file(top))
        required = map(Requirement, distribution.requires or ())
        waiting += [one.name for one in required if not one.marker or one.marker.evaluate()]
    return place / "bin" / "python"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python whose environment has what the guide names."""
    (line,) = re.findall(r"^pip install ('ai-edge-litert.*)$", _GUIDE.read_text(), re.MULTILINE)
    names = [Requirement(word.strip("'")).name for word in line.split()]
    place = tmp_path_factory.mktemp("without")
    found = environment(place, *names)
    (packages,) = place.glob("lib/*/site-packages")
    (packages / "sat_tf").symlink_to(_REPOSITORY / "sat_tf")
    return found


@pytest.mark.essential
def test_a_file_is_proved_in_an_environment_without_tensorflow(python, tmp_path):
    path, images = tmp_path / "model.tflite", tmp_path / "images.npy"
    model = zoo.quantized("bottleneck")
    sat_tf.export_tflite(model, path)
    np.save(images, zoo.images_for(model)[:4])
    command = [python, "-I", "-c", _PROGRAM, path, images]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    differing, compared, libraries = json.loads(ended.stdout.splitlines()[-1])
    assert differing == 0 < compared
    assert libraries == []
