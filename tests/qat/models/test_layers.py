"""Models of layers beside the usual ones: what they compute, how they train, how they are saved."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from tests.export.layer_models import MODELS
from tests.qat import float_models
from tests.qat.float_models import L

QUICK = ("squeeze_and_excitation",)
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@pytest.fixture(scope="module", params=NAMES)
def float_model(request):
    return float_models.pretend_trained(MODELS[request.param].build())


@pytest.fixture(scope="module")
def quantized(float_model):
    model = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(4))
    return sat_tf.calibrate(model, float_models.images(48))


@pytest.mark.thorough
def test_eight_bits_keep_the_function(float_model):
    images = float_models.images(48)
    model = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(8))
    sat_tf.calibrate(model, images, batch_normalization=False)
    expected, found = float_model(images).numpy(), model(images).numpy()
    assert np.corrcoef(expected.ravel(), found.ravel())[0, 1] > 0.99


@pytest.mark.thorough
def test_a_gradient_reaches_every_variable(quantized):
    # Each output has a weight of its own, as a softmax hides what all have in common.
    weights = tf.constant([1.0, -2.0, 3.0, -4.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_mean(quantized(float_models.images(48), training=True) * weights)
    gradients = tape.gradient(total, quantized.trainable_variables)
    for variable, gradient in zip(quantized.trainable_variables, gradients, strict=True):
        assert gradient is not None, variable.name
        assert np.all(np.isfinite(gradient)), variable.name
        assert "kernel" not in variable.name or np.any(gradient != 0.0), variable.name


@pytest.mark.essential
def test_a_saved_model_loads_as_it_was(quantized, tmp_path):
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(float_models.images(4)), quantized(float_models.images(4)))


def test_requantizing_keeps_what_was_learnt(quantized):
    again = sat_tf.requantize(quantized, sat_tf.BitPolicy.mobile(4))
    np.testing.assert_array_equal(again(float_models.images(4)), quantized(float_models.images(4)))


OF_IMAGES = {
    "flip": lambda name: L.RandomFlip(name=name),
    "rotation": lambda name: L.RandomRotation(0.2, name=name),
    "zoom": lambda name: L.RandomZoom(0.2, name=name),
    "translation": lambda name: L.RandomTranslation(0.2, 0.2, name=name),
    "contrast": lambda name: L.RandomContrast(0.5, name=name),
    "brightness": lambda name: L.RandomBrightness(0.5, name=name),
    "spatial_dropout": lambda name: L.SpatialDropout2D(0.4, name=name),
}
OF_TENSORS = {
    "noise": lambda name: L.GaussianNoise(2.0, name=name),
    "gaussian_dropout": lambda name: L.GaussianDropout(0.3, name=name),
    "alpha_dropout": lambda name: L.AlphaDropout(0.3, name=name),
    "dropout": lambda name: L.Dropout(0.3, name=name),
    "activity": lambda name: L.ActivityRegularization(l2=0.1, name=name),
    "identity_layer": lambda name: L.Identity(name=name),
    "linear": lambda name: L.Activation("linear", name=name),
    "stop_gradient": lambda name: tf.stop_gradient,
    "identity": lambda name: tf.identity,
}
IDENTITIES = {**OF_IMAGES, **OF_TENSORS}
PLACES = ("image", "rescaled", "conv", "bn", "relu", "sum", "pool", "logits")


def model(between, rescaling=(1 / 255.0,)):
    """A network with `between(tensor, place)` at each of `PLACES`."""
    keras.utils.set_random_seed(1)
    image = keras.Input((6, 6, 3), name="image")
    tensor = between(image, "image")
    tensor = between(L.Rescaling(*rescaling, name="rescaling")(tensor), "rescaled")
    tensor = between(L.Conv2D(4, 3, use_bias=False, name="conv")(tensor), "conv")
    tensor = between(L.BatchNormalization(name="bn")(tensor), "bn")
    tensor = between(L.ReLU(name="relu")(tensor), "relu")
    one, other = L.Conv2D(4, 3, name="one")(tensor), L.Conv2D(4, 3, name="other")(tensor)
    tensor = between(L.Add(name="sum")([one, other]), "sum")
    tensor = L.GlobalAveragePooling2D(name="pool")(L.ReLU(name="sum_relu")(tensor))
    tensor = between(tensor, "pool")
    return keras.Model(image, between(L.Dense(3, name="classifier")(tensor), "logits"))


def at(make, *places):
    def between(tensor, place):
        return make(f"at_{place}")(tensor) if place in places else tensor

    return between


plain = at(None)


def images(count=16):
    return float_models.images(count, size=6, seed=5)


# Drawn weights do not decide these clipping levels.
_POLICY = BitPolicy(initial_clipping_level=8.0, initial_classifier_clipping_level=10.0)


def _placed(float_model, policy=None):
    rewritten = network_of_layers(float_model).model
    network = Network(rewritten)
    return place(network, {node.name: None for node in network}, policy or _POLICY)


@functools.cache
def _plain_placed(rescaling):
    return _placed(model(plain, rescaling))


@functools.cache
def _plain_quantized():
    return sat_tf.quantize_model(model(plain))


@pytest.mark.parametrize("name", IDENTITIES)
def test_the_placement_sees_through_what_acts_in_training_alone(name):
    def quantizers(placement):
        """Those of the plain model's layers, and inserted ones by their readers."""
        layers = _plain_placed((1 / 255.0,)).configs
        own = {n: (c.weights, c.output) for n, c in placement.configs.items() if n in layers}
        inserted = {tuple(sorted(i.readers)): i.config for i in placement.insertions}
        image = inserted.pop(next(key for key in inserted if key[0] != "classifier"))
        return own, inserted, image, placement.norms_behind

    places = PLACES if name in OF_TENSORS else [p for p in PLACES if p not in ("pool", "logits")]
    for rescaling in ((1 / 255.0,), (1 / 127.5, -1.0)):
        placed = _placed(model(at(IDENTITIES[name], *places), rescaling))
        assert quantizers(placed) == quantizers(_plain_placed(rescaling))
        assert list(placed.roles.of.values()).count(Role.IDENTITY) == len(places)


