"""Plans of models that `quantize_model` rewrites before it quantizes them."""

import collections

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from tests.export.proofs import calibrated
from tests.export.zoo import make_realistic
from tests.planning.following import assert_followed
from tests.planning.test_file_bytes import assert_near
from tests.qat.models import nested_models

L = keras.layers


def _image(name="image"):
    return keras.Input((8, 8, 3), name=name)


def _head(tensor, name="classifier"):
    return L.Dense(3, name=name)(L.GlobalAveragePooling2D(name=f"{name}_pool")(tensor))


def _several():
    """Two images in, a class and a mask out."""
    left, right = _image("left"), _image("right")
    both = [
        L.Conv2D(4, 3, activation="relu", padding="same", name=f"{image.node.layer.name}_conv")(
            image
        )
        for image in (left, right)
    ]
    tensor = L.Add(name="add")(both)
    mask = L.Conv2D(1, 1, name="mask")(tensor)
    return keras.Model([left, right], [_head(tensor), mask], name="several")


def _operations():
    image = _image()
    tensor = L.Conv2D(4, 3, activation="relu", name="conv")(image / 127.5 - 1.0)
    tensor = L.Conv2D(4, 3, name="second")(tensor[:, 1:, ::2])
    return keras.Model(image, _head(tensor * 2.0), name="operations")


def _swish():
    image = _image()
    tensor = L.Conv2D(4, 3, activation="swish", name="conv")(image)
    return keras.Model(image, _head(L.Conv2D(4, 3, activation="relu", name="second")(tensor)))


def _transposed():
    image = _image()
    tensor = L.Conv2D(4, 3, 2, padding="same", activation="relu", name="down")(image)
    tensor = L.Conv2DTranspose(4, 3, 2, padding="same", use_bias=False, name="up")(tensor)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(tensor))
    return keras.Model(image, L.Conv2D(2, 1, name="mask")(tensor), name="transposed")


def _shared():
    """A convolution with two calls, of which each has a quantizer of its own."""
    image = _image()
    tensor = L.Conv2D(4, 3, padding="same", activation="relu", name="stem")(image)
    conv = L.Conv2D(4, 3, padding="same", name="conv")
    return keras.Model(image, _head(conv(conv(tensor))), name="shared")


MODELS = {
    "nested": nested_models.nested,
    "shared": _shared,
    "shared_with_activations": nested_models.shared,
    "several": _several,
    "operations": _operations,
    "swish": _swish,
    "transposed": _transposed,
}
POLICY = BitPolicy.mobile(4)

# Statistics are made up, and calibration says so.
pytestmark = pytest.mark.filterwarnings("ignore:calibrate")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow) if name == "shared_with_activations" else name
        for name in MODELS
    ],
)
def planned(request, tmp_path_factory):
    """A plan, the quantized model, and the report of its export."""
    keras.utils.set_random_seed(3)
    model = MODELS[request.param]()
    make_realistic(model)
    plan = sat_tf.explain(model, POLICY)
    draw = np.random.default_rng(4)
    images = [draw.integers(0, 256, (64, 8, 8, 3)).astype(np.float32) for _ in model.inputs]
    quantized = calibrated(model, POLICY, [images] if len(images) > 1 else images[0])
    path = tmp_path_factory.mktemp("planned") / "model.tflite"
    return plan, quantized, sat_tf.export_tflite(quantized, path)


def test_the_bits_of_the_rows_are_those_of_the_quantizers(planned):
    plan, quantized, _ = planned
    assert not plan.problems
    assert not plan.export_problems
    assert_followed(plan, quantized)


def test_the_file_has_the_planned_operators_and_bytes(planned):
    plan, _, report = planned
    operators = collections.Counter(name for row in plan.rows for name in row.operators)
    assert dict(operators) == report.operators
    assert_near(plan.bytes, report.bytes)


def test_both_calls_of_a_shared_layer_have_rows_and_one_has_the_weights():
    plan = sat_tf.explain(_shared(), POLICY)
    one, other = plan["conv"], plan["conv@2"]
    assert one.weights == other.weights
    assert one.operators == other.operators == ("CONV_2D",)
    assert one.multiply_adds == other.multiply_adds == 64 * 9 * 4 * 4
    assert (one.parameters, other.parameters) == (9 * 4 * 4 + 4, 0)
    # The kernel of 144 bytes is in the file once; the names of the two calls differ in length.
    assert 100 < one.bytes - other.bytes < 144


def test_rows_have_the_names_on_the_way_to_a_nested_layer():
    plan = sat_tf.explain(nested_models.nested(), POLICY)
    assert {"backbone/conv", "backbone/block/conv", "conv"} <= {row.name for row in plan.rows}


def test_every_input_and_output_has_a_row():
    plan = sat_tf.explain(_several(), POLICY)
    for name in ("left", "right"):
        assert plan[name].kind == "InputLayer"
        assert plan[f"{name}_image"].operators == ("QUANTIZE",)
    assert plan["classifier"].observed
    assert plan["mask"].observed


def test_operations_have_rows_of_the_layers_that_they_become():
    plan = sat_tf.explain(_operations(), POLICY)
    kinds = [row.kind for row in plan.rows]
    assert kinds.count("Scaling") == 3
    assert kinds.count("Slice") == 1


def test_swish_has_a_row_of_its_own_with_a_table_of_codes():
    plan = sat_tf.explain(_swish(), POLICY)
    # It reads the codes of the convolution's output as they are.
    assert plan["conv_swish"].operators == ("CAST", "ADD", "GATHER")


def test_multiply_adds_of_a_transposed_convolution_are_those_of_its_input():
    assert sat_tf.explain(_transposed(), POLICY)["up"].multiply_adds == 4 * 4 * 9 * 4 * 4
