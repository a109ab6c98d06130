"""MediaPipe's image classifier reads what a file says of itself, and gives LiteRT's scores.

MediaPipe and TensorFlow want different releases of what they share: it runs in a Python of its own,
that the environment variable SAT_TF_MEDIAPIPE_PYTHON names, with `pip install mediapipe` in it.
"""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import sat_tf
from sat_tf.exact.litert.runtime import Runtime
from tests.export.zoo import images_for, quantized

VARIABLE = "SAT_TF_MEDIAPIPE_PYTHON"
PYTHON = os.environ.get(VARIABLE) or (
    sys.executable if importlib.util.find_spec("mediapipe") else None
)
LABELS = ["zero", "one", "two", "drei & vier"]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        PYTHON is None, reason=f"no mediapipe here: set {VARIABLE} to a Python that has it"
    ),
]

_CLASSIFY = """
import json, sys
import mediapipe
import numpy as np
from mediapipe.tasks.python import BaseOptions, vision

path, images = sys.argv[1:]
options = vision.ImageClassifierOptions(base_options=BaseOptions(model_asset_path=path))
with vision.ImageClassifier.create_from_options(options) as classifier:
    for pixels in np.load(images):
        picture = mediapipe.Image(image_format=mediapipe.ImageFormat.SRGB, data=pixels)
        (found,) = classifier.classify(picture).classifications
        print(json.dumps([[c.index, c.category_name, c.score] for c in found.categories]))
"""


@pytest.fixture(scope="module")
def model():
    return quantized("bottleneck")


@pytest.mark.parametrize(
    "settings",
    [
        {"labels": LABELS},
        {"labels": LABELS, "softmax": True, "description": "Numbers."},
        {"labels": LABELS, "resizable": True},
        {},
    ],
    ids=["labels", "softmax", "resizable", "no words"],
)
def test_mediapipe_gives_the_class_and_the_score_of_litert(model, settings, tmp_path):
    path, images = tmp_path / "model.tflite", images_for(model, 4)
    sat_tf.export_tflite(model, path, **settings)
    np.save(tmp_path / "images.npy", images)
    done = subprocess.run(
        [str(PYTHON), "-c", _CLASSIFY, str(path), str(tmp_path / "images.npy")],
        # Packages of this process are none of that Python's.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    expected = Runtime(path.read_bytes(), keep_tensors=False).run(images)
    lines = done.stdout.splitlines()
    assert len(lines) == len(images)
    for line, scores in zip(lines, expected, strict=True):
        found = json.loads(line)
        assert found[0][0] == np.argmax(scores)
        for index, name, score in found:
            assert name == (LABELS[index] if "labels" in settings else None)
            assert np.float32(score) == scores[index]
        assert sorted(index for index, _, _ in found) == list(range(len(scores)))
