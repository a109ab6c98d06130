import csv
import json

import numpy as np
import pytest

from sat_tf.commands import main


def test_a_saved_model_is_measured_and_a_policy_suggested(files, tmp_path, said):
    table, picture, overlay = (tmp_path / f"layers.{kind}" for kind in ("csv", "svg", "json"))
    words = [str(files / "float.keras"), "--images", str(files / "images.npy"), "--bits", "3"]
    words += ["--out", str(table), "--out", str(picture), "--num_images", "64"]
    words += ["--out", str(overlay)]
    words += ["--policy", "first_last_weight_bits=3", "--average_bits", "5"]
    words += ["--input_range", "0,255"]
    assert main.main(["sensitivity", *words]) == 0
    words = said()
    assert "ranked by distance" in words
    assert "Suggested, for BitPolicy(overrides=...): {" in words
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [row["name"] for row in rows]
    assert names == ["stem", "depthwise", "pointwise", "pointwise_bn", "pool", "classifier"]
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    marks = json.loads(overlay.read_text(encoding="utf-8"))["results"]
    lost = {row["name"]: float(row["distance"]) for row in rows}
    # A kernel and the stream that its operator makes share a tensor, which has the larger loss.
    assert marks["pointwise_bn"]["value"] == pytest.approx(
        max(lost["pointwise"], lost["pointwise_bn"]), rel=1e-5
    )
    assert max(mark["value"] for mark in marks.values()) == pytest.approx(
        max(lost.values()), rel=1e-5
    )


FED = ["--images", "images.npy", "--input_range", "0,255"]


@pytest.mark.parametrize(
    ("model", "words", "expected"),
    [
        ("quantized.keras", ["--images", "images.npy"], "expected the float model it was made"),
        ("float.keras", [*FED, "--metric", "top1"], "images without labels"),
        ("float.keras", [*FED, "--num_images", "1"], "at least 2"),
        ("float.keras", ["--images", "images.npy"], "received no pictures in folders of its"),
    ],
)
def test_what_cannot_be_measured_is_said_plainly(model, words, expected, files, monkeypatch, said):
    monkeypatch.chdir(files)
    assert main.main(["sensitivity", model, *words]) == 2
    words = said()
    assert expected in words
    assert "Traceback" not in words


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array("word"), "expected a folder of pictures, or an .npy file of uint8 images"),
        (np.zeros((2, 5, 5, 3), np.uint8), "images: received shape"),
    ],
)
def test_arrays_that_are_no_images_of_the_model_are_one_message(
    array, expected, files, tmp_path, said
):
    np.save(tmp_path / "images.npy", array)
    words = [str(files / "float.keras"), "--images", str(tmp_path / "images.npy")]
    assert main.main(["sensitivity", *words]) == 2
    assert expected in said()
