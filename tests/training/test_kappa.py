"""Constants of the rules of training, measured on models."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.analysis.labelled_images import LabelledImages
from sat_tf.graph.layer_kinds import kernels_of
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from sat_tf.training.audit import kappa
from sat_tf.training.audit.audit import Auditor
from tests.training.small import small_float_model, small_images, small_quantized_model

# -- κ₀ --------------------------------------------------------------------------------------------

layers = keras.layers


def network(*tail):
    keras.utils.set_random_seed(0)
    start = keras.Input((12, 12, 3)), layers.Conv2D(16, 3, padding="same")
    return keras.Sequential([*start, *tail])


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
    assert kappa.kappa_0(model) == pytest.approx(by_hand(model.get_layer("logits").kernel, area))


def test_a_convolution_as_classifier_counts_its_area_and_a_sum_before_the_pooling_changes_nothing():
    model = network(layers.AveragePooling2D(6), layers.Conv2D(5, 2, name="logits"))
    kernel = model.get_layer("logits").kernel
    assert kappa.kappa_0(model) == pytest.approx(by_hand(kernel, 36))
    assert kappa.kappa_0(model) == pytest.approx(2 * 2 * 16 * np.var(kernel) / 36)
    image = keras.Input((8, 8, 3))
    features = layers.Conv2D(4, 3, padding="same")(image)
    features = layers.ReLU()(layers.Add()([features, layers.Conv2D(4, 1)(features)]))
    logits = layers.Dense(5)(layers.GlobalAveragePooling2D()(features))
    model = keras.Model(image, logits)
    assert kappa.kappa_0(model) == pytest.approx(by_hand(model.layers[-1].kernel, 64))


@pytest.mark.parametrize(
    "tail",
    [
        [layers.GlobalAveragePooling2D(), layers.Dense(4), layers.PReLU(), layers.Add()],
        [layers.GlobalAveragePooling2D(), layers.Reshape((16, 1)), layers.SimpleRNN(3)],
    ],
)
def test_there_is_none_without_one_known_linear_layer_at_the_end(tail):
    *before, last = tail
    model = network(*before)
    features = model.output
    outputs = last([features, features] if isinstance(last, layers.Add) else features)
    assert kappa.kappa_0(keras.Model(model.input, outputs)) is None
    # So it is where the size of the pooled map is open.
    image = keras.Input((None, None, 3))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(image))
    assert kappa.kappa_0(keras.Model(image, layers.Dense(5)(pooled))) is None


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
    assert kappa.kappa_0(model) == pytest.approx(inputs / 49 / 1000, rel=3e-3)
    assert kappa.kappa_0(model) == pytest.approx(printed, rel=0.06)


def test_a_quantized_classifier_counts_with_its_effective_weights():
    model = network(layers.GlobalAveragePooling2D(), layers.Dense(7, name="logits"))
    plain = kappa.kappa_0(model)
    clamped = sat_tf.quantize_model(model, BitPolicy.paper(4, rescale="none"))
    constant = sat_tf.quantize_model(model, BitPolicy.paper(4, rescale="constant"))
    kept = sat_tf.quantize_model(model, BitPolicy.mobile(8))
    kernel = clamped.get_layer("quant_logits").effective_kernel()
    assert kappa.kappa_0(clamped) == pytest.approx(by_hand(kernel, 144))
    # Rule I: constant rescaling makes the mean square 1/n̂, so that n_L / (n̂ k²) is left.
    kernel = constant.get_layer("quant_logits").effective_kernel().numpy()
    expected = 16 * (1 / 7 - kernel.mean() ** 2) / 144
    assert kappa.kappa_0(constant) == pytest.approx(expected, rel=1e-5)
    assert kappa.kappa_0(clamped) > kappa.kappa_0(constant)
    assert kappa.kappa_0(kept) == pytest.approx(plain, rel=0.02)  # 8 bits keep the function


# -- κ₁ and κ₂ -------------------------------------------------------------------------------------

DATA = small_images()
IMAGES, LABELS = DATA.train_images[:24], DATA.train_labels[:24]


def gradient_flow(model, images, labels):
    return Auditor(model, LabelledImages(images, np.asarray(labels)))()


FLOW = kappa.Flow(fan_in=4, fan_out=8, weight_variance=0.5, gradient_variance=3.0)


# κ₁ = k² n V G / (n̂' V' G'), κ₂ = k⁴ G / (n̂' V' G'), worked out by hand.
@pytest.mark.parametrize(
    ("fan_in", "following", "constants"),
    [
        (4, [(FLOW, 1)], (4 * 0.5 / (8 * 0.5), 1 / (8 * 0.5))),
        (4, [(FLOW, 9)], (9 * 0.5, 81 * 0.25)),
        (40, [(FLOW, 1)], (5.0, 0.25)),
        (4, [(FLOW, 1), (FLOW, 1)], (0.25, 0.125)),
        # 6 / (3 (1/4 · 2 · 0.5 + 8 · 1)), 3 / (3 (1/16 · 2 · 0.5 + 8))
        (
            4,
            [(FLOW._replace(fan_out=2), 4), (FLOW._replace(weight_variance=1.0), 1)],
            (2 / 8.25, 1 / 8.0625),
        ),
    ],
)
def test_the_constants_solve_the_law(fan_in, following, constants):
    layer = FLOW._replace(fan_in=fan_in)
    assert kappa.gradient_flow_constants(layer, following) == pytest.approx(constants)
    # Without a gradient behind it, no constant is finite.
    without = kappa.gradient_flow_constants(layer, [(FLOW._replace(gradient_variance=0.0), 1)])
    assert not np.isfinite(without).any()


def reference(x, y, kernels, gammas, epsilon=1e-3):
    """The mean cross entropy of Dense layers and its gradients by the kernels, in float64.

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
    return loss, gradients


