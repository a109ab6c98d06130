"""Facts of every family."""

import inspect
import math

import numpy as np
import pytest
import tf_keras as keras

from sat_tf.training import models
from tests.training.models.small import OPTIONS, build_small, count_multiply_adds, small_model

FAMILIES = tuple(models.MODELS)


def test_every_family_has_a_small_model():
    assert set(OPTIONS) == set(models.MODELS)


# Parameters and multiply-adds as torchvision publishes them beside its checkpoints, which are of
# the same architectures. MobileNets have tables of their own in their tests.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "parameters", "billions"),
    [
        ("resnet18", 11_689_512, 1.814),
        ("resnet50", 25_557_032, 4.089),
        # ResNet-50 has two parameters for each of 26,560 normalized channels: 64 behind the stem,
        # 6·(3·64 + 4·128 + 6·256 + 3·512) in its blocks, 256 + 512 + 1024 + 2048 in shortcuts.
        # Normalization in front leaves 22,720 of them: what enters each block, 64 + 2·256 +
        # 256 + 3·512 + 512 + 5·1024 + 1024 + 2·2048; two inner ones a block, 2·(3·64 + 4·128 +
        # 6·256 + 3·512); and 2048 in front of the pool. 25,557,032 - 2·3,840 = 25,549,352.
        ("preresnet50", 25_549_352, 4.089),
        ("vgg16", 138_357_544, 15.47),
        ("vgg16_bn", 138_365_992, 15.47),
    ],
)
def test_sizes_are_the_published_ones(name, parameters, billions):
    model = models.build(name)
    assert sum(math.prod(v.shape) for v in model.trainable_weights) == parameters
    # The tables print so many decimals.
    decimals = len(str(billions).split(".")[1])
    assert round(count_multiply_adds(model) / 10**9, decimals) == billions


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_weights(name):
    again = build_small(name)
    for first, second in zip(small_model(name).get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_another_seed_gives_other_kernels_everywhere(name):
    other = build_small(name, seed=1)
    for first, second in zip(small_model(name).weights, other.weights, strict=True):
        if "kernel" in first.name:
            assert not np.array_equal(first.numpy(), second.numpy()), first.name


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_of_one_shape_do_not_share_their_weights(name):
    kernels = [v.numpy() for v in small_model(name).weights if "kernel" in v.name]
    seen = {kernel.tobytes() for kernel in kernels}
    assert len(seen) == len(kernels)


def test_models_without_a_seed_differ():
    first, second = (
        build_small("mobilenet_v1", 8, seed=None).get_layer("stem_conv").kernel.numpy()
        for _ in range(2)
    )
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", FAMILIES)
def test_any_batch_of_images_becomes_logits(name):
    model = small_model(name)
    assert model.name == name
    assert model.input_shape == (None, 32, 32, 3)
    assert model.output_shape == (None, 10)
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    logits = model(images.astype(np.float32)).numpy()
    assert logits.shape == (3, 10)
    assert np.isfinite(logits).all()
    # Logits, not probabilities: nothing behind the dense layer, which has no activation.
    assert model.layers[-1].name == "classifier"
    assert keras.activations.serialize(model.layers[-1].activation) == "linear"


@pytest.mark.thorough
@pytest.mark.parametrize("rectifier_max", [1.5, None])
@pytest.mark.parametrize("name", FAMILIES)
def test_rectifier_max_reaches_every_rectifier(name, rectifier_max):
    model = build_small(name, 8, rectifier_max=rectifier_max)
    found = [layer for layer in model.layers if isinstance(layer, keras.layers.ReLU)]
    assert found
    assert all(layer.max_value == rectifier_max for layer in found)


@pytest.mark.parametrize("name", FAMILIES)
def test_rectifiers_are_published_with_6_in_mobilenets_and_without_a_maximum_elsewhere(name):
    expected = 6.0 if name.startswith("mobilenet") else None
    found = [layer for layer in small_model(name).layers if isinstance(layer, keras.layers.ReLU)]
    assert all(layer.max_value == expected for layer in found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith("vgg")])
def test_only_the_classifier_of_a_normalized_network_has_a_bias(name):
    layers = small_model(name).layers
    with_bias = [layer.name for layer in layers if getattr(layer, "use_bias", False)]
    assert with_bias == ["classifier"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_layer_names_are_unique_and_the_same_in_every_build(name):
    names = [layer.name for layer in small_model(name).layers]
    assert len(set(names)) == len(names)
    assert names == [layer.name for layer in build_small(name, 8).layers]


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_dropout_stands_in_front_of_dense_layers_only_if_asked_for(name):
    model = build_small(name, 8, dropout=0.25)
    dropouts = [layer for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    assert [layer.rate for layer in dropouts] == [0.25] * len(dropouts)
    readers = [node.outbound_layer for layer in dropouts for node in layer.outbound_nodes]
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    # Every dense layer but the first of VGG reads pooled or hidden features.
    assert readers == (dense[1:] if name.startswith("vgg") else dense)
    assert not any(isinstance(layer, keras.layers.Dropout) for layer in small_model(name).layers)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_built_from_its_config_computes_the_same(name):
    model = small_model(name)
    twin = keras.Model.from_config(model.get_config())
    assert twin.get_config() == model.get_config()
    twin.set_weights(model.get_weights())
    images = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3)).astype(np.float32)
    np.testing.assert_array_equal(twin(images).numpy(), model(images).numpy())


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_an_image_of_one_pixel_is_accepted(name):
    model = build_small(name, image_size=1, width_multiplier=0.01)
    assert model(np.zeros((1, 1, 1, 3), np.float32)).shape == (1, 10)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_argument_has_a_default_and_all_but_the_sizes_are_keywords(name):
    parameters = inspect.signature(models.MODELS[name]).parameters
    assert all(p.default is not p.empty for p in parameters.values())
    positional = [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert positional == ["image_size", "num_classes"]
