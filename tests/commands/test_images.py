"""The images of commands, their labels, and the range that models are fed."""

import json

import numpy as np
import pytest
import tf_keras as keras
from PIL import Image

import sat_tf
from sat_tf.commands import main
from sat_tf.commands.images import ImageOptions, add_image_arguments, image_options, read_labels
from sat_tf.commands.parser import Parser
from sat_tf.exact.certificate.inputs import random_images
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


def test_without_a_name_pixels_are_random_and_can_be_drawn_again():
    found = ImageOptions(num_images=3).load((4, 4, 3), 10)
    assert found.labels is None
    assert np.array_equal(found.images, random_images((4, 4, 3), 3, found.source.seed))


def test_a_folder_tells_its_classes_and_what_it_left_out(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        image = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
        image.save(tmp_path / "photos" / name / "a.png")
    for index in range(7):
        (tmp_path / "photos" / "dog" / f"{index}.jpg").touch()
    found = ImageOptions(images=str(tmp_path / "photos")).load((4, 4, 3), 2)
    assert found.labels.tolist() == [0, 1]
    assert "folder photos" in found.source.description
    assert found.notes[0].startswith("7 of ")
    assert found.notes[0].endswith(" and 2 more")
    assert found.notes[1].startswith("2 classes")


def test_of_an_array_all_images_are_taken_or_so_many(tmp_path):
    path = tmp_path / "pixels.npy"
    np.save(path, np.arange(9, dtype=np.uint8).reshape(9, 1))
    assert len(ImageOptions(images=str(path)).load((1,), 2).images) == 9
    assert ImageOptions(images=str(path), num_images=3).load((1,), 2).images.tolist() == [
        [0],
        [4],
        [8],
    ]


def test_numbers_of_images_are_above_0(capsys):
    parser = Parser()
    add_image_arguments(parser, default="none", usual="all")
    assert image_options(parser.parse_args(["--num_images", "7"])).num_images == 7
    with pytest.raises(SystemExit):
        parser.parse_args(["--num_images", "0"])
    assert "'0': expected a positive integer" in capsys.readouterr().err


def test_classes_are_numbered_by_the_names_in_the_file(tmp_path):
    for name in ("bee", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name / "1.png")
    wanted, shape = ImageOptions(str(tmp_path)), (8, 8, 3)
    found = wanted.load(shape, 4, Metadata(labels=("ant", "bee", "cat", "dog")))
    assert found.labels.tolist() == [1, 3]
    assert found.notes == ("2 classes, numbered by the names in the file",)
    others = wanted.load(shape, 2, Metadata(labels=("Hund", "Biene")))
    assert others.labels.tolist() == [0, 1]
    assert "those of the file are others, such as Hund" in others.notes[0]
    with pytest.raises(RunError, match=r"received the classes dog, expected those of the file"):
        wanted.load(shape, 2, Metadata(labels=("ant", "bee")))


def test_of_a_divided_folder_the_held_out_pictures_are_taken(tmp_path):
    for name in ("train/cat/1.png", "train/ox/2.png", "val/cat/3.png", "val/ox/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name)
    found = ImageOptions(str(tmp_path)).load((8, 8, 3), 2)
    assert found.labels.tolist() == [0, 1]
    assert found.notes[1] == f"{tmp_path} is divided: the pictures are those of val"


# -- labels of arrays ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.txt", "0\n2\n 1 \n"),
        ("labels.csv", "0\n2\n1\n"),
        ("labels.csv", "file,label\na.png,0\nb.png,2\nc.png,1\n"),
        ("labels.csv", "class,file\n0,a.png\n2,b.png\n1,c.png\n"),
        ("labels.csv", "a.png,0\r\nb.png,2\r\nc.png,1\r\n"),
    ],
)
def test_text_and_tables_hold_class_numbers(name, text, tmp_path):
    path = tmp_path / name
    path.write_bytes(text.encode())
    labels = read_labels(str(path), 3, 3)
    assert (labels.tolist(), labels.dtype) == ([0, 2, 1], np.int32)


