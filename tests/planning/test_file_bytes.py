"""How far estimated bytes are from those of real files."""

import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from tests.export import zoo
from tests.export.proofs import calibrated
from tests.planning.models import convolutions

L = keras.layers

# Nothing that is decided by an estimate hangs on more.
_LARGE, _LARGE_FILE = 0.03, 100_000
# Small files are tables of the flatbuffer for the most part.
_SMALL = 0.10


def exported_bytes(model, policy, path):
    return sat_tf.export_tflite(calibrated(model, policy), path).bytes


def assert_near(planned, real):
    assert abs(planned / real - 1.0) < (_LARGE if real > _LARGE_FILE else _SMALL), (planned, real)


def test_small_files_are_within_a_tenth(tmp_path):
    policy = BitPolicy.mobile(4)
    model = convolutions()
    assert_near(sat_tf.explain(model, policy).bytes, exported_bytes(model, policy, tmp_path / "m"))


def siamese():
    """One tower for two images."""
    one, other, image = (L.Input((16, 16, 3), name=name) for name in ("one", "other", "image"))
    tensor = image
    for filters in (16, 32):
        tensor = L.Conv2D(filters, 3, padding="same", use_bias=False)(tensor)
        tensor = L.ReLU()(L.BatchNormalization()(tensor))
    tower = keras.Model(image, L.GlobalAveragePooling2D()(tensor), name="tower")
    difference = L.Subtract(name="difference")([tower(one), tower(other)])
    return keras.Model([one, other], L.Dense(2, name="same")(difference))


def reused():
    """A convolution that is called three times, with its rectifier."""
    image = tensor = L.Input((8, 8, 16), name="image")
    again = L.Conv2D(16, 3, padding="same", activation="relu", name="again")
    for _ in range(3):
        tensor = again(tensor)
    return keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(tensor)))


def normalized(*norms):
    """Convolutions with such normalizations behind."""
    image = tensor = L.Input((8, 8, 3), name="image")
    for norm in norms:
        tensor = L.ReLU()(norm(L.Conv2D(16, 3, padding="same")(tensor)))
    return keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(tensor)))


FEW_PERCENT = 0.04
MODELS = {
    "siamese": siamese,
    "reused": reused,
    "layer": lambda: normalized(L.LayerNormalization(), L.LayerNormalization(scale=False)),
    "group": lambda: normalized(L.GroupNormalization(4), L.GroupNormalization(2)),
    "unit": lambda: normalized(L.UnitNormalization(), L.PReLU()),
}


@pytest.mark.thorough
@pytest.mark.parametrize("preset", [BitPolicy.mobile, BitPolicy.paper])
@pytest.mark.parametrize("name", MODELS)
def test_shared_kernels_are_counted_once_and_float_layers_as_the_converter_writes_them(
    name, preset, tmp_path
):
    keras.utils.set_random_seed(1)
    model, policy = MODELS[name](), preset(4, unsupported="float")
    planned = sat_tf.explain(model, policy).bytes
    images = [zoo.images_for(keras.Model(image, image)) for image in model.inputs]
    quantized = calibrated(model, policy, images[0] if len(images) == 1 else images)
    real = sat_tf.export_tflite(quantized, tmp_path / "model.tflite").bytes
    assert planned == pytest.approx(real, rel=FEW_PERCENT)


@pytest.mark.slow
@pytest.mark.parametrize("family", models.MODELS)
@pytest.mark.parametrize("bits", [4, 8])
def test_files_of_the_families_are_within_3_percent(family, bits, tmp_path):
    options = {"hidden_units": 64} if "vgg" in family else {}
    model = models.build(
        family, image_size=32, num_classes=10, width_multiplier=0.5, seed=0, **options
    )
    policy = BitPolicy.mobile(bits, weight_range="channel" if bits == 8 else "layer")
    planned = sat_tf.explain(model, policy).bytes
    assert_near(planned, exported_bytes(model, policy, tmp_path / "model.tflite"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mobilenet_v2", "resnet18", "preresnet50"])
def test_float_files_are_within_3_percent(family):
    model = models.build(family, image_size=32, num_classes=10, width_multiplier=0.5, seed=0)
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    assert_near(sat_tf.explain(model).float_bytes, len(content))
