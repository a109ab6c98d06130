import keras as keras3  # noqa: TID251 -- both Kerases keep them
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models

L = keras.layers


def _levels(model):
    return {v.name: float(v.numpy()) for v in model.variables if "clipping_level" in v.name}


def _labels(count, seed=3):
    return np.random.default_rng(seed).integers(0, 3, count)


def _compiled(name="dropout", **options):
    model = sat_tf.quantize_model(float_models.build(name), BitPolicy.mobile(4))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.002, momentum=0.9), loss, **options)
    return model


def _fit(model, epochs=2, count=32):
    history = model.fit(
        float_models.images(count),
        _labels(count),
        batch_size=16,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    assert np.isfinite(history.history["loss"]).all()
    return history.history["loss"]


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_quantization_aware_training_recovers_what_rounding_lost(
    bits, digits, digits_model, correct
):
    model = sat_tf.quantize_model(digits_model, BitPolicy.mobile(bits))
    sat_tf.calibrate(model, digits.train_images)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True), loss)
    images = digits.train_images.astype(np.float32)
    model.fit(images, digits.train_labels, batch_size=64, epochs=4, verbose=0)
    # Seven of 359 images at 4 bits; at 2 bits four epochs are not enough for more.
    assert correct(model) >= correct(digits_model) - (0.02 if bits == 4 else 0.06)


@pytest.mark.thorough
def test_several_steps_at_once_give_the_same_training():
    expected = _compiled("without_normalization")
    found = _compiled("without_normalization", steps_per_execution=2)
    np.testing.assert_allclose(_fit(found), _fit(expected), rtol=1e-5)
    assert _levels(found) == pytest.approx(_levels(expected), rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("replicas", [2], indirect=True)
def test_a_model_on_two_replicas_is_calibrated_saved_and_requantized(replicas, tmp_path):
    with replicas.scope():
        model = _compiled()
    images = float_models.images(64)
    sat_tf.calibrate(model, images)
    alone = _compiled()
    sat_tf.calibrate(alone, images)
    assert _levels(model) == pytest.approx(_levels(alone), rel=1e-5)
    _fit(model)
    observed = model.get_layer("quant_classifier").output_variables
    assert float(observed["observations"].read_value()) == 1 + 2 * 2  # both replicas count alike
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images), model(images))
    with replicas.scope():
        fewer = sat_tf.requantize(model, BitPolicy.mobile(2))
    assert np.isfinite(fewer(images)).all()


@pytest.mark.thorough
def test_mixed_precision_trains(precision, tmp_path):
    model = _compiled()
    sat_tf.calibrate(model, float_models.images(64))
    before = _levels(model)
    _fit(model)
    model.save(tmp_path / "model.keras")
    assert {variable.dtype for variable in model.variables} == {tf.float32}
    assert model.output.dtype == precision.removeprefix("mixed_")
    after = _levels(model)
    assert all(np.isfinite(level) for level in after.values())
    assert after != before
    keras.mixed_precision.set_global_policy("float32")  # the file says what it needs
    loaded = keras.models.load_model(tmp_path / "model.keras")
    images = float_models.images()
    np.testing.assert_array_equal(loaded(images), model(images))


@pytest.mark.thorough
def test_a_frozen_model_does_not_change_in_training():
    model = _compiled("plain")
    model.trainable = False
    image = keras.Input((8, 8, 3))
    head = L.Dense(5, name="new_head")
    transfer = keras.Model(image, head(model(image)))
    transfer.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before, head_before = model.get_weights(), head.get_weights()
    _fit(transfer)
    np.testing.assert_equal(before, model.get_weights())
    assert not np.array_equal(head_before[0], head.get_weights()[0])
    assert len(transfer.trainable_variables) == 2


@pytest.mark.thorough
def test_a_frozen_layer_keeps_its_weights_while_others_train():
    model = _compiled("plain")
    model.get_layer("quant_a").trainable = False
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.002), loss)
    frozen = model.get_layer("quant_a").get_weights()
    trained = model.get_layer("quant_b").get_weights()
    _fit(model)
    np.testing.assert_array_equal(frozen[0], model.get_layer("quant_a").get_weights()[0])
    assert not np.array_equal(trained[0], model.get_layer("quant_b").get_weights()[0])


