import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.core import dorefa
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models


def test_an_annotated_model_is_no_wrapped_one():
    annotated = tfmot.quantization.keras.quantize_annotate_model(float_models.build("plain"))
    scheme = sat_tf.SatQuantizeScheme(BitPolicy())
    assert tfmot.quantization.keras.quantize_apply(annotated, scheme=scheme)


@pytest.fixture(scope="module")
def stripped():
    model = float_models.build("without_normalization")
    schedule = tfmot.sparsity.keras.ConstantSparsity(0.5, 0, frequency=1)
    pruned = tfmot.sparsity.keras.prune_low_magnitude(model, pruning_schedule=schedule)
    pruned.compile(keras.optimizers.SGD(0.0), "mse")  # as if training had ended
    step = tfmot.sparsity.keras.UpdatePruningStep()
    pruned.fit(float_models.images(8), np.zeros((8, 5)), verbose=0, callbacks=[step])
    model = tfmot.sparsity.keras.strip_pruning(pruned)
    assert np.mean(model.get_layer("b").kernel.numpy() == 0.0) == 0.5
    return model


def _codes(layer):
    quantizer = layer.quantize_config.weights
    units = dorefa.weight_units(
        layer.layer.kernel, quantizer.num_bits, quantizer.grid, range_axes=quantizer.range_axes
    )
    levels = 2**quantizer.num_bits - 2
    return units.numpy() - levels // 2


@pytest.mark.thorough
@pytest.mark.parametrize(("bits", "weight_range"), [(4, "layer"), (4, "channel"), (8, "layer")])
def test_pruned_weights_have_code_0_on_the_narrow_grid(bits, weight_range, stripped):
    policy = BitPolicy.mobile(
        bits,
        weight_grid="narrow",
        weight_range=weight_range,
        initial_clipping_level=8.0,
        initial_classifier_clipping_level=10.0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = sat_tf.quantize_model(stripped, policy)
    for name in ("a", "b", "classifier"):
        kernel = stripped.get_layer(name).kernel.numpy()
        layer = quantized.get_layer(f"quant_{name}")
        assert np.all(_codes(layer)[kernel == 0.0] == 0)
        assert np.all(layer.effective_kernel().numpy()[kernel == 0.0] == 0.0)


@pytest.mark.thorough
def test_pruned_weights_stay_at_code_0_while_a_mask_is_kept(stripped):
    policy = BitPolicy.mobile(4, weight_grid="narrow", input_max=1.0)
    quantized = sat_tf.quantize_model(stripped, policy)
    layers = [quantized.get_layer(f"quant_{name}") for name in ("a", "b", "classifier")]
    kernels = [layer.layer.kernel for layer in layers]
    masks = [tf.cast(kernel != 0.0, tf.float32) for kernel in kernels]

    class KeepZeros(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for kernel, mask in zip(kernels, masks, strict=True):
                kernel.assign(kernel * mask)

    quantized.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    before = [kernel.numpy() for kernel in kernels]
    images, targets = float_models.images(32) / 255.0, np.ones((32, 5))
    quantized.fit(images, targets, batch_size=8, verbose=0, callbacks=[KeepZeros()])
    for layer, mask, old in zip(layers, masks, before, strict=True):
        assert np.all(_codes(layer)[mask.numpy() == 0.0] == 0)
        assert not np.array_equal(layer.layer.kernel, old)
    # Gradients reach them like all others, as the mask has gone.
    quantized.fit(images, targets, batch_size=8, verbose=0)
    assert np.any(kernels[1].numpy()[masks[1].numpy() == 0.0] != 0.0)


def test_zeros_that_the_grid_does_not_have_are_warned_of(stripped):
    with pytest.warns(UserWarning, match=r"b \(50 % zeros\).*weight_grid='narrow'"):
        sat_tf.quantize_model(stripped, BitPolicy.mobile(4, weight_grid="dorefa"))
