import pathlib
import re

import numpy as np
import pytest
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.export.litert.runtime import Runtime

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LARGEST_README = 8 * 1024
_COMPILE = "q.compile('sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))"
_FIT = "q.fit(pixels.astype('float32'), labels, verbose=0)"


def _small_model():
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )


def _python_blocks(page):
    text = (ROOT / page).read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.thorough
def test_the_code_in_the_readme_and_its_guides_runs_and_no_code_differs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    draw = np.random.default_rng(0)
    names = {
        "keras": keras,
        "model": _small_model(),
        "pixels": draw.integers(0, 256, (64, 8, 8, 3)).astype(np.uint8),
        "labels": draw.integers(0, 3, 64),
    }
    (whole,) = _python_blocks("README.md")
    (in_tfmots_words,) = _python_blocks("docs/guides/tfmot.md")
    _, in_litert, real_of_codes = _python_blocks("docs/guides/export.md")
    exec(whole.replace("q.compile(...)", _COMPILE).replace("q.fit(...)", _FIT), names)
    assert names["certificate"].codes_differing == 0
    exec(in_litert, names)
    assert "scores" in names
    assert pathlib.Path("model.tflite").is_file()

    sat_tf.export_tflite(names["q"], "codes.tflite", output_type="int8")
    exec(in_litert.replace("model.tflite", "codes.tflite"), names)
    exec(real_of_codes, names)
    runtime = Runtime(pathlib.Path("codes.tflite").read_bytes(), keep_tensors=False)
    (expected,) = runtime.run(names["pixels"])
    np.testing.assert_array_equal(names["real"], [expected])

    # Both ways to quantize give the same model.
    names["tfmot"], names["sat_tf"] = tfmot, sat_tf
    quantizes, _ = in_tfmots_words.split("\n\n")  # the rest trains and exports
    exec(quantizes, names)
    one = sat_tf.quantize_model(names["model"], sat_tf.BitPolicy(weight_bits=4, activation_bits=4))
    pixels = names["pixels"].astype(np.float32)
    np.testing.assert_array_equal(names["q"](pixels), one(pixels))


def test_every_file_the_readme_links_to_is_there():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 4
    for link in links:
        assert (ROOT / link).is_file(), link


def test_the_readme_is_a_front_door():
    assert len(README.encode()) <= LARGEST_README
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if "|" in line]
    assert not any(cell == "" for row in rows for cell in row[1:])


def test_the_first_page_of_the_documentation_has_the_lines_of_the_readme():
    (in_readme,), (on_page,) = _python_blocks("README.md"), _python_blocks("docs/index.md")
    assert on_page == in_readme
