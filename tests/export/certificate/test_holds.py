import dataclasses
import re

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.certificate.certificate import FEWEST_IMAGES, Certificate
from sat_tf.export.certificate.page import certificate_page
from sat_tf.export.certificate.runtimes import Hold, holds_of, verdict_of
from sat_tf.export.litert.processes import Machine
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.pairs import Concatenate, Pair
from sat_tf.export.operations.pointwise import Pointwise
from sat_tf.export.tflite.tensors import Codes, Tensor
from tests.export.proofs import calibrated, proved
from tests.export.zoo import images_for

HALF, GRID = Codes(np.float32(0.5), -128), Codes(np.float32(0.25), 0)


def _tied_product() -> Graph:
    """0.25 · 0.5 / 0.25 is a half, whatever the scale of the grid that both sides share."""
    tensors = {"a": GRID, "b": HALF, "y": GRID, "joined": GRID}
    return Graph(
        "tied",
        {name: Tensor(name, (1, 1, 1), codes) for name, codes in tensors.items()},
        (Pair(("a", "b"), "y", Pointwise.PRODUCT), Concatenate(("y", "a"), "joined", 2)),
        (),
        "joined",
    )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Certificate:
    image = keras.Input((6, 6, 3), name="image")
    tensor = keras.layers.Conv2D(4, 3, activation="relu", name="stem")(image)
    tensor = keras.layers.GlobalAveragePooling2D(name="mean")(tensor)
    model = keras.Model(image, keras.layers.Dense(3, name="head")(tensor))
    path = tmp_path_factory.mktemp("holds") / "model.tflite"
    return proved(calibrated(model, 3), path, images_for(model, 4))[1]


def test_a_certificate_says_of_each_operator_how_it_is_known(certificate):
    known = {hold.operators: (hold.basis, hold.inputs) for hold in certificate.holds}
    # 4 x 4 stored integers from -128 to 127: a mean reads a tensor of 8 bits.
    assert known["MEAN"] == ("proved for every input", 16 * 255 + 1)
    assert known["CONV_2D"] == known["FULLY_CONNECTED"] == ("by its rule", 0)
    assert certificate.is_portable
    assert "1 operator proved for all 4,081 inputs" in verdict_of(certificate.holds).words


def test_every_operation_of_the_file_is_spoken_of_once(certificate):
    spoken = [tensor for hold in certificate.holds for tensor in hold.tensors]
    assert len(spoken) == len(set(spoken))
    assert {count.name for count in certificate.tensors} <= set(spoken)


def test_a_certificate_names_the_machine_and_the_delegate(certificate):
    assert certificate.machine is not None
    assert certificate.machine.delegate == "XNNPACK"
    assert certificate.machine.architecture
    assert certificate.warnings == []


def test_the_page_has_the_section_and_what_it_says_nothing_of(certificate):
    page = certificate_page(certificate)
    assert "Where this holds" in page
    assert "NNAPI" in page
    assert "proved for every input" in page


def test_the_verdict_of_a_file_that_is_not_portable_names_the_machine(certificate):
    # So many images that they tell whether answers are kept, of no range that could be wrong.
    certificate = dataclasses.replace(certificate, num_images=FEWEST_IMAGES, input_ranges=[])
    holds = [*certificate.holds, *holds_of(_tied_product())]
    page = certificate_page(dataclasses.replace(certificate, holds=holds))
    assert re.search(r'"verdict watch">0 of [\d,]+ codes differ on \w+<', page)
    assert re.search(r'"verdict good">0 of [\d,]+ codes differ<', certificate_page(certificate))


def test_a_product_that_is_not_portable_is_counted_for_each_kernel_set():
    (product, moved) = holds_of(_tied_product())
    assert product.operators == "MUL"
    assert product.differing["xnnpack_arm"] == product.differing["xnnpack_arm_unfused"] > 0
    assert "xnnpack_x86" not in product.differing
    assert moved.is_portable
    assert verdict_of([product, moved]) == (
        "It holds for x86 only: on Arm, 1 operator (MUL) may compute other codes.",
        "watch",
    )


def _proved(model: keras.Model, tmp_path, policy: sat_tf.BitPolicy) -> Certificate:
    quantized = calibrated(model, policy)
    report, certificate = proved(quantized, tmp_path / "model.tflite", images_for(model, 4))
    assert report.is_portable == certificate.is_portable
    return certificate


def test_nothing_is_said_of_codes_behind_a_layer_left_float(tmp_path):
    image = keras.Input((6, 6, 3), name="image")
    tensor = keras.layers.Conv2D(4, 3, activation="relu", name="stem")(image)
    tensor = keras.layers.LayerNormalization(name="norm")(tensor)
    tensor = keras.layers.Conv2D(4, 3, activation="relu", name="behind")(tensor)
    tensor = keras.layers.Flatten(name="flat")(tensor)
    model = keras.Model(image, keras.layers.Dense(3, name="head")(tensor))
    certificate = _proved(model, tmp_path, sat_tf.BitPolicy.mobile(4, unsupported="float"))
    assert not certificate.is_portable
    known = {tensor: hold.basis for hold in certificate.holds for tensor in hold.tensors}
    assert known["stem"] == "by its rule"
    assert known["behind"] == known["flat"] == known["head"] == "behind float values"
    words = verdict_of(certificate.holds).words
    assert "in front of float values are the same on x86 and on Arm" in words
    assert "Nothing is said of the codes behind float values" in words
    assert "not known" in certificate_page(certificate)


@pytest.mark.parametrize("pooled", [False, True])
def test_float_sums_are_the_same_everywhere_and_float_means_are_not(pooled, tmp_path):
    image = keras.Input((8, 8, 3), name="image")
    tensor = keras.layers.Conv2D(4, 3, padding="same", activation="relu", name="stem")(image)
    branch = keras.layers.Conv2D(4, 3, padding="same", name="branch")(tensor)
    tensor = keras.layers.Add(name="sum")([tensor, branch])
    pool = keras.layers.GlobalAveragePooling2D if pooled else keras.layers.Flatten
    model = keras.Model(image, keras.layers.Dense(3, name="head")(pool(name="last")(tensor)))
    certificate = _proved(model, tmp_path, sat_tf.BitPolicy.paper(4))
    known = {tensor: hold for hold in certificate.holds for tensor in hold.tensors}
    assert known["sum"].why == "one float32 operation a value, which all processors round alike"
    assert certificate.is_portable != pooled


@pytest.mark.parametrize(
    ("delegate", "words"),
    [("YNNPACK", "the delegate YNNPACK, whose rounding is not known"), ("none", "no delegate")],
)
def test_a_delegate_that_is_not_known_is_warned_of(delegate, words):
    assert words in str(Machine("x86_64", [], delegate).doubt)


def test_float_files_are_not_said_to_be_portable():
    floats = Hold("DEQUANTIZE", ["y"], "float", "processors differ in the last bits of float32")
    assert "float32" in verdict_of([floats]).words
