import numpy as np
import pytest

import sat_tf
from sat_tf.analysis.code_use import layer_rows
from sat_tf.qat.policy import BitPolicy
from tests.training.small import small_float_model, small_images, small_quantized_model

IMAGES = small_images().train_images[:24]


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in layer_rows(small_quantized_model(), IMAGES)}


def test_every_layer_with_parameters_or_quantizers_has_a_row_in_graph_order(rows):
    names = list(rows)
    for name in ("stem", "stem_bn", "stem_relu", "depthwise", "pointwise", "classifier"):
        assert name in names
    assert names.index("stem") < names.index("stem_relu") < names.index("classifier")
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


def test_the_classifier_has_a_rescaling_and_its_constant(rows):
    row, layer = rows["classifier"], small_quantized_model().get_layer("quant_classifier")
    values = layer.quantize_config.weights
    latent = layer.layer.kernel
    effective = layer.effective_kernel().numpy()
    clamped = np.tanh(latent) / np.abs(np.tanh(latent)).max(axis=0)
    assert row.rescale == "stddev" == values.rescale
    # The largest clamped weight of a channel is 1, and 8 bits round it to 1.
    assert row.rescale_constant == pytest.approx(np.abs(effective).max(axis=0).mean(), rel=1e-5)
    np.testing.assert_allclose(np.abs(clamped).max(axis=0), 1.0, rtol=1e-6)


def test_an_activation_has_level_codes_and_the_share_that_is_clipped(rows):
    row = rows["stem_relu"]
    assert (row.activation_bits, row.activation_codes) == (4, 16)
    assert 1 <= row.activation_codes_used <= 16
    assert 0.0 <= row.clipped < 0.5


def test_ranges_of_whole_layers_and_clamped_weights_have_rows_too():
    policy = BitPolicy.mobile(4, weight_range="layer", rescale="constant")
    model = sat_tf.quantize_model(small_float_model(), policy)
    facts = {row.name: row for row in layer_rows(model, IMAGES)}
    assert np.isfinite(facts["classifier"].rescale_constant)
    policy = BitPolicy(weight_bits=None, activation_bits=None)
    clamped = sat_tf.quantize_model(small_float_model(), policy)
    facts = {row.name: row for row in layer_rows(clamped, IMAGES)}
    assert facts["classifier"].weight_bits is None
    assert facts["classifier"].rescale == "stddev"
    assert facts["classifier"].activation_bits is None
