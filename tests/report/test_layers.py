import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.report import layer_table as report_layers
from sat_tf.report.layer_table import ActivationProbe, clipping_levels, layer_rows
from tests import reference
from tests.training.small import small_float_model, small_images, small_quantized_model

layers = keras.layers
IMAGES = small_images().train_images[:24]


def rows_of(model):
    """Input and output of every quantizer, layer by layer, without the probe's graph."""
    tensors, found = {}, {}
    for layer in model.layers[1:]:
        source = layer.input.node.layer.name if hasattr(layer.input, "node") else None
        inputs = tensors.get(source, tf.cast(IMAGES, tf.float32))
        tensors[layer.name] = layer(inputs, training=False)
        if "clipping_level" in getattr(layer, "output_variables", {}):
            found[layer.layer.name] = (layer, layer.before_quantization(inputs).numpy())
    return found


@pytest.mark.parametrize("at_once", [2**23, 5000, 1])
def test_shares_and_codes_are_those_counted_by_hand(monkeypatch, at_once):
    monkeypatch.setattr(report_layers, "_VALUES_AT_ONCE", at_once)
    model = small_quantized_model()
    uses = ActivationProbe(model, IMAGES)()
    expected = rows_of(model)
    assert set(uses) == set(expected) == set(clipping_levels(model))
    for name, (layer, before) in expected.items():
        quantizer = layer.quantize_config.output
        level = float(layer.output_variables["clipping_level"].numpy())
        skew = float(layer.output_variables["skew"]) if quantizer.signed else 1.0
        step, lowest, highest = reference.skewed_grid(level, quantizer.num_bits, skew)
        clipped = before >= np.float32(highest * step)
        if quantizer.signed:
            clipped |= before <= np.float32(lowest * step)
        codes = np.clip(np.floor(before / step + 0.5), lowest, highest) - lowest
        steps = highest - lowest
        counts = np.bincount(codes.astype(int).reshape(-1), minlength=steps + 1)
        assert uses[name].clipped == pytest.approx(clipped.mean(), abs=1e-12)
        assert len(uses[name].code_counts) == steps + 1
        assert sum(uses[name].code_counts) == before.size
        # A value next to the middle of two codes may fall to either side in another order of
        # operations.
        assert np.abs(np.array(uses[name].code_counts) - counts).sum() <= 2


def test_a_probe_follows_the_variables():
    model = sat_tf.requantize(small_quantized_model(), BitPolicy.mobile(4))
    probe = ActivationProbe(model, IMAGES)
    name = "stem_relu"
    level = clipping_levels(model)[name]
    before = probe()[name].clipped
    level.assign(level / 4)
    assert probe()[name].clipped > before
    level.assign(1e6)
    use = probe()[name]
    assert (use.clipped, use.codes_used) == (0.0, 1)
    # Where nothing is rounded there is nothing to measure.
    assert ActivationProbe(small_float_model(), IMAGES)() == {}
    assert clipping_levels(small_float_model()) == {}


def test_one_bit_and_a_rectifier_inside_a_layer_are_measured():
    keras.utils.set_random_seed(1)
    conv = layers.Conv2D(4, 3, activation="relu", name="conv")
    stack = keras.Input((8, 8, 3)), conv, layers.Flatten(), layers.Dense(3)
    model = sat_tf.quantize_model(keras.Sequential([*stack]), BitPolicy.paper(1))
    use = ActivationProbe(model, IMAGES)()["conv"]
    assert len(use.code_counts) == 2
    assert sum(use.code_counts) == len(IMAGES) * 6 * 6 * 4


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in layer_rows(small_quantized_model(), IMAGES)}


def test_every_layer_with_parameters_or_quantizers_has_a_row_in_graph_order(rows):
    expected = ("stem", "stem_bn", "stem_relu", "depthwise", "pointwise", "classifier")
    assert tuple(name for name in rows if name in expected) == expected
    assert sum(row.parameters for row in rows.values()) == small_float_model().count_params()
    assert {row.kind for row in rows.values()} >= {"Conv2D", "DepthwiseConv2D", "Dense", "ReLU"}


def test_a_kernel_has_bits_grid_and_the_codes_it_uses(rows):
    kernel = small_quantized_model().get_layer("quant_pointwise").effective_kernel().numpy()
    row = rows["pointwise"]
    assert (row.weight_bits, row.weight_grid, row.weight_codes) == (4, "narrow", 15)
    # In each channel, 14 steps lie between the lowest code and the highest.
    steps = 7.0 * kernel / np.abs(kernel).max(axis=(0, 1, 2)) + 7.0
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
    assert row.weight_codes_used == len(np.unique(np.rint(steps)))
    assert (rows["stem"].weight_bits, rows["stem"].weight_codes) == (8, 255)
    assert row.rescale is None
    assert row.activation_bits is None or row.clipping_level > 0


def test_the_classifier_has_a_rescaling_and_its_constant_and_an_activation_its_codes(rows):
    row, layer = rows["classifier"], small_quantized_model().get_layer("quant_classifier")
    values = layer.quantize_config.weights
    latent = layer.layer.kernel
    effective = layer.effective_kernel().numpy()
    clamped = np.tanh(latent) / np.abs(np.tanh(latent)).max(axis=0)
    assert row.rescale == "stddev" == values.rescale
    # The largest clamped weight of a channel is 1, and 8 bits round it to 1.
    assert row.rescale_constant == pytest.approx(np.abs(effective).max(axis=0).mean(), rel=1e-5)
    np.testing.assert_allclose(np.abs(clamped).max(axis=0), 1.0, rtol=1e-6)

    row = rows["stem_relu"]
    assert (row.activation_bits, row.activation_codes) == (4, 16)
    assert 1 <= row.activation_codes_used <= 16
    assert 0.0 <= row.clipped < 0.5


def test_ranges_of_whole_layers_and_clamped_weights_have_rows_too():
    constant, clamped = (
        layer_rows(sat_tf.quantize_model(small_float_model(), policy), IMAGES)[-1]
        for policy in (
            BitPolicy.mobile(4, weight_range="layer", rescale="constant"),
            BitPolicy(weight_bits=None, activation_bits=None),
        )
    )
    assert constant.name == clamped.name == "classifier"
    assert np.isfinite(constant.rescale_constant)
    assert (clamped.weight_bits, clamped.activation_bits) == (None, None)
    assert clamped.rescale == "stddev"
