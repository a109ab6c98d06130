"""The example that runs a file: pixels and classes are those of `sat-tf evaluate`."""

import itertools
import json
import pathlib
import runpy
import subprocess
import sys
import types

import numpy as np
import PIL
import pytest
import tf_keras as keras
from PIL import Image
from sklearn.datasets import load_sample_image

import sat_tf
from sat_tf.commands.main import main
from sat_tf.exact.tflite.preprocessing import AS_IN_IMAGENET, COVERING, RESIZED_AND_CROPPED
from sat_tf.pictures import open_pictures
from sat_tf.training.data.folders import load_folder_tree
from tests.export.zoo import quantized
from tests.training.data.photographs import encoded, photograph

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "run_tflite.py"
LABELS = ["ant", "bee", "cat", "dog"]
SIZES = [(60, 80), (90, 47), (33, 200), (500, 375), (8, 8), (31, 32)]


@pytest.fixture(scope="module")
def example():
    return types.SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A divided folder of pictures of all shapes, some of them turned."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, size in enumerate(SIZES * 2):
        image = Image.fromarray(photograph(*size, seed=number))
        exif = image.getexif()
        if number % 2:
            exif[0x0112] = 1 + number % 8
        for part in ("train", "val"):
            path = folder / part / LABELS[number % 3] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(image, exif=exif))
    return folder


@pytest.mark.parametrize("known", [COVERING, RESIZED_AND_CROPPED, AS_IN_IMAGENET])
@pytest.mark.parametrize("shape", [(32, 32, 3), (24, 40, 1)])
def test_its_pixels_are_those_of_the_package(example, pictures, known, shape):
    files = sorted((pictures / "val").rglob("*.jpg"), key=lambda file: (file.parent, file.name))
    found = [example.prepare(file, shape, json.loads(known.to_json())) for file in files]
    expected, _ = open_pictures(pictures, shape, known).held_out.images()
    np.testing.assert_array_equal(np.stack(found), expected)


def test_its_pixels_of_16_bits_are_those_of_the_package(example, tmp_path):
    shades = np.linspace(0, 65535, 50 * 70).reshape(50, 70).astype(np.uint16)
    Image.fromarray(shades).save(tmp_path / "shades.png")
    found = example.prepare(tmp_path / "shades.png", (32, 32, 3), {})
    np.testing.assert_array_equal(found, open_pictures(tmp_path, (32, 32, 3)).images()[0][0])


def test_its_pixels_are_those_that_a_run_is_calibrated_on_and_measured_with(pictures):
    source = load_folder_tree(pictures, image_size=32)
    found, labels = source.held_out_sample(100)
    listed = open_pictures(pictures, (32, 32, 3), RESIZED_AND_CROPPED)
    expected, kept = listed.held_out.images()
    np.testing.assert_array_equal(labels, kept.labels)
    np.testing.assert_array_equal(found, expected)
    (batch, _) = next(iter(source.held_out_batches(batch_size=len(labels))))
    np.testing.assert_array_equal(batch, expected)
    # Those to calibrate on, in another order.
    to_calibrate = source.training_sample(100, seed=0)
    assert {image.tobytes() for image in to_calibrate} == {
        image.tobytes() for image in listed.images()[0]
    }


@pytest.mark.thorough
def test_a_report_has_the_accuracy_that_evaluate_and_a_phone_have(example, tmp_path, capsys):
    """Real photographs of several shapes, in classes that a network tells by their colours."""
    draws = np.random.default_rng(0)
    photos = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    for part, number in itertools.product(("train", "val"), range(40)):
        height, width = draws.integers(40, 300, 2)
        top, left = (draws.integers(0, side - size) for side, size in ((427, height), (640, width)))
        crop = photos[number % 2][top : top + height, left : left + width]
        path = tmp_path / "photos" / part / f"class_{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(crop).save(path, quality=int(draws.integers(60, 95)))
    keras.utils.set_random_seed(0)
    layers = keras.layers
    start = keras.Input((32, 32, 3)), layers.Rescaling(1 / 127.5, offset=-1.0)
    conv = layers.Conv2D(8, 3, strides=2, activation="relu")
    model = keras.Sequential([*start, conv, layers.Flatten(), layers.Dense(2)])
    model.save(tmp_path / "float.keras")
    out, photos = tmp_path / "out", str(tmp_path / "photos")
    main(["quantize", str(tmp_path / "float.keras"), "--images", photos, "--out", str(out)])
    results = json.loads((out / "results.json").read_text())
    assert results["held_out_images"] == results["tflite_images"] == 40
    right = f"{100 * results['tflite_top1']:.2f} %"
    assert "Pillow" in json.loads((out / "certificate.json").read_text())["images_from"]["decoder"]
    for page in ("certificate.html", "report.html"):
        assert f"decoded and resized by Pillow {PIL.__version__}" in (out / page).read_text()
    capsys.readouterr()
    assert main(["evaluate", str(out / "model.tflite"), "--images", photos]) == 0
    assert f"top-1 {right} (LiteRT, 40 images" in " ".join(capsys.readouterr().out.split())
    files = sorted((tmp_path / "photos" / "val").rglob("*.jpg"))
    example.main([str(out / "model.tflite"), *map(str, files)])
    lines = capsys.readouterr().out.splitlines()
    hits = [line.endswith(file.parent.name) for line, file in zip(lines, files, strict=True)]
    assert f"{100 * np.mean(hits):.2f} %" == right


def test_what_it_cannot_run_is_said_in_a_line(example, tmp_path):
    (tmp_path / "text.tflite").write_text("text")
    no_file = "received no TFLite file that LiteRT runs"
    files = [str(tmp_path / f"{name}.tflite") for name in ("text", "nothing")]
    usage = "usage: python run_tflite.py model.tflite picture.png"
    for words, said in (*(([file, "x.png"], no_file) for file in files), ([], usage)):
        with pytest.raises(SystemExit, match=said):
            example.main(words)


@pytest.mark.thorough
@pytest.mark.parametrize("labels", [None, LABELS])
def test_its_classes_are_those_that_evaluate_counts(labels, pictures, tmp_path, capsys):
    model, path = quantized("bottleneck"), tmp_path / "model.tflite"
    sat_tf.export_tflite(model, path, labels=labels, preprocessing=RESIZED_AND_CROPPED)
    files = sorted((pictures / "val").rglob("*.jpg"))
    words = [sys.executable, SCRIPT, path, *files]
    told = subprocess.check_output(words, text=True, timeout=120).splitlines()
    lines = [line.removeprefix(f"{file}: ") for line, file in zip(told, files, strict=True)]
    numbers = [int(line.split()[0]) for line in lines]
    if labels:
        assert lines == [f"{number} {labels[number]}" for number in numbers]
    classes = [file.parent.name for file in files]
    right = np.mean([LABELS[number] == name for number, name in zip(numbers, classes, strict=True)])
    assert main(["evaluate", str(path), "--images", str(pictures / "val")]) == 0
    assert f"top-1 {100 * right:.2f} %" in " ".join(capsys.readouterr().out.split())
