"""TensorBoard's callbacks of either Keras work with what the package asks for."""

import importlib
import pathlib
import tomllib

import numpy as np
import pytest

import sat_tf

_PROJECT = pathlib.Path(__file__).parents[2] / "pyproject.toml"


def test_tensorboard_comes_with_the_package():
    dependencies = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    assert any(words.startswith("tensorboard>") for words in dependencies)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tf_keras", "keras"])
def test_a_quantized_model_is_trained_with_the_callback(name, tmp_path):
    keras = importlib.import_module(name)
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 3)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3)).astype(np.float32)
    q = sat_tf.quantize_model(model, sat_tf.BitPolicy(weight_bits=4, activation_bits=4))
    q.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    board = keras.callbacks.TensorBoard(str(tmp_path), histogram_freq=1)
    q.fit(images, np.arange(16) % 3, verbose=0, callbacks=[board])
    (events,) = (tmp_path / "train").glob("events.*")
    text = events.read_bytes()
    assert b"epoch_loss" in text
    assert b"histogram" in text
