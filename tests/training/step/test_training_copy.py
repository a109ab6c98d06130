import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.layout import inner_layer
from sat_tf.training.learner import training_copy
from tests.training.small import small_float_model, small_images, small_quantized_model

DECAYING = ("stem", "pointwise", "classifier")


def inner(model):
    return {inner_layer(layer).name: inner_layer(layer) for layer in model.layers}


@pytest.mark.parametrize("make", [small_float_model, small_quantized_model])
def test_conv_and_dense_kernels_alone_decay_by_half_of_it_times_their_squares(make):
    model = training_copy(make(), weight_decay=0.3)
    model(small_images().train_images[:2].astype(np.float32), training=True)
    kernels = [inner(model)[name].kernel.numpy().astype(np.float64) for name in DECAYING]
    expected = 0.15 * sum(np.sum(np.square(kernel)) for kernel in kernels)
    assert len(model.losses) == len(DECAYING)
    with tf.GradientTape() as tape:
        decay = tf.add_n(model.losses)
    assert float(decay) == pytest.approx(expected, rel=1e-6)
    gradients = tape.gradient(decay, model.trainable_variables)
    decaying = {id(inner(model)[name].kernel) for name in DECAYING}
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        if id(variable) in decaying:
            np.testing.assert_allclose(gradient, 0.3 * variable.numpy(), rtol=1e-6)
        else:
            assert gradient is None, variable.name
    others = [v.name for v in model.trainable_variables if id(v) not in decaying]
    kinds = {"depthwise_kernel", "gamma", "beta", "bias"}
    kinds |= {"clipping_level"} if make is small_quantized_model else set()
    for kind in kinds:
        assert any(kind in name for name in others)


def test_separable_convolutions_decay_in_their_pointwise_part_alone():
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, keras.layers.SeparableConv2D(4, 3, name="separable")(images))
    decaying = training_copy(model, weight_decay=0.2)
    kernel = decaying.get_layer("separable").pointwise_kernel.numpy()
    assert len(decaying.losses) == 1
    assert float(decaying.losses[0]) == pytest.approx(0.1 * np.sum(np.square(kernel)), rel=1e-6)


def test_the_copy_computes_the_same_and_the_original_is_left_alone():
    model = small_quantized_model()
    copy = training_copy(model, weight_decay=0.1)
    images = small_images().test_images.astype(np.float32)
    np.testing.assert_array_equal(copy(images, training=False), model(images, training=False))
    assert not model.losses
    copy.get_layer("quant_stem").layer.kernel.assign_add(
        tf.ones_like(copy.get_layer("quant_stem").layer.kernel)
    )
    assert not np.array_equal(
        copy.get_layer("quant_stem").layer.kernel, model.get_layer("quant_stem").layer.kernel
    )


def test_another_decay_replaces_the_one_before():
    model = training_copy(small_quantized_model(), weight_decay=0.1)
    assert not training_copy(model).losses
    doubled = training_copy(model, weight_decay=0.2)
    assert float(tf.add_n(doubled.losses)) == pytest.approx(2 * float(tf.add_n(model.losses)))


def test_the_decay_is_saved_and_loaded_with_the_model(tmp_path):
    model = training_copy(small_quantized_model(), weight_decay=0.1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert float(tf.add_n(loaded.losses)) == pytest.approx(float(tf.add_n(model.losses)))
