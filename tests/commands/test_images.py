"""The images of commands, their labels, and the range that models are fed."""

import json
import pathlib

import numpy as np
import pytest
import tf_keras as keras
from PIL import Image

import sat_tf
from sat_tf.commands.images import ImageOptions
from sat_tf.exact.certificate.proof_images import random_images
from sat_tf.exact.tflite.input_range import NAMED
from sat_tf.exact.tflite.metadata import Metadata
from sat_tf.messages import RunError
from sat_tf.qat.policy import BitPolicy
from tests.training.small import (
    model_of_one_range,
    model_of_small_range,
    small_images,
    write_pictures,
)

# -- folders and arrays ----------------------------------------------------------------------------


def draw(folder, *names):
    """Writes black pictures of these names."""
    for path in (folder / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)


def test_without_a_name_pixels_are_random_and_of_an_array_all_are_taken_or_so_many(tmp_path):
    assert len(ImageOptions().load((4, 4, 3), 10).images) == 64
    found = ImageOptions(num_images=3).load((4, 4, 3), 10)
    assert found.labels is None
    assert np.array_equal(found.images, random_images((4, 4, 3), 3, found.source.seed))
    np.save(tmp_path / "pixels.npy", np.arange(9, dtype=np.uint8).reshape(9, 1))
    for count, expected in (None, 9), (3, 3):
        wanted = ImageOptions(images=f"{tmp_path}/pixels.npy", num_images=count)
        assert len(wanted.load((1,), 2).images) == expected


def test_a_folder_tells_its_classes_and_what_it_left_out(tmp_path):
    draw(tmp_path, "photos/cat/a.png", "photos/dog/a.png")
    for index in range(7):
        (tmp_path / "photos" / "dog" / f"{index}.jpg").touch()
    found = ImageOptions(images=str(tmp_path / "photos")).load((8, 8, 3), 2)
    assert found.labels.tolist() == [0, 1]
    assert "folder photos" in found.source.description
    assert found.notes[0].startswith("7 of ")
    assert found.notes[0].endswith(" and 2 more")
    assert found.notes[1].startswith("2 classes")
    # Of a divided folder the held-out pictures are taken.
    draw(tmp_path / "set", "train/cat/1.png", "train/ox/2.png", "val/cat/3.png", "val/ox/4.png")
    found = ImageOptions(f"{tmp_path}/set").load((8, 8, 3), 2)
    assert found.labels.tolist() == [0, 1]
    assert found.notes[1] == f"{tmp_path}/set is divided: the pictures are those of val"


def test_classes_are_numbered_by_the_names_in_the_file(tmp_path):
    draw(tmp_path, "bee/1.png", "dog/1.png")
    wanted, shape = ImageOptions(str(tmp_path)), (8, 8, 3)
    found = wanted.load(shape, 4, Metadata(labels=("ant", "bee", "cat", "dog")))
    assert found.labels.tolist() == [1, 3]
    assert found.notes == ("2 classes, numbered by the names in the file",)
    others = wanted.load(shape, 2, Metadata(labels=("Hund", "Biene")))
    assert others.labels.tolist() == [0, 1]
    assert "those of the file are others, such as Hund" in others.notes[0]
    with pytest.raises(RunError, match=r"received the classes dog, expected those of the file"):
        wanted.load(shape, 2, Metadata(labels=("ant", "bee")))


# -- labels of arrays, which tests/messages/commands.txt reads -------------------------------------


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*images give unreliable statistics")
def test_all_commands_measure_by_the_labels_of_arrays(tmp_path, monkeypatch, sat):
    monkeypatch.chdir(tmp_path)
    images = small_images(train=60)
    model_of_small_range(inside=True).save("m.keras")
    np.save("x.npy", images.train_images)
    np.save("y.npy", images.train_labels)
    given = "--images x.npy --labels y.npy"
    said = sat(f"quantize m.keras {given} --out out")
    assert "48 to calibrate on and 12 held out" in said
    assert "% of 12 held-out pictures right, the float model" in said
    results = json.loads(pathlib.Path("out/results.json").read_text("utf-8"))
    assert results["float_top1"] > 0.9
    assert results["held_out_images"] == 12
    said = sat(f"evaluate out/model.tflite {given}")
    assert "model.tflite: top-1 " in said
    assert "60 images" in said
    assert "top-1" in sat(f"verify out/model.tflite --out proof {given}")
    certificate = json.loads(pathlib.Path("proof/certificate.json").read_text("utf-8"))
    assert certificate["top1"]["tflite"] > 0.9
    assert "ranked by top-1 lost" in sat(f"sensitivity m.keras {given}")
    for words in ("allocate m.keras --budget average_bits=8", "audit m.keras", "explain m.keras"):
        sat(f"{words} {given}")


# -- the range that a model was trained on ---------------------------------------------------------

