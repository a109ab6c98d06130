"""The labels of images in an .npy file."""

import json

import numpy as np
import pytest

from sat_tf.commands import main
from sat_tf.commands.images import read_labels
from tests.commands.light import told_without_tensorflow
from tests.training.small import model_of_small_range, small_images


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.txt", "0\n2\n 1 \n"),
        ("labels.csv", "0\n2\n1\n"),
        ("labels.csv", "file,label\na.png,0\nb.png,2\nc.png,1\n"),
        ("labels.csv", "class,file\n0,a.png\n2,b.png\n1,c.png\n"),
        ("labels.csv", "a.png,0\r\nb.png,2\r\nc.png,1\r\n"),
    ],
)
def test_text_and_tables_hold_class_numbers(name, text, tmp_path):
    path = tmp_path / name
    path.write_bytes(text.encode())
    labels = read_labels(str(path), 3, 3)
    assert (labels.tolist(), labels.dtype) == ([0, 2, 1], np.int32)


@pytest.mark.parametrize("values", [np.array([0, 2, 1], np.uint8), np.array([[0], [2], [1]])])
def test_arrays_hold_class_numbers(values, tmp_path):
    np.save(tmp_path / "labels.npy", values)
    assert read_labels(str(tmp_path / "labels.npy"), 3, 3).tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--images", "."], "received --images ., a folder, expected them for images in an .npy"),
        (["--images", "x.npy", "--labels", "l.json"], "received .json, expected one of .npy, .txt"),
        (["--images", "x.npy", "--labels", "no.txt"], "no.txt: not found"),
    ],
)
def test_labels_without_their_images_are_refused_before_tensorflow_is_loaded(
    words, expected, tmp_path
):
    np.save(tmp_path / "x.npy", np.zeros((2, 2), np.uint8))
    (tmp_path / "m.keras").touch()
    words = words if "--labels" in words else [*words, "--labels", "labels.txt"]
    for command in ("quantize", "sensitivity", "explain"):
        said = told_without_tensorflow(command, "m.keras", *words, status=2, cwd=tmp_path)
        assert expected in " ".join(said.split())


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*images give unreliable statistics")
def test_all_commands_measure_by_the_labels_of_arrays(tmp_path, capsys):
    images = small_images(train=60)
    model_of_small_range(inside=True).save(tmp_path / "m.keras")
    np.save(tmp_path / "x.npy", images.train_images)
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(map(str, images.train_labels)))
    given = ["--images", str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.csv")]
    model, out = str(tmp_path / "m.keras"), tmp_path / "out"

    def told(command, *words):
        assert main.main([command, *words, *given]) == 0, capsys.readouterr()
        return " ".join(capsys.readouterr().out.split())

    said = told("quantize", model, "--out", str(out))
    assert "48 to calibrate on and 12 held out" in said
    assert "% of 12 held-out pictures right, the float model" in said
    results = json.loads((out / "results.json").read_text("utf-8"))
    assert results["float_top1"] > 0.9
    assert results["held_out_images"] == 12
    assert "top-1" in told("evaluate", str(out / "model.tflite"))
    verified = told("verify", str(out / "model.tflite"), "--out", str(tmp_path / "proof"))
    assert "top-1" in verified
    certificate = json.loads((tmp_path / "proof" / "certificate.json").read_text("utf-8"))
    assert certificate["top1"]["tflite"] > 0.9
    assert "ranked by top-1 lost" in told("sensitivity", model)
    told("allocate", model, "--budget", "average_bits=8")
    told("audit", model)
    told("explain", model)