def test_a_quantizer_for_one_reader_stands_behind_the_identity_that_it_reads():
    image = keras.Input((4, 4, 2), name="image")
    stem = L.Add(name="sum")([L.Conv2D(2, 1, name="a")(image), L.Conv2D(2, 1, name="b")(image)])
    dropped = L.Dropout(0.5, name="drop")(stem)
    ends = L.Add()([L.Conv2D(2, 1, name="c")(stem), L.Conv2D(2, 1, name="d")(dropped)])
    placement = _placed(keras.Model(image, ends), BitPolicy(requantize_streams=True))
    found = {(i.tensor, *sorted(i.readers)): i.name for i in placement.insertions}
    assert found == {
        ("image", "a", "b"): "image_image",
        ("sum", "c"): "sum_to_4_bits",
        ("drop", "d"): "drop_to_4_bits",
    }


def test_unknown_functions_and_what_is_called_with_training_are_no_identities():
    layer = L.Activation(lambda x: x * x * x, name="cube")
    assert layer_kinds.role_of(layer) is Role.OPAQUE
    assert not layer_kinds.is_identity(layer, {})
    drop = functools.partial(L.Dropout(0.5, name="drop"), training=True)
    placement = _placed(float_models.model_of(L.Conv2D(2, 1, name="a"), drop, L.ReLU(name="relu")))
    assert placement.roles.of["drop"] is Role.MOVEMENT
    assert "a" not in placement.absorbed_by


@pytest.mark.parametrize("name", [*OF_IMAGES, "noise", "gaussian_dropout", "alpha_dropout"])
def test_it_acts_in_training_and_not_in_inference(name):
    float_model = model(at(IDENTITIES[name], "image"))
    quantized = sat_tf.quantize_model(float_model)
    expected = _plain_quantized()
    expected.set_weights(quantized.get_weights())
    for training in ({}, {"training": False}):
        np.testing.assert_array_equal(quantized(images(), **training), expected(images()))
    one, other = quantized(images(), training=True), quantized(images(), training=True)
    assert np.any(one.numpy() != other.numpy())


