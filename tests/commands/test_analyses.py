"""`sat-tf allocate`, `sensitivity` and `audit`."""

import csv
import json

import numpy as np
import pytest
import yaml

from sat_tf.commands import main
from sat_tf.qat.policy import BitPolicy
from tests.training.small import small_float_model

LAYERS = ("stem", "depthwise", "pointwise", "classifier")


@pytest.mark.essential
def test_bits_are_chosen_for_a_saved_model(files, tmp_path, said):
    names = ("policy.yaml", "layers.csv")
    policy, table = (tmp_path / name for name in names)
    words = [str(files / "float.keras"), "--images", str(files / "images.npy")]
    words += ["--budget", "average_bits=5", "bytes=100%", "--bits", "2,4,8"]
    words += ["--policy", "first_last_weight_bits=null", "--num_images", "64"]
    words += ["--input_range", "0,255"]
    words += ["--out", str(policy), "--out", str(table)]
    assert main.main(["allocate", *words]) == 0
    told = said()
    assert "proven optimal" in told
    assert "mean weight bits" in told
    assert "Images are fed as input_range=(0, 255)." in told
    read = BitPolicy(**yaml.safe_load(policy.read_text(encoding="utf-8")))
    assert read.first_last_weight_bits is None
    assert main.main(["explain", str(files / "float.keras"), "--policy", str(policy)]) == 0
    with table.open(encoding="utf-8") as file:
        assert tuple(row["name"] for row in csv.DictReader(file)) == LAYERS
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.thorough
def test_an_npu_has_milliseconds(files, tmp_path, said, monkeypatch):
    words = [str(files / "float.keras"), "--images", str(files / "images.npy")]
    words += [
        *("--num_images", "16", "--input_range", "0,255", "--bits", "2,8", "--activation_bits"),
        "8",
    ]
    words += ["--npu", "ethos-u55-128"]
    words += ["--budget", "milliseconds=100%", "--out", str(tmp_path / "policy.yaml")]
    assert main.main(["allocate", *words]) == 0
    told = said()
    assert "milliseconds" in told
    policy = yaml.safe_load((tmp_path / "policy.yaml").read_text(encoding="utf-8"))
    assert policy["target"] == "ethos-u55"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main.main(["allocate", *words]) == 2
    assert "pip install 'sat-tf[ethos]'" in said()


@pytest.mark.essential
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


@pytest.mark.parametrize("name", ["quantized.keras", "float.h5"])
def test_a_saved_model_is_audited(name, files, said):
    assert main.main(["audit", str(files / name)]) == 0
    words = said()
    assert "small: " in words
    assert "classifier" in words


@pytest.mark.thorough
def test_images_give_gradients_and_the_files_that_are_asked_for(files, tmp_path, said):
    page, table = tmp_path / "audit.html", tmp_path / "audit.csv"
    labels = files / "labels.npy"
    images = ["--images", str(files / "images.npy"), "--labels", str(labels)]
    count = len(np.load(files / "images.npy"))
    np.save(labels, np.arange(count) % 10)  # the model has three classes
    words = ["audit", str(files / "quantized.keras"), *images, "--num_images", "16"]
    assert main.main([*words, "--out", str(page)]) == 2
    assert "expected class numbers from 0 to 2" in said()
    assert not page.exists()
    np.save(labels, np.arange(count) % 3)
    small_float_model().save(files / "float.keras")
    words = ["audit", str(files / "float.keras"), *images, "--num_images", "8"]
    words += ["--out", str(table), "--out", str(page)]
    assert main.main(words) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    with table.open(encoding="utf-8") as file:
        assert all(row["gradient_variance"] for row in csv.DictReader(file))


def test_strict_fails_where_a_rule_is_broken(tmp_path, said):
    model = small_float_model()
    weights = model.get_weights()
    kernel = model.get_layer("classifier").kernel
    try:
        kernel.assign(kernel * 100.0)
        model.save(tmp_path / "broken.keras")
    finally:
        model.set_weights(weights)
    assert main.main(["audit", str(tmp_path / "broken.keras")]) == 0
    assert main.main(["audit", str(tmp_path / "broken.keras"), "--strict"]) == 1
    assert "rule I" in said()
