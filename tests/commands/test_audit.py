import csv

import numpy as np
import pytest

from sat_tf.commands import main
from tests.training.small import small_float_model


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
