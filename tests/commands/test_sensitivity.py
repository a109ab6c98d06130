import csv

import numpy as np
import pytest

from sat_tf.commands import main
from tests.commands.light import told_without_tensorflow
from tests.training.small import small_float_model, small_images, small_quantized_model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    small_float_model().save(folder / "float.keras")
    small_quantized_model().save(folder / "quantized.keras")
    np.save(folder / "images.npy", small_images().train_images)
    return folder


def said(capsys):
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def test_a_saved_model_is_measured_and_a_policy_suggested(files, tmp_path, capsys):
    table, picture = tmp_path / "layers.csv", tmp_path / "layers.svg"
    words = [str(files / "float.keras"), "--images", str(files / "images.npy"), "--bits", "3"]
    words += ["--csv", str(table), "--picture", str(picture), "--num_images", "64"]
    words += ["--first_last_weight_bits", "3", "--average_bits", "5"]
    assert main.main(["sensitivity", *words]) == 0
    words = said(capsys)
    assert "ranked by distance" in words
    assert "suggested: " in words
    with table.open(encoding="utf-8") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    assert names == ["stem", "depthwise", "pointwise", "pointwise_bn", "pool", "classifier"]
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("model", "words", "expected"),
    [
        ("quantized.keras", ["--images", "images.npy"], "expected the float model it was made"),
        ("float.keras", ["--images", "images.npy", "--metric", "top1"], "images without labels"),
        ("float.keras", ["--images", "images.npy", "--num_images", "1"], "at least 2"),
    ],
)
def test_what_cannot_be_measured_is_said_plainly(
    model, words, expected, files, monkeypatch, capsys
):
    monkeypatch.chdir(files)
    assert main.main(["sensitivity", model, *words]) == 2
    words = said(capsys)
    assert expected in words
    assert "Traceback" not in words


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["resnet18"], "received no images, expected --images or --dataset"),
        (["resnet19", "--dataset", "digits"], "Did you mean resnet18?"),
        (["resnet18", "--dataset", "digit"], "Did you mean digits?"),
        (["resnet18", "--dataset", "digits", "--bits", "9"], "weight_bits=9: expected an integer"),
        (["resnet18", "--dataset", "digits", "--picture", "a.jpg"], "ends in .jpg, expected .png"),
        (
            ["resnet18", "--dataset", "digits", "--max_drop", "1", "--average_bits", "4"],
            "expected one; leave one out",
        ),
    ],
)
def test_what_is_wrong_with_the_words_is_said_without_tensorflow(words, expected, tmp_path):
    told = told_without_tensorflow("sensitivity", *words, status=2, cwd=tmp_path)
    assert expected in " ".join(told.split())


@pytest.mark.parametrize("array", [np.array("word"), np.zeros((2, 5, 5, 3), np.uint8)])
def test_arrays_that_are_no_images_of_the_model_are_one_message(array, files, tmp_path, capsys):
    np.save(tmp_path / "images.npy", array)
    words = [str(files / "float.keras"), "--images", str(tmp_path / "images.npy")]
    assert main.main(["sensitivity", *words]) == 2
    assert "images: received shape" in said(capsys)