def kappas(kernels, gradients):
    """κ₁ and κ₂ of Dense layers in a row: solved for in the paper's Eq. 3 and 4."""
    variances = [
        (kernel.var(), slope.var()) for kernel, slope in zip(kernels, gradients, strict=True)
    ]
    for index, ((v, own), (w, behind)) in enumerate(itertools.pairwise(variances)):
        kappa_2 = own / (kernels[index + 1].shape[1] * w * behind)
        yield kernels[index].shape[0] * v * kappa_2, kappa_2


def dense_model(normalized, softmax=False):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((12,))])
    for index, units in enumerate((10, 8)):
        model.add(layers.Dense(units, use_bias=False, name=f"dense_{index}"))
        if normalized:
            model.add(layers.BatchNormalization(center=False))
            model.layers[-1].gamma.assign(np.linspace(0.5, 2.0, units))
        model.add(layers.ReLU())
    activation = "softmax" if softmax else None
    model.add(layers.Dense(5, use_bias=False, activation=activation, name="logits"))
    return model


X = np.random.RandomState(0).normal(size=(64, 12)).astype(np.float32)
Y = np.arange(64) % 5


@pytest.mark.parametrize("normalized", [True, False])
def test_variances_and_constants_are_those_of_the_reference(normalized):
    model = dense_model(normalized)
    x, y = X[:16], Y[:16]
    found = gradient_flow(model, x, y)
    names = ("dense_0", "dense_1", "logits")
    kernels = [model.get_layer(name).kernel.numpy().astype(np.float64) for name in names]
    gammas = [np.linspace(0.5, 2.0, units) if normalized else None for units in (10, 8)]
    loss, gradients = reference(x, y, kernels, gammas)
    # Float32 against float64, through three layers.
    assert found.loss == pytest.approx(loss, rel=1e-5)
    for layer, kernel, gradient in zip(found.layers, kernels, gradients, strict=True):
        assert (layer.fan_in, layer.fan_out) == kernel.shape
        assert layer.effective_variance == pytest.approx(kernel.var(), rel=1e-5)
        assert layer.gradient_variance == pytest.approx(gradient.var(), rel=1e-4)
    *followed, last = found.layers
    for layer, expected in zip(followed, kappas(kernels, gradients), strict=True):
        assert (layer.kappa_1, layer.kappa_2) == pytest.approx(expected, rel=2e-4)
    assert (last.kappa_1, last.kappa_2) == (None, None)
    assert last.unknown == "no linear layer follows"


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
    x, y = X[:16], Y[:16]
    expected = as_numbers(gradient_flow(dense_model(True), x, y))
    assert as_numbers(gradient_flow(dense_model(True, softmax=True), x, y)) == expected
    assert as_numbers(gradient_flow(dense_model(True), x, np.eye(5)[y])) == expected
    separate = dense_model(True)
    separate = keras.Model(separate.input, layers.Softmax()(separate.output))
    assert as_numbers(gradient_flow(separate, x, y)) == expected


def test_the_constants_do_not_depend_on_the_size_of_normalized_weights():
    # Sums that are divided by their deviation may have any size, which κ₁ takes out.
    model = dense_model(True)
    before = gradient_flow(model, X, Y).layers
    kernel = model.get_layer("dense_0").kernel
    kernel.assign(kernel * 8.0)
    after = gradient_flow(model, X, Y).layers
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
    # Same operations in the same order.
    assert as_numbers(found) == pytest.approx(as_numbers(expected), rel=1e-5)
    for one, other in zip(expected.layers, found.layers, strict=True):
        assert other.name == f"small/{one.name}"
        if one.following:
            same = pytest.approx((one.kappa_1, one.kappa_2), rel=1e-5)
            assert (other.kappa_1, other.kappa_2) == same


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


