import pathlib

import pytest

from sat_tf.commands.verify import Target, choose_target


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model.tflite", "model.keras", "run/quantized.keras", "run/model.tflite"):
        pathlib.Path(name).parent.mkdir(exist_ok=True)
        pathlib.Path(name).touch()
    pathlib.Path("run/config.yaml").touch()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "tflite", "model"),
    [
        (["model.tflite"], "model.tflite", None),
        (["model.keras", "model.tflite"], "model.tflite", "model.keras"),
        (["run"], "run/model.tflite", "run/quantized.keras"),
        (["run", "model.tflite"], "model.tflite", "run/quantized.keras"),
    ],
)
def test_arguments_name_a_file_and_its_model(words, tflite, model):
    found = choose_target(*words)
    assert found.tflite == pathlib.Path(tflite)
    assert found.model == (pathlib.Path(model) if model else None)
    assert (found.folder is not None) == (words[0] == "run")


def test_a_target_without_a_model_is_a_file_alone():
    assert Target(pathlib.Path("x")).model is None
