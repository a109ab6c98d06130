"""The example that runs a file: it prints the class, with its name where the file has names."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import sat_tf
from tests.export.zoo import Specimen, bottleneck, images_for

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "run_tflite.py"


@pytest.mark.thorough
@pytest.mark.parametrize("labels", [None, ["zero", "one", "two", "three"]])
def test_it_prints_the_class_of_a_picture(labels, tmp_path):
    model, path = Specimen(bottleneck, {}).quantized(), tmp_path / "model.tflite"
    sat_tf.export_tflite(model, path, labels=labels)
    image = images_for(model, 1)
    Image.fromarray(image[0]).save(tmp_path / "picture.png")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path), str(tmp_path / "picture.png")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    number, *name = done.stdout.split()
    assert int(number) == np.argmax(model.predict(image, verbose=0))
    assert name == ([labels[int(number)]] if labels else [])
