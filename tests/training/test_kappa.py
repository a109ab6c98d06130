"""Constants of the rules of training, measured on models."""

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.analysis.labelled_images import LabelledImages
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from sat_tf.training.audit.audit import Auditor
from sat_tf.training.audit.kappa import Flow, gradient_flow_constants, kappa_0
from tests.training.small import small_float_model, small_images, small_quantized_model

# -- κ₀ --------------------------------------------------------------------------------------------

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
        ([layers.GlobalAveragePooling2D, lambda: layers.Dropout(0.2)], 144),
    ],
)
def test_the_pooling_right_before_the_classifier_divides(pools, area):
    # A softmax does not hide the classifier.
    ends = layers.Dense(7, name="logits"), layers.Softmax()
    model = network(*(make() for make in pools), *ends)
    assert kappa_0(model) == pytest.approx(by_hand(model.get_layer("logits").kernel, area))


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
    # So it is where the size of the pooled map is open.
    image = keras.Input((None, None, 3))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(image))
    assert kappa_0(keras.Model(image, layers.Dense(5)(pooled))) is None


# The printed table: 0.01, 0.04, 0.02 and 0.026 for a 7 x 7 pooling and VAR[W] = 1/1000.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "inputs", "printed"),
    [("resnet18", 512, 0.01), ("mobilenet_v1", 1024, 0.02), ("mobilenet_v2", 1280, 0.026)],
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


# -- κ₁ and κ₂ -------------------------------------------------------------------------------------

DATA = small_images()
IMAGES, LABELS = DATA.train_images[:24], DATA.train_labels[:24]


def gradient_flow(model, images, labels):
    return Auditor(model, LabelledImages(images, np.asarray(labels)))()


def flow(**changes):
    usual = {"fan_in": 4, "fan_out": 8, "weight_variance": 0.5, "gradient_variance": 3.0}
    return Flow(**{**usual, **changes})


# κ₁ = k² n V G / (n̂' V' G'), κ₂ = k⁴ G / (n̂' V' G'), worked out by hand.
@pytest.mark.parametrize(
    ("layer", "following", "expected"),
    [
        (flow(), [(flow(), 1)], (4 * 0.5 / (8 * 0.5), 1 / (8 * 0.5))),
        (flow(), [(flow(), 9)], (9 * 0.5, 81 * 0.25)),
        (flow(fan_in=40), [(flow(), 1)], (5.0, 0.25)),
        (flow(), [(flow(), 1), (flow(), 1)], (0.25, 0.125)),
        (flow(), [(flow(fan_out=2), 4), (flow(weight_variance=1.0), 1)], (0.5 / 2.0625, None)),
    ],
)
def test_the_constants_solve_the_law(layer, following, expected):
    kappa_1, kappa_2 = gradient_flow_constants(layer, following)
    first, second = expected
    if second is None:  # 6 / (3 (1/4 · 2 · 0.5 + 8 · 1)), 3 / (3 (1/16 · 2 · 0.5 + 8))
        first, second = 2 / 8.25, 1 / 8.0625
    assert (kappa_1, kappa_2) == pytest.approx((first, second))
    # Without a gradient behind it, no constant is finite.
    constants = gradient_flow_constants(layer, [(flow(gradient_variance=0.0), 1)])
    assert not np.isfinite(constants).any()


