"""Nothing that came with a model is run; what is wrong with a file is said in one message."""

import pathlib
import random
import shutil

import numpy as np
import pytest

from sat_tf.output_folder import CONFIG, QUANTIZED_MODEL
from sat_tf.training.config import config_text, parse_config
from tests.campaign.mutation import damaged
from tests.campaign.originals import write_one_of_each
from tests.loading.hostile import marking, saved, small

# -- models that run code --------------------------------------------------------------------------

_CONFIG = """
name: hostile
data: {name: digits, options: {image_size: 8}}
model: {name: mobilenet_v2}
stages: {float: {epochs: 1, batch_size: 32, warmup_epochs: 0, base_learning_rate: 0.05}}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with hostile models in all formats, and what commands ask for beside them."""
    folder = tmp_path_factory.mktemp("hostile") / "models"
    folder.mkdir()
    marker = folder.with_name("marker")
    model = small(marking(marker))
    for name in ("model.keras", "model.h5", "saved_model"):
        saved(model, folder / name, marker)
    # An HDF5 file is told by its content, by Keras and by us.
    (folder / "hdf5.keras").write_bytes((folder / "model.h5").read_bytes())
    np.save(folder / "images.npy", np.zeros((2, 6, 6, 3), np.uint8))
    (folder / "model.tflite").write_bytes(b"not read")
    (folder / "config.yaml").write_text(_CONFIG)
    run = folder / "run"
    run.mkdir()
    (run / CONFIG).write_text(config_text(parse_config(_CONFIG)))
    saved(model, run / QUANTIZED_MODEL, marker)
    return folder


@pytest.fixture
def marker(models):
    """The path of the file that they write when they run."""
    path = models.with_name("marker")
    path.unlink(missing_ok=True)
    return path


@pytest.fixture
def hostile(models, marker, tmp_path, monkeypatch):
    """A copy of the folder for one test, which is the working directory."""
    monkeypatch.chdir(shutil.copytree(models, tmp_path / "models"))
    return tmp_path / "models"


_TRAIN = "train --config config.yaml --out trained --set"
_COMMANDS = {
    "explain": "explain {model}",
    "audit": "audit {model}",
    "sensitivity": "sensitivity {model} --images images.npy",
    "export": "export {model}",
    "dry_run": "export {model} --dry_run",
    "verify": "verify {model} model.tflite --images images.npy",
    "train": _TRAIN + " training.float_model={model}",
    "teacher": _TRAIN + ' recipes.distillation={{"teacher":"{model}","stages":["float"]}}',
}
_FOLDERS = ("explain", "audit", "sensitivity")


@pytest.mark.thorough
@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.parametrize("model", ["model.keras", "model.h5", "hdf5.keras", "saved_model"])
def test_every_command_refuses_a_model_that_runs_code(command, model, hostile, marker, sat):
    if model == "saved_model" and command not in _FOLDERS:
        pytest.skip("takes files alone")
    before = sorted(hostile.rglob("*"))
    said = sat(_COMMANDS[command].format(model=model), status=2)
    assert said.count("error:") == 1
    assert "harmless: a Lambda layer, whose Python code is in the file" in said
    assert "load it with --trust_model (in Python safe_mode=False" in said
    assert not marker.exists(), "nothing was run"
    assert sorted(hostile.rglob("*")) == before, "nothing was written"


@pytest.mark.thorough
@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.usefixtures("hostile")
def test_every_command_runs_it_where_it_is_told_to(command, marker, sat):
    said = sat(f"{_COMMANDS[command].format(model='model.h5')} --trust_model", status=(0, 1, 2))
    assert "--trust_model" not in said
    assert marker.exists()


def test_the_configuration_of_a_run_trusts_nobody_for_other_commands(hostile, marker, sat):
    config = parse_config(_CONFIG, ["training.trust_model=true"])
    (hostile / "run" / CONFIG).write_text(config_text(config))
    for command in ("verify", "export", "explain", "audit"):
        sat(f"{command} run", status=2)
    assert not marker.exists()


# -- damaged files ---------------------------------------------------------------------------------

_RUN = "verify model.tflite --runtime xnnpack --out proof --images"
_CHECK = "verify model.tflite --images images.npy --runtime xnnpack --certificate"
# For each file, a command that reads it.
_READERS = {
    "float.keras": "explain float.keras",
    "float.h5": "explain float.h5",
    "quantized.keras": "export quantized.keras --dry_run",
    "saved/keras_metadata.pb": "explain saved",
    "saved/variables/variables.index": "explain saved",
    "saved/variables/variables.data-00000-of-00001": "explain saved",
    "model.tflite": f"{_RUN} images.npy",
    "images.npy": f"{_RUN} images.npy",
    "policy.yaml": "explain float.keras --policy policy.yaml",
    "proof/certificate.json": f"{_CHECK} proof/certificate.json",
    "device.json": f"{_CHECK} device.json",
    "pictures/b.png": f"{_RUN} pictures",
    "pictures/c.jpg": f"{_RUN} pictures",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with one good file of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    write_one_of_each(folder)
    return folder


@pytest.fixture
def copied(whole, tmp_path, monkeypatch):
    """A copy of it, which is the working directory."""
    monkeypatch.chdir(shutil.copytree(whole, tmp_path / "folder"))


@pytest.mark.thorough
@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("name", _READERS)
def test_a_damaged_file_is_one_message(name, sat):
    rng, content = random.Random(name), pathlib.Path(name).read_bytes()
    for _ in range(9):
        pathlib.Path(name).write_bytes(damaged(content, rng))
        said = sat(_READERS[name], status=(0, 1, 2))  # weights and pixels may be other ones
        assert said.count("error: ") == (sat.status == 2), said
        assert "Traceback" not in said


# Nothing is set, or a picture is left out and named.
_MAY_BE_EMPTY = ("policy.yaml", "pictures/b.png", "pictures/c.jpg")


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("name", [name for name in _READERS if name not in _MAY_BE_EMPTY])
def test_an_empty_file_is_refused(name, sat):
    pathlib.Path(name).write_bytes(b"")
    assert sat(_READERS[name], status=2).count("error: ") == 1
