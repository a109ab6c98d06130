"""Bytes that are said before there is a model, and those of the file of that model."""

import glob
import itertools
import warnings

import numpy as np
import pytest

import sat_tf
from sat_tf.planning.explain import read_source
from sat_tf.planning.file_size import FileSizes, file_bytes
from sat_tf.qat.policy import BitPolicy
from tests.analysis.allocation.small_models import family, images_for, joined, residual

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


@pytest.mark.parametrize("pack", ["auto", "int4"])
@pytest.mark.parametrize("name", SMALL_FIRST)
def test_the_bytes_are_those_of_the_file(name, pack, tmp_path):
    model, policy = MODELS[name](), BitPolicy.mobile(4, **EVERYWHERE)
    found = file_bytes(model, policy, pack=pack)
    assert found == exported(model, policy, tmp_path / "model.tflite", pack)


@pytest.mark.parametrize("pack", ["none", "int2"])
def test_packings_are_those_of_the_file(pack, tmp_path):
    policy = BitPolicy.mobile(2, weight_grid="rounded", **EVERYWHERE)
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


def test_kernels_of_as_many_bytes_in_other_storages_are_told_apart(tmp_path):
    # 8 x 8 weights of 8 bits and 8 x 16 of 4 bits.
    overrides = {"one": {"weight_bits": 8}, "three": {"weight_bits": 4}}
    model, policy = residual(), BitPolicy.mobile(4, overrides=overrides)
    assert file_bytes(model, policy) == exported(model, policy, tmp_path / "model.tflite")
