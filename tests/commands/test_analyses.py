"""`sat-tf allocate`, `sensitivity` and `audit`."""

import csv

import numpy as np
import pytest
import tf_keras as keras
import yaml

from sat_tf.qat.policy import BitPolicy
from tests.training.small import small_float_model


def rows_of(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.essential
def test_bits_are_chosen_for_a_saved_model(files, tmp_path, sat):
    policy, table = tmp_path / "policy.yaml", tmp_path / "layers.csv"
    words = f"{files}/float.keras --images {files}/images.npy --num_images 64 --input_range 0,255"
    words += " --budget average_bits=5 bytes=100% --bits 2,4,8"
    said = sat(
        f"allocate {words} --policy first_last_weight_bits=null --out {policy} --out {table}"
    )
    assert "proven optimal" in said
    assert "mean weight bits" in said
    assert "Images are fed as input_range=(0, 255)." in said
    read = BitPolicy(**yaml.safe_load(policy.read_text(encoding="utf-8")))
    assert read.first_last_weight_bits is None
    sat(f"explain {files}/float.keras --policy {policy}")
    layers = ["stem", "depthwise", "pointwise", "classifier"]
    assert [row["name"] for row in rows_of(table)] == layers
    assert set(tmp_path.iterdir()) == {policy, table}


@pytest.mark.thorough
def test_an_npu_has_milliseconds(files, tmp_path, sat, monkeypatch):
    words = f"allocate {files}/float.keras --images {files}/images.npy --num_images 16 --bits 2,8"
    words += " --activation_bits 8 --input_range 0,255 --npu ethos-u55-128"
    words += f" --budget milliseconds=100% --out {tmp_path}/policy.yaml"
    assert "milliseconds" in sat(words)
    policy = yaml.safe_load((tmp_path / "policy.yaml").read_text(encoding="utf-8"))
    assert policy["target"] == "ethos-u55"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'sat-tf[ethos]'" in sat(words, status=2)


@pytest.mark.essential
def test_a_saved_model_is_measured_and_a_policy_suggested(files, tmp_path, sat):
    table, picture = (tmp_path / f"layers.{kind}" for kind in ("csv", "svg"))
    words = f"{files}/float.keras --images {files}/images.npy --num_images 64 --input_range 0,255"
    words += f" --bits 3 --policy first_last_weight_bits=3 --out {table} --out {picture}"
    said = sat(f"sensitivity {words} --average_bits 5")
    assert "ranked by distance" in said
    assert "Suggested, for BitPolicy(overrides=...): {" in said
    lost = {row["name"]: float(row["distance"]) for row in rows_of(table)}
    assert " ".join(lost) == "stem depthwise pointwise pointwise_bn pool classifier"
    assert picture.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.thorough
def test_images_give_gradients_and_the_files_that_are_asked_for(files, tmp_path, sat):
    page, table, labels = tmp_path / "audit.html", tmp_path / "audit.csv", tmp_path / "labels.npy"
    images = f"--images {files}/images.npy --labels {labels}"
    count = len(np.load(files / "images.npy"))
    np.save(labels, np.arange(count) % 10)  # the model has three classes
    said = sat(f"audit {files}/quantized.keras {images} --num_images 16 --out {page}", status=2)
    assert "expected class numbers from 0 to 2" in said
    assert not page.exists()
    np.save(labels, np.arange(count) % 3)
    sat(f"audit {files}/float.keras {images} --num_images 8 --out {table} --out {page}")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert all(row["gradient_variance"] for row in rows_of(table))


def test_a_saved_model_is_audited_and_strict_fails_where_a_rule_is_broken(files, tmp_path, sat):
    for name in ("quantized.keras", "float.h5"):
        said = sat(f"audit {files}/{name}")
        assert "small: " in said
        assert "classifier" in said
    model = keras.models.clone_model(small_float_model())
    kernel = model.get_layer("classifier").kernel
    kernel.assign(kernel * 100.0)
    model.save(tmp_path / "broken.keras")
    sat(f"audit {tmp_path}/broken.keras")
    assert "rule I" in sat(f"audit {tmp_path}/broken.keras --strict", status=1)