def test_frozen_normalization_keeps_its_own_statistics():
    model = keras.models.clone_model(small_float_model())
    expected = gradient_flow(model, IMAGES, LABELS).loss
    model.trainable = False
    frozen = gradient_flow(model, IMAGES, LABELS).loss
    assert frozen != expected
    logits = model(IMAGES.astype(np.float32), training=False)
    loss = keras.losses.sparse_categorical_crossentropy(LABELS, logits, from_logits=True)
    assert frozen == pytest.approx(float(np.mean(loss)), rel=1e-5)


# -- linear layers, and those that follow them -----------------------------------------------------


IMAGE = keras.Input((8, 8, 3), name="image")


def conv(name, channels=4, kernel=3, **options):
    return layers.Conv2D(channels, kernel, padding="same", name=name, **options)


def following(outputs):
    network = kappa.read_through(keras.Model(IMAGE, outputs))
    return {
        kappa.users_name(node): {
            kappa.users_name(to): area for to, area in kappa.neighbours(network, node)
        }
        for node in network
        if kappa.is_linear(node)
    }


def test_layers_in_a_row_and_both_of_two_branches_follow_what_they_read():
    relu = layers.ReLU()
    x = relu(layers.BatchNormalization()(conv("a")(IMAGE)))
    found = following(layers.Dense(3, name="c")(layers.Flatten()(relu(conv("b")(x)))))
    assert found == {"a": {"b": 1}, "b": {"c": 1}, "c": {}}
    x = conv("a")(IMAGE)
    found = following(conv("end")(layers.Add()([conv("left")(x), conv("right", kernel=1)(x)])))
    assert found == {
        "a": {"left": 1, "right": 1},
        "left": {"end": 1},
        "right": {"end": 1},
        "end": {},
    }


def test_a_path_ends_at_the_sum_or_concatenation_behind_a_layer_it_passed_by():
    # a -> add1 -> b -> add2 -> c, with add1 also going to add2 by itself.
    x = layers.Add(name="add1")([conv("skip")(IMAGE), conv("a")(IMAGE)])
    found = following(conv("c")(layers.Add(name="add2")([x, conv("b")(x)])))
    assert found["a"] == found["skip"] == {"b": 1}
    assert found["b"] == {"c": 1}
    # A dense block.
    x = conv("a")(IMAGE)
    x = layers.Concatenate()([x, conv("b")(x)])
    found = following(conv("d")(layers.Concatenate()([x, conv("c")(x)])))
    assert found == {"a": {"b": 1}, "b": {"c": 1}, "c": {"d": 1}, "d": {}}


def test_a_gate_lets_both_of_its_inputs_through_also_behind_the_sum_that_they_enter():
    # Squeeze and excitation, also in a residual block: what is gated goes on to the layer behind.
    shortcut = conv("first")(IMAGE)
    x = conv("a")(shortcut)
    gate = layers.Dense(4, activation="sigmoid", name="gate")(layers.GlobalAveragePooling2D()(x))
    gated = layers.Multiply()([x, layers.Reshape((1, 1, 4))(gate)])
    of_gate = {"first": {"a": 1}, "a": {"gate": 64, "b": 1}, "gate": {"b": 1}}
    assert following(conv("b")(gated)) == {**of_gate, "b": {}}
    y = layers.ReLU()(layers.Add()([shortcut, gated]))
    found = following(conv("c")(layers.Add()([y, conv("b")(y)])))
    assert found == {**of_gate, "b": {"c": 1}, "c": {}}


@pytest.mark.parametrize(
    ("pool", "area"),
    [
        (layers.AveragePooling2D(2), 4),
        (layers.GlobalAveragePooling2D(keepdims=True), 64),
        (layers.MaxPooling2D(2), 1),
        (layers.ZeroPadding2D(1), 1),
        (layers.Lambda(lambda x: tf.reduce_mean(x, [1, 2], keepdims=True)), None),
        (lambda x: tf.reduce_mean(x * tf.nn.relu6(x + 3.0) / 6.0, [1, 2], keepdims=True), 64),
    ],
)
def test_averages_between_two_layers_are_counted_also_those_of_tensors(pool, area):
    assert following(conv("b")(pool(conv("a")(IMAGE))))["a"] == {"b": area}


