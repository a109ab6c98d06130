import csv
import json

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