@pytest.mark.parametrize("text", ["cat,1\n", '"1"\n', "0 1\n"])
def test_a_line_of_a_text_is_one_number(text, tmp_path):
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(RunError, match="in line 1, expected a class number"):
        read_labels(str(tmp_path / "labels.txt"), 1, 3)


@pytest.mark.parametrize("values", [np.array([0, 2, 1], np.uint8), np.array([[0], [2], [1]])])
def test_arrays_hold_class_numbers(values, tmp_path):
    np.save(tmp_path / "labels.npy", values)
    assert read_labels(str(tmp_path / "labels.npy"), 3, 3).tolist() == [0, 2, 1]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*images give unreliable statistics")
def test_all_commands_measure_by_the_labels_of_arrays(tmp_path, capsys):
    images = small_images(train=60)
    model_of_small_range(inside=True).save(tmp_path / "m.keras")
    np.save(tmp_path / "x.npy", images.train_images)
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(map(str, images.train_labels)))
    given = ["--images", str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.csv")]
    model, out = str(tmp_path / "m.keras"), tmp_path / "out"

    def told(command, *words):
        assert main.main([command, *words, *given]) == 0, capsys.readouterr()
        return " ".join(capsys.readouterr().out.split())

    said = told("quantize", model, "--out", str(out))
    assert "48 to calibrate on and 12 held out" in said
    assert "% of 12 held-out pictures right, the float model" in said
    results = json.loads((out / "results.json").read_text("utf-8"))
    assert results["float_top1"] > 0.9
    assert results["held_out_images"] == 12
    assert "top-1" in told("evaluate", str(out / "model.tflite"))
    verified = told("verify", str(out / "model.tflite"), "--out", str(tmp_path / "proof"))
    assert "top-1" in verified
    certificate = json.loads((tmp_path / "proof" / "certificate.json").read_text("utf-8"))
    assert certificate["top1"]["tflite"] > 0.9
    assert "ranked by top-1 lost" in told("sensitivity", model)
    told("allocate", model, "--budget", "average_bits=8")
    told("audit", model)
    told("explain", model)


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
    "quantize": ["--out", "out"],
    "explain": [],
    "sensitivity": [],
    "allocate": ["--budget", "average_bits=100%"],
    "audit": [],
}


@pytest.mark.thorough
@pytest.mark.parametrize("command", QUANTIZING)
def test_every_command_finds_the_same_range_or_says_why_not(command, files, monkeypatch, said):
    monkeypatch.chdir(files)
    words = ["--images", "photos", *QUANTIZING[command]]
    more = ["--no-resume"] if command == "quantize" else []
    assert main.main([command, "one.keras", *words]) == 0
    assert "Input range: (-1, 1), found: top-1 on" in said()
    words += more
    assert main.main([command, "rescaled.keras", *words]) == 0
    assert "Input range: pixels, which its own layers convert." in said()
    assert main.main([command, "float.keras", *words]) == 2
    assert "100.0 % with (0, 1)" in said()
    assert main.main([command, "float.keras", *words, "--input_range", "0,255"]) in (0, 2)
    assert "Note: float.keras: received a model that is fed input_range=(0, 255)" in said()


