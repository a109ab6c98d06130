import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.analysis.code_use import ActivationProbe, clipping_levels
from sat_tf.qat.policy import BitPolicy
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


def test_shares_and_codes_are_those_counted_by_hand():
    model = small_quantized_model()
    uses = ActivationProbe(model, IMAGES)()
    expected = rows_of(model)
    assert set(uses) == set(expected) == set(clipping_levels(model))
    for name, (layer, before) in expected.items():
        quantizer = layer.quantize_config.output
        level = float(layer.output_variables["clipping_level"].numpy())
        steps = 2**quantizer.num_bits - (2 if quantizer.signed else 1)
        low = -level if quantizer.signed else 0.0
        clipped = (np.abs(before) if quantizer.signed else before) >= np.float32(level)
        codes = np.floor((np.clip(before, low, level) - low) / ((level - low) / steps) + 0.5)
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


def test_nothing_is_rounded_means_nothing_to_measure():
    assert ActivationProbe(small_float_model(), IMAGES)() == {}
    assert clipping_levels(small_float_model()) == {}


def test_one_bit_and_a_rectifier_inside_a_layer_are_measured():
    keras.utils.set_random_seed(1)
    image = keras.Input((8, 8, 3))
    features = layers.Conv2D(4, 3, activation="relu", name="conv")(image)
    logits = layers.Dense(3, name="logits")(layers.Flatten()(features))
    model = sat_tf.quantize_model(keras.Model(image, logits), BitPolicy.paper(1))
    use = ActivationProbe(model, IMAGES)()["conv"]
    assert len(use.code_counts) == 2
    assert sum(use.code_counts) == len(IMAGES) * 6 * 6 * 4
