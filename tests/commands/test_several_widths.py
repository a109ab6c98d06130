"""Commands, given the file of a model of several bit widths."""

import re

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.commands import main

L = keras.layers
_COMMANDS = {
    "explain": ["explain", "{model}"],
    "audit": ["audit", "{model}", "--images", "{folder}/images.npy"],
    "sensitivity": ["sensitivity", "{model}", "--images", "{folder}/images.npy"],
    "export": ["export", "{model}", "--out", "{folder}/out.tflite"],
    "verify": ["verify", "{model}", "{folder}/model.tflite", "--images", "{folder}/images.npy"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds the model, and what commands ask for beside it."""
    folder = tmp_path_factory.mktemp("widths")
    image = keras.Input((6, 6, 3), name="image")
    tensor = L.ReLU(name="relu")(L.Conv2D(4, 3, name="conv")(image))
    tensor = L.Dense(2, name="head")(L.Flatten(name="flat")(tensor))
    model = keras.Model(image, tensor, name="small")
    policy = sat_tf.BitPolicy.mobile(4, weight_grid="nested")
    sat_tf.quantize_for_bits(model, policy, bits=(7, 4)).save(folder / "adaptive.keras")
    np.save(folder / "images.npy", np.zeros((2, 6, 6, 3), np.uint8))
    (folder / "model.tflite").write_bytes(b"not read")
    return folder


@pytest.mark.parametrize("trusted", [[], ["--trust_model"]])
@pytest.mark.parametrize("name", _COMMANDS)
def test_a_file_of_several_widths_is_refused_with_how_to_save_one(name, trusted, folder, capsys):
    places = {"folder": folder, "model": folder / "adaptive.keras"}
    assert main.main([word.format(**places) for word in _COMMANDS[name]] + trusted) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert re.search(r"several bit widths \(7, 4\) .*at_bits\(4\)\.save\(", printed)


def test_the_width_that_is_saved_so_is_taken(folder):
    one = keras.models.load_model(folder / "adaptive.keras").at_bits(4)
    one.save(folder / "one.keras")
    assert main.main(["export", str(folder / "one.keras"), "--dry_run"]) == 0