@pytest.mark.thorough
def test_clipping_levels_stay_positive_under_any_gradient():
    # Targets far below what rectified tensors can reach pull every level down at once.
    levels = {"initial_clipping_level": 0.05, "initial_classifier_clipping_level": 0.05}
    policy = BitPolicy.mobile(4, weight_range="layer", **levels)
    model = sat_tf.quantize_model(float_models.build("rectified_logits"), policy)
    model.compile(keras.optimizers.SGD(1e3), lambda _, logits: tf.reduce_sum(logits))
    model.fit(float_models.images(16), _labels(16), batch_size=16, verbose=0)
    levels = _levels(model).values()
    assert all(level >= np.float32(1e-3) for level in levels)
    assert min(levels) == pytest.approx(1e-3)


def test_weight_decay_speaks_of_latent_weights_alone():
    image = keras.Input((8, 8, 3), name="image")
    decay = keras.regularizers.L2(0.1)
    tensor = L.Conv2D(4, 3, activation="relu", kernel_regularizer=decay, name="a")(image)
    model = keras.Model(image, L.Dense(3, name="classifier")(L.Flatten(name="flatten")(tensor)))
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(2))
    layer = quantized.get_layer("quant_a").layer
    (penalty,) = quantized.losses
    assert float(penalty) == pytest.approx(0.1 * np.square(layer.kernel).sum(), rel=1e-5)


@pytest.mark.thorough
def test_the_logits_range_follows_training():
    model = _compiled("plain")
    _fit(model, epochs=1)
    observed = model.get_layer("quant_classifier").output_variables
    assert float(observed["observations"]) == 2.0
    assert float(observed["lowest"]) < 0.0 < float(observed["highest"])
    before = float(observed["highest"])
    model.evaluate(float_models.images(16), _labels(16), verbose=0)
    model.predict(float_models.images(16), verbose=0)
    assert float(observed["observations"]) == 2.0
    assert float(observed["highest"]) == before


@pytest.mark.thorough
def test_dynamic_image_sizes_train():
    model = sat_tf.quantize_model(float_models.any_image_size(), BitPolicy.mobile(4))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for size in (8, 11):
        images = float_models.images(16, size)
        model.fit(images, _labels(16), batch_size=16, verbose=0)
        assert np.isfinite(model(images)).all()


NUMBERS = np.ones((4, 8), np.float32)


def _model():
    read = keras.Input((8,), name="read")
    code = L.Dense(4, name="code", kernel_regularizer="l2")(read)
    return keras.Model(read, L.Dense(3, name="classifier")(code), name="net"), code


def test_a_loss_of_the_quantized_model_trains_it_and_does_not_reach_the_file(tmp_path):
    quantized = sat_tf.quantize_model(_model()[0], sat_tf.BitPolicy.mobile(8, input_type="int8"))
    quantized.add_loss(tf.reduce_mean(quantized.get_layer("quant_code").output ** 2))
    sat_tf.calibrate(quantized, np.tile(NUMBERS, (16, 1)), progress=False)
    quantized(NUMBERS)
    assert len(quantized.losses) == 2  # with that of the regularizer
    sat_tf.export_tflite(quantized, tmp_path / "net.tflite")
    with pytest.raises(ValueError, match="a loss of its own"):
        sat_tf.requantize(quantized, 4)


class Penalty(L.Layer):
    """A layer of a user that adds a loss when it is called."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        return inputs


@pytest.mark.parametrize(
    ("library", "layer"),
    [
        *(
            (library, layer)
            for library in (keras, keras3)
            for layer in (
                library.layers.Dense(4, activation="relu", activity_regularizer="l2"),
                library.layers.Dense(4, activation="tanh", activity_regularizer="l2"),
                library.layers.ReLU(activity_regularizer="l2"),
                library.layers.BatchNormalization(activity_regularizer="l2"),
            )
        ),
        (keras, L.Dense(4, activity_regularizer="l2")),
        (keras, L.Activation("tanh", activity_regularizer="l2")),
        (keras, L.ActivityRegularization(0.1)),
        (keras, Penalty()),
    ],
    ids=lambda value: value.__name__ if value in (keras, keras3) else value.name,
)
def test_losses_of_layers_are_kept(library, layer):
    library.utils.set_random_seed(5)
    read, dense = library.Input((8,)), library.layers.Dense
    model = library.Model(read, dense(3, name="end")(layer(dense(4, name="start")(read))))
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float", input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    values = np.random.default_rng(5).normal(size=(64, 8)).astype(np.float32)
    sat_tf.calibrate(quantized, values, batch_normalization=False, progress=False)
    model(values), quantized(values)
    (expected,), (found,) = model.losses, quantized.losses
    assert float(found) == pytest.approx(float(expected), rel=0.05)