L = keras.layers


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model_of_small_range().save(folder / "float.keras")
    model_of_small_range(inside=True).save(folder / "rescaled.keras")
    model_of_one_range(NAMED["tf"]).save(folder / "one.keras")
    images = small_images(train=1, test=128)
    write_pictures(folder / "photos", images.test_images, images.test_labels)
    policy = BitPolicy(weight_bits=8, activation_bits=8, input_range=(0, 1))
    quantized = sat_tf.quantize_model(model_of_small_range(), policy)
    unit = images.test_images.astype(np.float32) / 255
    sat_tf.calibrate(quantized, unit).save(folder / "quantized.keras")
    return folder


# Words of each command that quantizes, beside the model and its pictures.
QUANTIZING = {
    "quantize": "--out out",
    "explain": "",
    "sensitivity": "",
    "allocate": "--budget average_bits=100%",
    "audit": "",
}


@pytest.mark.thorough
@pytest.mark.parametrize("command", QUANTIZING)
def test_every_command_finds_the_same_range_or_says_why_not(command, files, monkeypatch, sat):
    monkeypatch.chdir(files)
    words = f"--images photos {QUANTIZING[command]}"
    said = sat(f"{command} one.keras {words}")
    assert "Input range: (-1, 1), found: top-1 on" in said
    words += " --no-resume" if command == "quantize" else ""
    said = sat(f"{command} rescaled.keras {words}")
    assert "Input range: pixels, which its own layers convert." in said
    assert "received a model that is fed" not in said
    said = sat(f"{command} float.keras {words}", status=2)
    assert "% with (0, 255), 100.0 % with (0, 1)" in said
    said = sat(f"{command} float.keras {words} --input_range 0,255", status=(0, 2))
    assert "Note: float.keras: received a model that is fed input_range=(0, 255)" in said
    right = ["float.keras --input_range 0,1"] if command in ("sensitivity", "audit") else []
    for model in [*right, "quantized.keras"] if command == "audit" else right:
        assert "received a model that is fed" not in sat(f"{command} {words} {model}")


@pytest.mark.thorough
@pytest.mark.parametrize("command", QUANTIZING)
def test_every_command_takes_real_values(command, files, monkeypatch, sat):
    monkeypatch.chdir(files)
    convs = [L.Conv1D(4, 3, activation="relu") for _ in range(2)]
    signal, ends = keras.Input((32, 2), name="signal"), [L.GlobalAveragePooling1D(), L.Dense(3)]
    keras.Sequential([signal, *convs, *ends]).save("signal.keras")
    draw = np.random.default_rng(0)
    np.save("signals.npy", draw.normal(size=(64, 32, 2)).astype(np.float32))
    words = f"{command} signal.keras {QUANTIZING[command]}".replace("out out", "out of_signals")
    words += "" if command == "audit" else " --policy input_type=int8"
    said = sat(f"{words} --images signals.npy")
    assert "Input range" not in said
    assert "Images are fed as" not in said
    if command != "audit":
        np.save("codes.npy", draw.integers(-128, 128, (64, 32, 2)).astype(np.int8))
        said = sat(f"{words} --images codes.npy", status=2)
        assert "received int8, expected real values" in said


def test_a_plan_has_the_range_of_the_option(files, sat):
    said = sat(f"explain {files}/float.keras --input_range -1,1")
    assert "image: pixels 0 to 255 stand for -1 to 1, uint8 in the file, folded into conv" in said
    said = sat(f"explain {files}/float.keras --policy weight_bits=2 --input_range 0,1")
    assert "stand for 0 to 1, uint8" in said


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_files_of_real_values_are_verified_on_arrays_and_on_random_values(
    kind, tmp_path, monkeypatch, sat
):
    monkeypatch.chdir(tmp_path)
    layers = [L.Dense(5, activation="relu"), L.Dense(3, name="head")]
    model = keras.Sequential([keras.Input((6,), name="x"), *layers])
    values = np.random.default_rng(0).normal(40.0, 9.0, (64, 6)).astype(np.float32)
    quantized = sat_tf.quantize_model(model, BitPolicy(input_type=kind))
    sat_tf.calibrate(quantized, values).save("model.keras")
    sat_tf.export_tflite(quantized, "model.tflite")
    np.save("values.npy", values)
    for files in ("model.keras model.tflite", "model.tflite"):
        for images in ("--images values.npy", "--num_images 9"):
            sat(f"verify {files} {images}")
    # Random values again, drawn as the certificate has them.
    assert "holds" in sat("verify model.tflite --certificate certificate.json")


@pytest.mark.thorough
def test_verify_feeds_the_float_model_what_the_quantized_one_is_fed(files, tmp_path, sat):
    path, model, images = tmp_path / "m.tflite", f"{files}/quantized.keras", f"{files}/photos"
    sat(f"export {model} --out {path}")
    sat(f"verify {model} {path} --images {images} --float_model {files}/float.keras")
    assert "top-1 100.00 %" in sat(f"evaluate {path} --images {images}")
