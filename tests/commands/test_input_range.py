"""Commands feed models the range that they were trained on, and say where that cannot be right."""

import numpy as np
import pytest
import tf_keras as keras
from PIL import Image

import sat_tf
from sat_tf.commands import main
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.input_range import NAMED
from tests.training.small import model_of_one_range, model_of_small_range, small_images

L = keras.layers


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model_of_small_range().save(folder / "float.keras")
    model_of_small_range(inside=True).save(folder / "rescaled.keras")
    model_of_one_range(NAMED["tf"]).save(folder / "one.keras")
    images = small_images(train=1, test=64)
    for index, (pixels, label) in enumerate(
        zip(images.test_images, images.test_labels, strict=True)
    ):
        (folder / "photos" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "photos" / str(label) / f"{index:03}.png")
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
