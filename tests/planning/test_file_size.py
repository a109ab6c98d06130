import glob
import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.planning.explain import read_source
from sat_tf.planning.file_size import FileSizes, file_bytes
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from tests.analysis.allocation.small_models import family, images_for, joined, residual
from tests.export import zoo
from tests.export.proofs import calibrated
from tests.planning.models import convolutions

MODELS = {
    "residual": residual,
    "joined": joined,
    "mobilenet_v2": lambda: family("mobilenet_v2"),
    "resnet18": lambda: family("resnet18"),
}
SMALL_FIRST = [
    pytest.param(name, marks=[] if name in ("residual", "joined") else pytest.mark.thorough)
    for name in MODELS
]
EVERYWHERE = {"first_last_weight_bits": None}


def exported(model, policy, path, pack="auto"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the weights are random, and the images few
        quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), images_for(model, 8))
    return sat_tf.export_tflite(quantized, path, pack=pack).bytes


@pytest.mark.essential
@pytest.mark.parametrize("pack", ["auto", "int4"])
@pytest.mark.parametrize("name", SMALL_FIRST)
def test_the_bytes_are_those_of_the_file(name, pack, tmp_path):
    model, policy = MODELS[name](), BitPolicy.mobile(4, **EVERYWHERE)
    found = file_bytes(model, policy, pack=pack)
    assert found == exported(model, policy, tmp_path / "model.tflite", pack)


# Two packings; and kernels of as many bytes, 8 x 8 weights of 8 bits and 8 x 16 of 4 bits.
@pytest.mark.parametrize(
    ("policy", "pack"),
    [
        (BitPolicy.mobile(2, weight_grid="rounded", **EVERYWHERE), "none"),
        (BitPolicy.mobile(2, weight_grid="rounded", **EVERYWHERE), "int2"),
        (BitPolicy.mobile(4, overrides={"one": {"weight_bits": 8}}), "auto"),
    ],
    ids=["none", "int2", "two_storages"],
)
def test_packings_and_storages_are_those_of_the_file(policy, pack, tmp_path):
    model = residual()
    found = file_bytes(model, policy, pack=pack)
    assert found == exported(model, policy, tmp_path / "model.tflite", pack)


def sizes(model, pack="auto"):
    base = BitPolicy.mobile(4)
    rows = [row for row in sat_tf.explain(model, base).layers if row.weights]
    names = [row.name for row in rows if row.weights.bits == 4]

    def mixed(bits):
        fields = {glob.escape(name): {"weight_bits": own} for name, own in bits.items()}
        return BitPolicy.mobile(4, overrides=fields)

    found = FileSizes(
        read_source(model), lambda own: mixed(dict.fromkeys(names, own)), (2, 4, 8), pack=pack
    )
    return found, names, mixed


@pytest.mark.parametrize("pack", ["auto", "int4"])
@pytest.mark.parametrize("name", SMALL_FIRST)
def test_mixtures_are_as_long_as_their_files(name, pack):
    model = MODELS[name]()
    found, names, mixed = sizes(model, pack)
    draw = np.random.default_rng(0)
    for _ in range(3):
        bits = {layer: int(draw.choice((2, 4, 8))) for layer in names}
        whole = file_bytes(model, mixed(bits), pack=pack)
        # Entries that a file has once for all layers, and its alignment.
        assert -8 <= found.base + sum(itertools.starmap(found.added, bits.items())) - whole <= 64


def test_each_kernel_is_stored_as_its_packing_says():
    found, _, _ = sizes(residual())
    # A 1x1 convolution of 8 channels, and a 3x3 one.
    assert [found.stored_bits("one", bits) for bits in (2, 4, 8)] == [4, 4, 8]
    assert [found.stored_bits("two", bits) for bits in (2, 4, 8)] == [8, 8, 8]
    assert [found.kernel_bytes("one", bits) for bits in (4, 8)] == [32, 64]
    assert found.kernel_bytes("stem", 8) == 3 * 3 * 3 * 8


def test_equal_kernels_of_two_layers_are_not_taken_for_one(tmp_path):
    model = residual()
    model.get_layer("four").set_weights(
        [np.ones_like(weight) for weight in model.get_layer("four").get_weights()]
    )
    policy = BitPolicy.mobile(4)
    assert file_bytes(model, policy) == exported(model, policy, tmp_path / "model.tflite")


# -- estimates -------------------------------------------------------------------------------------

L = keras.layers

# Nothing that is decided by an estimate hangs on more.
_LARGE, _LARGE_FILE = 0.03, 100_000
# Small files are tables of the flatbuffer for the most part.
_SMALL = 0.10


def assert_near(planned, real):
    assert abs(planned / real - 1.0) < (_LARGE if real > _LARGE_FILE else _SMALL), (planned, real)


def test_small_files_are_within_a_tenth(tmp_path):
    policy = BitPolicy.mobile(4)
    model = convolutions()
    report = sat_tf.export_tflite(calibrated(model, policy), tmp_path / "model.tflite")
    assert_near(sat_tf.explain(model, policy).bytes, report.bytes)


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
ESTIMATED = {
    "siamese": siamese,
    "reused": reused,
    "layer": lambda: normalized(L.LayerNormalization(), L.LayerNormalization(scale=False)),
    "group": lambda: normalized(L.GroupNormalization(4), L.GroupNormalization(2)),
    "unit": lambda: normalized(L.UnitNormalization(), L.PReLU()),
}


@pytest.mark.thorough
@pytest.mark.parametrize("preset", [BitPolicy.mobile, BitPolicy.paper])
@pytest.mark.parametrize("name", ESTIMATED)
def test_shared_kernels_are_counted_once_and_float_layers_as_the_converter_writes_them(
    name, preset, tmp_path
):
    keras.utils.set_random_seed(1)
    model, policy = ESTIMATED[name](), preset(4, unsupported="float")
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
    report = sat_tf.export_tflite(calibrated(model, policy), tmp_path / "model.tflite")
    assert_near(planned, report.bytes)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mobilenet_v2", "resnet18", "preresnet50"])
def test_float_files_are_within_3_percent(family):
    model = models.build(family, image_size=32, num_classes=10, width_multiplier=0.5, seed=0)
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    assert_near(sat_tf.explain(model).float_bytes, len(content))