def test_no_gradient_goes_through_a_stop_gradient():
    quantized = sat_tf.quantize_model(model(at(OF_TENSORS["stop_gradient"], "relu")))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(quantized(images(), training=True) ** 2)
    kernels = [quantized.get_layer(f"quant_{name}").layer.kernel for name in ("conv", "one")]
    stopped, other = tape.gradient(loss, kernels)
    assert stopped is None
    assert np.any(other.numpy() != 0.0)


def test_contrast_is_that_of_keras_and_has_its_gradient():
    keras.utils.set_random_seed(1)
    layers = [L.RandomContrast((0.9, 0.4), seed=7) for _ in range(2)]
    tensor = images(4) * 1.2 - 20.0  # of which some is clipped
    expected = layers[0](tensor, training=True).numpy()
    quantized = QuantizedLayer(layers[1], PlacedConfig())
    with tf.GradientTape() as tape:
        variable = tf.Variable(tensor)
        found = quantized(variable, training=True)
        loss = tf.reduce_sum(found**2)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    mean = np.mean(tensor, (1, 2), keepdims=True)
    inside = (expected > 0.0) & (expected < 255.0)
    assert np.any(inside)
    assert not np.all(inside)
    factor = np.median(((expected - mean) / (tensor - mean))[inside])
    upstream = 2.0 * expected * inside
    gradient = factor * upstream + (1.0 - factor) * np.mean(upstream, (1, 2), keepdims=True)
    np.testing.assert_allclose(tape.gradient(loss, variable), gradient, rtol=1e-3, atol=0.1)
    np.testing.assert_array_equal(quantized(tensor), tensor)


def test_activity_is_regularized_once():
    float_model = model(at(OF_TENSORS["activity"], "logits"))
    quantized = sat_tf.quantize_model(float_model)
    logits = quantized(images(), training=True).numpy()
    (loss,) = quantized.losses
    assert float(loss) == pytest.approx(0.1 * np.sum(logits**2) / len(logits), rel=1e-5)


@pytest.fixture(scope="module")
def trained():
    """A model with augmentation as a model inside, which is how it is written most often."""
    front = [OF_IMAGES[name](name) for name in ("flip", "rotation", "contrast")]
    layers = {"image": keras.Sequential(front, name="augmentation"), "bn": tf.stop_gradient}
    layers |= {"conv": OF_TENSORS["noise"]("noise"), "pool": OF_TENSORS["dropout"]("dropout")}
    augmented = model(lambda tensor, place: layers.get(place, lambda same: same)(tensor))
    quantized = sat_tf.quantize_model(augmented)
    quantized.compile("sgd", "mse")
    quantized.fit(images(), np.zeros((16, 3)), verbose=0)
    return sat_tf.calibrate(quantized, images(64))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["model.keras", "model.h5", "saved_model"])
def test_models_are_saved_with_it_and_loaded(trained, tmp_path, name):
    trained.save(tmp_path / name, **({} if "." in name else {"save_format": "tf"}))
    loaded = keras.models.load_model(tmp_path / name)
    np.testing.assert_array_equal(loaded(images()), trained(images()))
    one, other = loaded(images(), training=True), loaded(images(), training=True)
    assert np.any(one.numpy() != other.numpy())


def test_requantized_models_keep_their_function(trained):
    policy = BitPolicy(weight_bits=None, activation_bits=None, weight_range="channel")
    floating = sat_tf.requantize(trained, BitPolicy(weight_bits=None, activation_bits=None))
    again = sat_tf.requantize(floating, policy)
    np.testing.assert_allclose(again(images()), floating(images()), atol=1e-4)


def test_calibration_does_not_depend_on_what_is_drawn():
    models = [model(between) for between in (plain, at(OF_IMAGES["brightness"], "image"))]
    models[0].set_weights(models[1].get_weights())
    one, other = (sat_tf.calibrate(sat_tf.quantize_model(each), images(64)) for each in models)
    np.testing.assert_equal(one.get_weights(), other.get_weights())


def test_layers_of_users_may_branch_on_training():
    class Doubled(L.Layer):
        def call(self, inputs, training=None):
            return 2.0 * inputs if training else inputs

    float_model = model(at(lambda name: Doubled(), "pool"))
    quantized = sat_tf.quantize_model(float_model, BitPolicy(unsupported="float"))
    one, other = quantized(images()), quantized(images(), training=True)
    assert np.any(one.numpy() != other.numpy())
