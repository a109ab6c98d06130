import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from sat_tf.training.audit.kappa import kappa_0

layers = keras.layers


def network(*tail, size=12, channels=16):
    keras.utils.set_random_seed(0)
    image = keras.Input((size, size, 3))
    features = layers.Conv2D(channels, 3, padding="same")(image)
    for layer in tail:
        features = layer(features)
    return keras.Model(image, features)


def by_hand(kernel, area):
    kernel = np.asarray(kernel, np.float64)
    return kernel[..., 0].size * kernel.var() / area


@pytest.mark.parametrize(
    ("pools", "area"),
    [
        ([layers.GlobalAveragePooling2D], 144),
        ([lambda: layers.AveragePooling2D((3, 2)), layers.Flatten], 6),
        ([lambda: layers.AveragePooling2D(2), layers.ReLU, layers.GlobalAveragePooling2D], 144),
        ([lambda: layers.MaxPooling2D(3), layers.Flatten], 1),
        ([layers.Flatten], 1),
        ([layers.GlobalAveragePooling2D, lambda: layers.Dense(9)], 1),
    ],
)
def test_the_pooling_right_before_the_classifier_divides(pools, area):
    model = network(*(make() for make in pools), layers.Dense(7, name="logits"))
    assert kappa_0(model) == pytest.approx(by_hand(model.get_layer("logits").kernel, area))


def test_a_softmax_and_a_dropout_do_not_hide_the_classifier():
    model = network(
        layers.GlobalAveragePooling2D(),
        layers.Dropout(0.2),
        layers.Dense(7, name="logits"),
        layers.Softmax(),
    )
    assert kappa_0(model) == pytest.approx(by_hand(model.get_layer("logits").kernel, 144))


def test_a_convolution_as_classifier_counts_the_area_of_its_kernel():
    model = network(layers.AveragePooling2D(6), layers.Conv2D(5, 2, name="logits"))
    kernel = model.get_layer("logits").kernel
    assert kappa_0(model) == pytest.approx(by_hand(kernel, 36))
    assert kappa_0(model) == pytest.approx(2 * 2 * 16 * np.var(kernel) / 36)


def test_a_residual_sum_before_the_pooling_changes_nothing():
    image = keras.Input((8, 8, 3))
    features = layers.Conv2D(4, 3, padding="same")(image)
    features = layers.Add()([features, layers.Conv2D(4, 1)(features)])
    outputs = layers.Dense(5, name="logits")(
        layers.GlobalAveragePooling2D()(layers.ReLU()(features))
    )
    model = keras.Model(image, outputs)
    assert kappa_0(model) == pytest.approx(by_hand(model.get_layer("logits").kernel, 64))


@pytest.mark.parametrize(
    "tail",
    [
        [layers.GlobalAveragePooling2D(), layers.Dense(4), layers.PReLU(), layers.Add()],
        [layers.GlobalAveragePooling2D(), layers.Reshape((16, 1)), layers.SimpleRNN(3)],
    ],
)
def test_there_is_none_without_one_known_linear_layer_at_the_end(tail):
    *before, last = tail
    image = keras.Input((12, 12, 3))
    features = layers.Conv2D(16, 3)(image)
    for layer in before:
        features = layer(features)
    outputs = last([features, features] if isinstance(last, layers.Add) else features)
    assert kappa_0(keras.Model(image, outputs)) is None


def test_there_is_none_where_the_size_of_the_pooled_map_is_open():
    image = keras.Input((None, None, 3))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(image))
    assert kappa_0(keras.Model(image, layers.Dense(5)(pooled))) is None


# The printed table: 0.01, 0.04, 0.02 and 0.026 for a 7 x 7 pooling and VAR[W] = 1/1000.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "inputs", "printed"),
    [
        ("resnet18", 512, 0.01),
        ("mobilenet_v1", 1024, 0.02),
        ("mobilenet_v2", 1280, 0.026),
    ],
)
def test_vanilla_models_have_the_values_of_the_paper(name, inputs, printed):
    model = models.build(name, image_size=224, num_classes=1000, seed=0)
    kernel = next(layer for layer in reversed(model.layers) if hasattr(layer, "kernel")).kernel
    assert kernel.shape[-2] == inputs
    normal = np.random.RandomState(0).normal(size=kernel.shape) / np.sqrt(1000)
    kernel.assign(normal.astype(np.float32))
    # Within the last printed digit, and the 0.3 % by which a sample variance strays.
    assert kappa_0(model) == pytest.approx(inputs / 49 / 1000, rel=3e-3)
    assert kappa_0(model) == pytest.approx(printed, rel=0.06)


def test_a_quantized_classifier_counts_with_its_effective_weights():
    model = network(layers.GlobalAveragePooling2D(), layers.Dense(7, name="logits"))
    plain = kappa_0(model)
    clamped = sat_tf.quantize_model(model, BitPolicy.paper(4, rescale="none"))
    constant = sat_tf.quantize_model(model, BitPolicy.paper(4, rescale="constant"))
    kept = sat_tf.quantize_model(model, BitPolicy.mobile(8))
    kernel = clamped.get_layer("quant_logits").effective_kernel()
    assert kappa_0(clamped) == pytest.approx(by_hand(kernel, 144))
    # Rule I: constant rescaling makes the mean square 1/n̂, so that n_L / (n̂ k²) is left.
    kernel = constant.get_layer("quant_logits").effective_kernel().numpy()
    expected = 16 * (1 / 7 - kernel.mean() ** 2) / 144
    assert kappa_0(constant) == pytest.approx(expected, rel=1e-5)
    assert kappa_0(clamped) > kappa_0(constant)
    assert kappa_0(kept) == pytest.approx(plain, rel=0.02)  # 8 bits keep the function
