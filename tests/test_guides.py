"""The Python of the first pages and of the guides runs, block after block, on a small model."""

import importlib.util
import pathlib
import re

import keras as keras3  # noqa: TID251 - the pages for Keras 3
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from PIL import Image

import sat_tf
import sat_tf.callbacks
import sat_tf.export

DOCS = pathlib.Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [
    str(page.relative_to(DOCS))
    for folder in ("start", "guides")
    for page in sorted((DOCS / folder).glob("*.md"))
    if _BLOCK.search(page.read_text(encoding="utf-8"))
]
_OF_KERAS3 = {"start/keras3.md"}
_OF_FEATURES = {"guides/input_range.md"}
_SCALED = {"start/mobile_engineer.md"}
_COMPILES_FOR_AN_NPU = {"start/ethos_u.md", "guides/allocate.md"}


def _classifier(library):
    layers = library.layers
    return library.Sequential(
        [
            layers.Input((8, 8, 3)),
            layers.Conv2D(4, 3, use_bias=False, name="conv"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(32, 3, padding="same", use_bias=False, name="block_1_conv"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, name="classifier"),
        ]
    )


def _names(page):
    """The names that the blocks of a page take for granted."""
    library = keras3 if page in _OF_KERAS3 else keras
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (64, 8, 8, 3)).astype(np.uint8)
    labels = draw.integers(0, 3, 64)
    model = _classifier(library)
    fed = (0, 1) if page in _SCALED else (0, 255)
    images = (pixels / 255).astype(np.float32) if page in _SCALED else pixels
    values = images.astype(np.float32)
    batches = tf.data.Dataset.from_tensor_slices((values, labels)).batch(32)
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    names = {"sat_tf": sat_tf, "tfmot": tfmot, "keras": library, "loss": loss, "labels": labels}
    names |= {"images": images, "pixels": pixels, "class_names": ["one", "two", "three"]}
    names |= {"dataset": batches, "batches": batches, "held_out": batches}
    names |= {"policy": sat_tf.BitPolicy.mobile(8), "np": np}
    if page in _OF_FEATURES:
        names["image_model"] = _classifier(library)
        model = library.Sequential([library.layers.Input((6,)), library.layers.Dense(3)])
        names["features"] = draw.normal(size=(64, 6)).astype(np.float32)
        return {**names, "model": model}
    model(values, training=True)  # statistics as if it had been trained
    q = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, input_range=fed))
    sat_tf.calibrate(q, values)
    q.compile("sgd", loss)
    sat_tf.export_tflite(q, "model.tflite")
    return {**names, "model": model, "q": q}


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    if page in _COMPILES_FOR_AN_NPU and importlib.util.find_spec("ethosu") is None:
        pytest.skip("without ethos-u-vela; pip install '.[ethos]'")
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    names = _names(page)
    pathlib.Path("photos").mkdir()
    for place, pixels in enumerate(names["pixels"]):
        Image.fromarray(pixels).save(f"photos/{place}.png")
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in _BLOCK.findall(text):
        trained = block.replace("q.compile(...)", "q.compile('sgd', loss)")
        exec(trained.replace("q.fit(...)", "q.fit(dataset)"), names)
