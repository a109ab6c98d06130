"""A run on a folder of pictures: what it says, refuses, and hands on to its file."""

import argparse
import io
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from rich.console import Console

from sat_tf.commands import evaluate, export
from sat_tf.commands.main import command_parser
from sat_tf.commands.train import folder_config, train
from sat_tf.exact.tflite.metadata import Metadata, read_metadata
from sat_tf.exact.tflite.preprocessing import RESIZED_AND_CROPPED
from sat_tf.messages import RunError
from sat_tf.training.distribution import strategy_note
from sat_tf.training.loop.start import about_data, load_source
from sat_tf.training.run_folder import RunFolder
from tests.conftest import mirrored

SMALL = (
    "data.options.image_size=32",
    "model={name: mobilenet_v1, options: {width_multiplier: 0.25, stem_stride: 1}}",
    "stages.float.epochs=1",
    "stages.float.warmup_epochs=0",
    "stages.quantized.epochs=1",
    "stages.quantized.warmup_epochs=0",
    "export.verify_images=8",
)


def pictures(root, names, count=8):
    """JPEGs of noise, brighter the later their class comes."""
    generator = np.random.RandomState(0)
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator.randint(0, 99, (40, 48, 3)) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.jpg")
    return root


def config_of(root, *overrides):
    return folder_config(str(root), Console(file=io.StringIO()), overrides=[*SMALL, *overrides])


def test_it_says_what_it_trains_on(tmp_path):
    source = load_source(config_of(pictures(tmp_path / "pets", ["cat", "dog", "ox"])))
    line, note = about_data(source)
    assert line == (
        "pets: 3 classes (cat, dog, ox), 18 pictures to train on, 6 held out, 32x32 pixels"
    )
    assert note.startswith("Note: of each class a fifth is held out")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["cat"], r"received one class \(cat\), which every picture is in; e"),
        (["cat", " "], "labels: received ' ' for class 0, expected texts of one"),
    ],
)
def test_one_class_and_names_that_no_file_can_hold_are_refused(names, message, tmp_path):
    config = config_of(pictures(tmp_path / "pets", names))
    with pytest.raises(RunError, match=message):
        load_source(config)


def test_a_strategy_of_one_device_is_remarked_upon():
    one = tf.distribute.get_strategy()
    assert "mirrored: received one device, expected several" in strategy_note("mirrored", one)
    assert strategy_note("auto", one) is None
    assert strategy_note("mirrored", mirrored()) is None


@pytest.mark.thorough
def test_its_file_knows_the_classes_and_the_preprocessing(tmp_path):
    root = pictures(tmp_path / "pets", ["cat", "dog"], count=40)
    folder, console = RunFolder(tmp_path / "run"), Console(file=io.StringIO(), width=300)
    assert train(config_of(root), folder, console)
    assert folder.file("labels.txt").read_text() == "cat\ndog\n"
    said = Metadata(labels=("cat", "dog"), preprocessing=RESIZED_AND_CROPPED)
    path = folder.file("model.tflite")
    assert read_metadata(path.read_bytes(), "model.tflite") == said
    assert "cat, dog" in folder.file("report.html").read_text()
    assert "held-out images of pets" in folder.file("certificate.html").read_text()
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["labels.txt", "preprocessing.json"]
    # The same from the run folder, and of its own held-out pictures.
    again = [str(folder.path), "--out", str(tmp_path / "again.tflite")]
    export.run(command_parser("export").parse_args(again), console)
    assert (tmp_path / "again.tflite").read_bytes() == path.read_bytes()
    words = {"file": path, "images": str(root), "labels": None, "num_images": None}
    evaluate.run(argparse.Namespace(**words), console)
    assert "numbered by the names in the file" in console.file.getvalue()
