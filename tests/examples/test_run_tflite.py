"""The example that runs a file: pixels and classes are those of `sat-tf evaluate`."""

import importlib.util
import io
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import sat_tf
from sat_tf.commands.evaluate import evaluate_file
from sat_tf.commands.pixels import ImageOptions
from sat_tf.data.class_folders import load_folder_tree
from sat_tf.data.picture_folder import load_folder
from sat_tf.preprocessing import AS_IN_IMAGENET, COVERING, RESIZED_AND_CROPPED
from tests.data.photographs import encoded, photograph
from tests.export.zoo import quantized

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "run_tflite.py"
LABELS = ["ant", "bee", "cat", "dog"]
SIZES = [(60, 80), (90, 47), (33, 200), (500, 375), (8, 8), (31, 32)]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("run_tflite", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    files = sorted((pictures / "val").rglob("*.jpg"))
    found = [example.prepare(file, shape, json.loads(known.to_json())) for file in files]
    expected = load_folder(pictures, shape, preprocessing=known).images
    order = sorted(range(len(files)), key=lambda index: (files[index].parent, files[index].name))
    np.testing.assert_array_equal(np.stack([found[index] for index in order]), expected)


def test_its_pixels_are_those_of_training_to_one_level(pictures):
    found, labels = load_folder_tree(pictures, image_size=32).held_out_sample(100)
    expected = load_folder(pictures, (32, 32, 3), preprocessing=RESIZED_AND_CROPPED)
    np.testing.assert_array_equal(labels, expected.labels)
    # Pillow rounds after columns and after rows, TensorFlow once.
    assert np.abs(found.astype(int) - expected.images).max() <= 1


def test_what_is_no_file_for_it_is_said_in_a_line(example, tmp_path):
    (tmp_path / "text.tflite").write_text("text")
    for name in ("text.tflite", "nothing.tflite"):
        path = str(tmp_path / name)
        with pytest.raises(SystemExit, match="received no TFLite file that LiteRT runs"):
            example.main([path, "picture.png"])


def test_without_arguments_it_says_what_it_wants(example):
    with pytest.raises(SystemExit, match=r"usage: python run_tflite.py model.tflite picture.png"):
        example.main([])


@pytest.mark.thorough
@pytest.mark.parametrize("labels", [None, LABELS])
def test_its_classes_are_those_that_evaluate_counts(labels, pictures, tmp_path):
    model, path = quantized("bottleneck"), tmp_path / "model.tflite"
    sat_tf.export_tflite(model, path, labels=labels, preprocessing=RESIZED_AND_CROPPED)
    files = sorted((pictures / "val").rglob("*.jpg"))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path), *map(str, files)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    lines = [
        line.removeprefix(f"{file}: ")
        for line, file in zip(done.stdout.splitlines(), files, strict=True)
    ]
    numbers = [int(line.split()[0]) for line in lines]
    if labels:
        assert lines == [f"{number} {labels[number]}" for number in numbers]
    right = np.mean(
        [LABELS[number] == file.parent.name for number, file in zip(numbers, files, strict=True)]
    )
    console = Console(file=io.StringIO(), width=200)
    evaluate_file(path, console, wanted=ImageOptions(str(pictures / "val"), usual=None))
    assert f"top-1 {100 * right:.2f} %" in console.file.getvalue()