def test_models_inside_models_are_followed():
    inner = keras.Sequential([keras.Input((8, 8, 3)), layers.ReLU(), conv("b")], name="inner")
    found = following(conv("c")(inner(conv("a", 3)(IMAGE))))
    assert found == {"a": {"inner/b": 1}, "inner/b": {"c": 1}, "c": {}}


def behind(model):
    network = kappa.read_through(model)
    return {
        node.name: kappa.normalization_behind(network, node)
        for node in network
        if kappa.is_linear(node)
    }


def test_only_a_normalization_right_behind_counts():
    x = layers.BatchNormalization()(conv("a")(IMAGE))
    x = layers.LayerNormalization()(conv("b")(x))
    y = conv("rectified", activation="relu")(x)
    z = conv("read_twice")(layers.BatchNormalization()(y))
    z = conv("end")(layers.Add()([z, layers.BatchNormalization()(z)]))
    without = dict.fromkeys(("rectified", "read_twice", "end"))
    found = behind(keras.Model(IMAGE, z))
    assert found == {"a": "BatchNormalization", "b": "LayerNormalization", **without}


@pytest.mark.thorough
def test_a_preactivation_network_has_sums_behind_its_last_layers():
    found = behind(models.build("preresnet50", image_size=32, num_classes=10, seed=0))
    assert found["block_3_reduce_conv"] == found["block_3_spatial_conv"] == "BatchNormalization"
    assert found["block_3_expand_conv"] is None


@pytest.mark.parametrize(
    ("tail", "name"),
    [
        ([layers.Softmax()], "logits"),
        ([layers.Dropout(0.1), layers.Activation("softmax")], "logits"),
        ([layers.ReLU()], None),
        ([layers.Dense(3, activation="softmax", name="other")], "other"),
    ],
)
def test_the_classifier_is_what_makes_the_output(tail, name):
    start = keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(3, name="logits")
    classifier = kappa.find_classifier(kappa.read_through(keras.Sequential([*start, *tail])))
    assert (classifier.name if classifier else None) == name


def test_the_smallest_area_of_paths_that_meet_counts():
    x = conv("a")(IMAGE)
    x = layers.Add()([layers.GlobalAveragePooling2D()(x), layers.GlobalMaxPooling2D()(x)])
    network = kappa.read_through(keras.Model(IMAGE, layers.Dense(3)(x)))
    assert kappa.pooled_area_before(network, kappa.find_classifier(network)) == 1


# Counted by hand: how many inputs reach one output, and how many outputs one input reaches.
@pytest.mark.parametrize(
    ("layer", "shape", "counts"),
    [
        (layers.Dense(7), (5,), [(5, 7)]),
        (layers.Conv2D(8, (3, 2)), (9, 9, 4), [(24, 48)]),
        (layers.Conv2D(8, 3, groups=2), (9, 9, 4), [(18, 36)]),
        (layers.Conv1D(6, 5), (9, 4), [(20, 30)]),
        (layers.Conv3D(2, 2), (5, 5, 5, 3), [(24, 16)]),
        (layers.DepthwiseConv2D(3, depth_multiplier=2), (9, 9, 4), [(9, 18)]),
        (layers.DepthwiseConv1D(5), (9, 4), [(5, 5)]),
        (layers.SeparableConv2D(6, 3, depth_multiplier=2), (9, 9, 4), [(9, 18), (8, 6)]),
        (layers.Conv2DTranspose(8, 3), (9, 9, 4), [(36, 72)]),
    ],
)
def test_neurons_are_counted_as_by_hand(layer, shape, counts):
    calls = kappa.linear_calls(kappa.read_through(keras.Sequential([keras.Input(shape), layer])))
    assert [(call.fan_in, call.fan_out) for call in calls.values()] == counts


def test_a_subclass_is_not_known_and_wrappers_are_taken_off():
    class Standardized(layers.Conv2D):
        pass

    assert kernels_of(Standardized(3, 3)) == ()
    inner = layers.Dense(3)
    assert kappa.unwrapped(layers.TimeDistributed(inner)) is inner
    assert kappa.unwrapped(inner) is inner


def test_an_unknown_layer_mixes_where_it_holds_a_matrix():
    class Unknown(layers.Layer):
        def build(self, shape):
            self.weight = self.add_weight("weight", shape[-self.rank :])

        def call(self, inputs):
            return inputs * self.weight

    matrix, vector = Unknown(name="matrix"), Unknown(name="vector")
    matrix.rank, vector.rank = 2, 1
    network = kappa.read_through(keras.Model(IMAGE, vector(matrix(IMAGE))))
    assert [node.name for node in network if kappa.mixes(node)] == ["matrix"]