@pytest.mark.thorough
@pytest.mark.parametrize("command", QUANTIZING)
def test_every_command_takes_real_values(command, files, monkeypatch, said):
    monkeypatch.chdir(files)
    signal = keras.Input((32, 2), name="signal")
    x = L.Conv1D(4, 3, activation="relu")(signal)
    x = L.Conv1D(4, 3, activation="relu")(x)
    model = keras.Model(signal, L.Dense(3)(L.GlobalAveragePooling1D()(x)))
    model.save("signal.keras")
    draw = np.random.default_rng(0)
    np.save("signals.npy", draw.normal(size=(64, 32, 2)).astype(np.float32))
    words = ["signal.keras", "--images", "signals.npy", *QUANTIZING[command]]
    words += [] if command == "audit" else ["--policy", "input_type=int8"]
    words += ["--out", "of_signals"] if command == "quantize" else []
    assert main.main([command, *words]) == 0
    told = said()
    assert "Input range" not in told
    assert "Images are fed as" not in told
    if command != "audit":
        np.save("codes.npy", draw.integers(-128, 128, (64, 32, 2)).astype(np.int8))
        assert main.main([command, *[word.replace("signals", "codes") for word in words]]) == 2
        assert "received int8, expected real values" in said()


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["sensitivity", "audit"])
def test_a_model_of_0_to_1_is_not_fed_pixels_without_a_word(command, files, monkeypatch, said):
    monkeypatch.chdir(files)
    asked = [command, "float.keras", "--images", "photos"]
    assert main.main(asked) == 2
    assert "% with (0, 255), 100.0 % with (0, 1)" in said()
    assert main.main([*asked, "--input_range", "0,255"]) == 0
    assert "Note: float.keras: received a model that is fed" in said()
    for right in (
        [*asked, "--input_range", "0,1"],
        [command, "rescaled.keras", "--images", "photos"],
        [command, "quantized.keras", "--images", "photos"],
    ):
        if command == "audit" or right[1] != "quantized.keras":
            assert main.main(right) == 0
            assert "received a model that is fed" not in said()


def test_the_range_of_a_quantized_model_is_its_own(files, said, capsys):
    asked = ["audit", str(files / "quantized.keras"), "--images", str(files / "photos")]
    assert main.main([*asked, "--input_range", "0,1"]) == 0
    capsys.readouterr()
    assert main.main([*asked, "--input_range", "torch"]) == 2
    assert 'received "torch" for a quantized model that is fed (0, 1)' in said()


def test_a_plan_has_the_range_of_the_option(files, said):
    model = str(files / "float.keras")
    assert main.main(["explain", model, "--input_range", "-1,1"]) == 0
    line = "image: pixels 0 to 255 stand for -1 to 1, uint8 in the file, folded into conv"
    assert line in said()
    assert main.main(["explain", model, "--policy", "weight_bits=2", "--input_range", "0,1"]) == 0
    assert "stand for 0 to 1, uint8" in said()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_files_of_real_values_are_verified_on_arrays_and_on_random_values(
    kind, tmp_path, said, capsys
):
    model = keras.Sequential(
        [keras.Input((6,), name="x"), L.Dense(5, activation="relu"), L.Dense(3, name="head")]
    )
    values = np.random.default_rng(0).normal(40.0, 9.0, (64, 6)).astype(np.float32)
    quantized = sat_tf.quantize_model(model, BitPolicy(input_type=kind))
    sat_tf.calibrate(quantized, values).save(tmp_path / "model.keras")
    pair = [str(tmp_path / "model.keras"), str(tmp_path / "model.tflite")]
    sat_tf.export_tflite(quantized, pair[1])
    np.save(tmp_path / "values.npy", values)
    for words in (pair, pair[1:]):
        for images in (["--images", str(tmp_path / "values.npy")], ["--num_images", "9"]):
            assert main.main(["verify", *words, *images]) == 0, capsys.readouterr().err
    # Random values again, drawn as the certificate has them.
    certificate = str(tmp_path / "certificate.json")
    assert main.main(["verify", pair[1], "--certificate", certificate]) == 0
    assert "holds" in said()


@pytest.mark.thorough
def test_verify_feeds_the_float_model_what_the_quantized_one_is_fed(files, tmp_path, said, capsys):
    path = tmp_path / "model.tflite"
    quantized = str(files / "quantized.keras")
    assert main.main(["export", quantized, "--out", str(path)]) == 0
    words = [quantized, str(path), "--images", str(files / "photos")]
    assert main.main(["verify", *words, "--float_model", str(files / "float.keras")]) == 0
    capsys.readouterr()
    assert main.main(["evaluate", str(path), "--images", str(files / "photos")]) == 0
    assert "top-1 100.00 %" in said()