def dense_network(x, y, kernels, gammas, epsilon):
    """Gradients of the mean cross entropy with respect to kernels, and the loss, in float64.

    Written from the formulas alone. Between Dense layers are BatchNormalization, where `gammas` are
    not None, and ReLU.
    """
    inputs, caches = np.asarray(x, np.float64), []
    for kernel, gamma in zip(kernels[:-1], gammas, strict=True):
        z = inputs @ kernel
        if gamma is None:
            cache, h = None, z
        else:
            deviation = np.sqrt(z.var(axis=0) + epsilon)
            unit = (z - z.mean(axis=0)) / deviation
            cache, h = (unit, deviation), gamma * unit
        caches.append((inputs, cache, h))
        inputs = np.maximum(h, 0.0)
    logits = inputs @ kernels[-1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(shares[rows, y]).mean()
    shares[rows, y] -= 1.0
    back = shares / len(y)
    gradients = [inputs.T @ back]
    for gamma, (before, cache, h), behind in zip(
        gammas[::-1], caches[::-1], kernels[:0:-1], strict=True
    ):
        back = (back @ behind.T) * (h > 0)
        if cache is not None:
            unit, deviation = cache
            back = back * gamma
            back = (back - back.mean(axis=0) - unit * (back * unit).mean(axis=0)) / deviation
        gradients.insert(0, before.T @ back)
    return gradients, loss


def kappas(kernels, gradients):
    """κ₁ and κ₂ of Dense layers in a row: solved for in the paper's Eq. 3 and 4."""
    found = []
    for index in range(len(kernels) - 1):
        n = kernels[index].shape[0]
        n_hat = kernels[index + 1].shape[1]
        own, behind = gradients[index].var(), gradients[index + 1].var()
        v, w = kernels[index].var(), kernels[index + 1].var()
        found.append((own * n * v / (n_hat * w * behind), own / (n_hat * w * behind)))
    return found


def dense_model(normalized, softmax=False):
    keras.utils.set_random_seed(3)
    image = keras.Input((12,))
    x = image
    for index, units in enumerate((10, 8)):
        x = layers.Dense(units, use_bias=False, name=f"dense_{index}")(x)
        if normalized:
            x = layers.BatchNormalization(center=False, name=f"norm_{index}")(x)
            x.node.layer.gamma.assign(np.linspace(0.5, 2.0, units))
        x = layers.ReLU()(x)
    activation = "softmax" if softmax else None
    x = layers.Dense(5, use_bias=False, activation=activation, name="logits")(x)
    return keras.Model(image, x)


@pytest.mark.parametrize("normalized", [True, False])
def test_variances_and_constants_are_those_of_the_reference(normalized):
    model = dense_model(normalized)
    generator = np.random.RandomState(0)
    x, y = generator.normal(size=(16, 12)).astype(np.float32), np.arange(16) % 5
    found = gradient_flow(model, x, y)
    names = ("dense_0", "dense_1", "logits")
    kernels = [model.get_layer(name).kernel.numpy().astype(np.float64) for name in names]
    gammas = [np.linspace(0.5, 2.0, units) if normalized else None for units in (10, 8)]
    gradients, loss = dense_network(x, y, kernels, gammas, epsilon=1e-3)
    # Float32 against float64, through three layers.
    assert found.loss == pytest.approx(loss, rel=1e-5)
    for layer, kernel, gradient in zip(found.layers, kernels, gradients, strict=True):
        assert (layer.fan_in, layer.fan_out) == kernel.shape
        assert layer.effective_variance == pytest.approx(kernel.var(), rel=1e-5)
        assert layer.gradient_variance == pytest.approx(gradient.var(), rel=1e-4)
    expected = kappas(kernels, gradients)
    for layer, (kappa_1, kappa_2) in zip(found.layers, expected, strict=False):
        assert (layer.kappa_1, layer.kappa_2) == pytest.approx((kappa_1, kappa_2), rel=2e-4)
    assert (found.layers[-1].kappa_1, found.layers[-1].kappa_2) == (None, None)
    assert found.layers[-1].unknown == "no linear layer follows"


def as_numbers(found):
    return [found.loss] + [layer.gradient_variance for layer in found.layers]


@pytest.mark.parametrize("make", [small_float_model, small_quantized_model])
def test_measuring_changes_nothing(make):
    model = make()
    weights = [np.copy(weight) for weight in model.get_weights()]
    attributes = [set(vars(layer)) for layer in model._flatten_layers()]
    logits = model(IMAGES.astype(np.float32)).numpy()
    first, second = gradient_flow(model, IMAGES, LABELS), gradient_flow(model, IMAGES, LABELS)
    assert as_numbers(first) == as_numbers(second)
    assert all(map(np.array_equal, weights, model.get_weights()))
    assert [set(vars(layer)) for layer in model._flatten_layers()] == attributes
    assert np.array_equal(logits, model(IMAGES.astype(np.float32)).numpy())
    assert model.get_layer(index=-1).trainable


@pytest.mark.parametrize("make", [small_float_model, small_quantized_model])
def test_a_compiled_probe_says_the_same_and_follows_the_variables(make):
    model = keras.models.clone_model(make())
    model.set_weights(make().get_weights())
    sample = LabelledImages(IMAGES, LABELS)
    probe = Auditor(model, sample, compiled=True)
    # The order of sums differs in a graph.
    assert as_numbers(probe()) == pytest.approx(
        as_numbers(gradient_flow(model, IMAGES, LABELS)), rel=1e-3
    )
    before = probe().layers[-1].effective_variance
    kernel = next(w for w in model.trainable_weights if "classifier/kernel" in w.name)
    kernel.assign(kernel * 0.1)
    assert probe().layers[-1].effective_variance != before


def test_softmax_and_logits_one_hot_and_numbers_are_the_same():
    generator = np.random.RandomState(0)
    x, y = generator.normal(size=(16, 12)).astype(np.float32), np.arange(16) % 5
    expected = as_numbers(gradient_flow(dense_model(True), x, y))
    assert as_numbers(gradient_flow(dense_model(True, softmax=True), x, y)) == expected
    assert as_numbers(gradient_flow(dense_model(True), x, np.eye(5)[y])) == expected
    separate = dense_model(True)
    separate = keras.Model(separate.input, layers.Softmax()(separate.output))
    assert as_numbers(gradient_flow(separate, x, y)) == expected


def test_the_constants_do_not_depend_on_the_size_of_normalized_weights():
    # Sums that are divided by their deviation may have any size, which κ₁ takes out.
    generator = np.random.RandomState(0)
    x, y = generator.normal(size=(64, 12)).astype(np.float32), np.arange(64) % 5
    model = dense_model(True)
    before = gradient_flow(model, x, y).layers
    kernel = model.get_layer("dense_0").kernel
    kernel.assign(kernel * 8.0)
    after = gradient_flow(model, x, y).layers
    assert after[0].gradient_variance == pytest.approx(before[0].gradient_variance / 64, rel=0.02)
    # Not exactly: the normalization's ε is smaller beside larger deviations.
    assert after[0].kappa_1 == pytest.approx(before[0].kappa_1, rel=0.02)


def test_a_nested_model_says_what_the_flat_one_does():
    flat = small_float_model()
    inner = keras.models.clone_model(flat)
    inner.set_weights(flat.get_weights())
    image = keras.Input(flat.input_shape[1:])
    nested = keras.Model(image, inner(image))
    expected, found = (gradient_flow(model, IMAGES, LABELS) for model in (flat, nested))
    assert [layer.name for layer in found.layers] == [
        f"small/{layer.name}" for layer in expected.layers
    ]
    # Same operations in the same order.
    assert as_numbers(found) == pytest.approx(as_numbers(expected), rel=1e-5)
    for constant in ("kappa_1", "kappa_2"):
        assert [getattr(layer, constant) for layer in found.layers[:-1]] == pytest.approx(
            [getattr(layer, constant) for layer in expected.layers[:-1]], rel=1e-5
        )


def test_a_layer_that_is_called_twice_has_no_constant():
    image = keras.Input((8, 8, 3))
    twice = layers.Conv2D(3, 3, padding="same", name="twice")
    x = layers.GlobalAveragePooling2D()(twice(layers.ReLU()(twice(image))))
    model = keras.Model(image, layers.Dense(3)(x))
    row = gradient_flow(model, IMAGES, LABELS).layers[0]
    assert row.gradient_variance > 0
    assert (row.kappa_1, row.kappa_2) == (None, None)
    assert row.unknown == "the layer is called more than once"


def test_what_is_inside_a_layer_of_ones_own_has_gradients_and_no_constant():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.conv = layers.Conv2D(4, 3, name="inner")

        def call(self, inputs):
            return self.conv(inputs)

    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(3, 3, padding="same", name="outer")(image)
    x = layers.Dense(3)(layers.GlobalAveragePooling2D()(Block()(x)))
    outer, inner, _ = gradient_flow(keras.Model(image, x), IMAGES, LABELS).layers
    assert inner.name == "block/inner"
    assert inner.gradient_variance > 0
    assert inner.unknown == "it is inside block, whose calls cannot be followed"
    assert outer.unknown == "it is followed by layers that are not known: block"


def test_a_separable_convolution_is_two_layers():
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3))
    x = layers.SeparableConv2D(6, 3, name="both", use_bias=False)(image)
    x = layers.BatchNormalization()(x)
    model = keras.Model(image, layers.Dense(3, name="end")(layers.GlobalAveragePooling2D()(x)))
    found = gradient_flow(model, IMAGES, LABELS).layers
    assert [(call.name, call.following, call.normalization) for call in found] == [
        ("both/depthwise", ("both/pointwise",), "BatchNormalization"),
        ("both/pointwise", ("end",), "BatchNormalization"),
        ("end", (), None),
    ]
    assert (found[0].reads_image, found[1].reads_image) == (True, False)


def test_effective_weights_are_the_quantized_ones():
    model = sat_tf.quantize_model(small_float_model(), BitPolicy.paper(2))
    found = {layer.name: layer for layer in gradient_flow(model, IMAGES, LABELS).layers}
    kernel = model.get_layer("quant_pointwise").effective_kernel().numpy()
    assert len(np.unique(kernel)) <= 4
    assert found["pointwise"].effective_variance == pytest.approx(kernel.var(), rel=1e-5)


def test_frozen_normalization_keeps_its_own_statistics():
    model = keras.models.clone_model(small_float_model())
    expected = gradient_flow(model, IMAGES, LABELS).loss
    model.trainable = False
    frozen = gradient_flow(model, IMAGES, LABELS).loss
    assert frozen != expected
    logits = model(IMAGES.astype(np.float32), training=False)
    loss = keras.losses.sparse_categorical_crossentropy(LABELS, logits, from_logits=True)
    assert frozen == pytest.approx(float(np.mean(loss)), rel=1e-5)
