"""Models that TFMOT takes are saved, copied, frozen, and put on replicas and into float16.

Numbers are those of issues of tensorflow/model-optimization (mo) and tensorflow/tensorflow (tf).
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer

L = keras.layers
_tfmot_quantize = tfmot.quantization.keras.quantize_model


def _head(tensor):
    return L.Dense(4, name="classifier")(L.Flatten(name="flatten")(tensor))


@pytest.fixture(scope="module")
def theirs():
    return _tfmot_quantize(_plain())


@pytest.fixture(scope="module")
def ours():
    return sat_tf.quantize_model(_plain(), BitPolicy.mobile(4, first_last_weight_bits=4))


def _plain():
    image = keras.Input((8, 8, 3), name="image")
    frozen = L.Conv2D(2, 3, name="frozen", trainable=False)(image)
    return keras.Model(image, _head(L.Conv2D(2, 3, name="conv")(frozen)))


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("file", ["model.keras", "model.h5"])
def test_saved_models_load_without_a_scope_mo426_mo524_mo751(file, theirs, ours, tmp_path):
    path = tmp_path / file
    theirs_loads = True
    try:
        theirs.save(path)
        keras.models.load_model(path)
    except (TypeError, ValueError):
        theirs_loads = False
    assert not theirs_loads
    ours.save(path)
    images = np.ones((2, 8, 8, 3), np.float32)
    np.testing.assert_array_equal(keras.models.load_model(path)(images), ours(images))


@pytest.mark.parametrize(
    "copy",
    [keras.models.clone_model, lambda model: keras.models.model_from_json(model.to_json())],
    ids=["clone_model", "model_from_json"],
)
def test_models_can_be_copied_mo773_mo1122(copy, theirs, ours):
    with pytest.raises((TypeError, ValueError)):
        copy(theirs)
    twin = copy(ours)
    twin.set_weights(ours.get_weights())
    images = np.ones((2, 8, 8, 3), np.float32)
    np.testing.assert_array_equal(twin(images), ours(images))


def test_frozen_layers_stay_frozen(theirs, ours):
    assert any("frozen" in variable.name for variable in theirs.trainable_variables)
    frozen = ours.get_layer("quant_frozen")
    assert not [v for v in frozen.trainable_variables if "kernel" in v.name]


def test_4_bits_are_4_bits_mo950_mo574(theirs, ours):
    # TFMOT's scheme has 8 bits in its place, which no argument changes.
    bits = {
        quantizer.num_bits
        for layer in theirs.layers
        if hasattr(layer, "quantize_config")
        for _, quantizer in layer.quantize_config.get_weights_and_quantizers(layer.layer)
    }
    assert bits == {8}
    for layer in ours.layers:
        if isinstance(layer, QuantizedLayer) and layer.quantize_config.weights is not None:
            kernel, axes = (
                layer.effective_kernel().numpy(),
                layer.quantize_config.weights.range_axes,
            )
            others = [axis for axis in range(kernel.ndim) if axis not in axes]
            of_channels = np.moveaxis(kernel, axes, range(len(axes)))
            of_channels = of_channels.reshape(-1, np.prod([kernel.shape[axis] for axis in others]))
            assert all(len(np.unique(channel)) <= 16 for channel in of_channels)


def test_mixed_precision_is_kept_mo367_mo824():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = _plain()
    finally:
        keras.mixed_precision.set_global_policy("float32")
    with pytest.raises(TypeError, match="type float32 that does not match type float16"):
        _tfmot_quantize(model)
    quantized = sat_tf.quantize_model(model)
    conv = quantized.get_layer("quant_conv")
    assert conv.layer.compute_dtype == "float16"
    # The quantizers compute in float32, the convolution in float16.
    assert {variable.dtype.name for variable in quantized.variables} == {"float32"}
    assert np.isfinite(quantized(np.ones((2, 8, 8, 3), np.float32))).all()


# -- on several devices ------------------------------------------------------------------------


def _trained_on_two_replicas(quantize):
    """A model that has seen a batch of which one half is larger than the other."""
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    images = np.concatenate([np.full((4, 6), 0.2), np.ones((4, 6))]).astype(np.float32)
    with strategy.scope():
        features = keras.Input((6,), name="features")
        ones = L.Dense(1, kernel_initializer="ones", name="dense")
        model = quantize(keras.Model(features, ones(features)))
        model.compile(keras.optimizers.SGD(0.0), "mse")
    data = tf.data.Dataset.from_tensor_slices((images, np.zeros((8, 1), np.float32))).batch(8)
    model.fit(data.repeat(), steps_per_epoch=2, verbose=0)
    return model


def _scalars(model):
    found = [variable for variable in model.variables if variable.shape.rank == 0]
    return {v.name.split("/")[-1]: float(tf.convert_to_tensor(v)) for v in found}


@pytest.mark.thorough
def test_ranges_of_tfmot_are_those_of_the_first_replica_mo1068():
    model = _trained_on_two_replicas(_tfmot_quantize)
    ranges = {name: value for name, value in _scalars(model).items() if "quantize_layer" in name}
    assert max(ranges.values()) < 0.5  # of inputs up to 1
    assert tf.lite.TFLiteConverter.from_keras_model(model).convert()  # tf#42432 is no more


@pytest.mark.thorough
def test_ranges_of_sat_tf_are_those_of_the_whole_batch_mo1068_tf42432(tmp_path):
    # tests/qat/models/test_training.py compares whole trainings on one and on two replicas.
    policy = BitPolicy.mobile(8, input_max=1.0)
    model = _trained_on_two_replicas(lambda model: sat_tf.quantize_model(model, policy))
    assert _scalars(model)["highest:0"] == pytest.approx(6.0, rel=1e-5)
    sat_tf.export_tflite(model, tmp_path / "model.tflite")
    pixels = np.arange(60, dtype=np.uint8).reshape(10, 6)
    assert sat_tf.verify_tflite(model, tmp_path / "model.tflite", pixels).codes_differing == 0


# -- resumed -----------------------------------------------------------------------------------


def test_keras_files_do_not_load_even_in_tfmots_scope_mo1122_tf46755(theirs, tmp_path):
    with tfmot.quantization.keras.quantize_scope():
        theirs.save(tmp_path / "model.keras")
        with pytest.raises(ValueError, match=r"expected \d+ variables, but received"):
            keras.models.load_model(tmp_path / "model.keras")


def test_weights_of_a_model_in_training_load_into_another_one_tf59274(theirs, ours, tmp_path):
    # tests/qat/models/test_saving.py has the optimizer's state with them.
    images = np.ones((2, 8, 8, 3), np.float32)
    policy = BitPolicy.mobile(4, first_last_weight_bits=4)
    for model, other in (
        (theirs, _tfmot_quantize(_plain())),
        (ours, sat_tf.quantize_model(_plain(), policy)),
    ):
        model.save_weights(tmp_path / "model.weights.h5")
        other.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_array_equal(other(images), model(images))
