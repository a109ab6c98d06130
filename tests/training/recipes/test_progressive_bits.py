import numpy as np
import pytest
import tensorflow as tf

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.training.learner import training_copy
from sat_tf.training.recipes import ProgressiveBits
from tests.training.recipes.trained import fitted, on_each_number_of_replicas, units_of
from tests.training.small import small_float_model, small_images

LAYERS = ("stem", "depthwise", "pointwise", "classifier")


def _model(bits=2):
    model = sat_tf.quantize_model(small_float_model(), BitPolicy.mobile(bits))
    return sat_tf.calibrate(model, small_images().train_images)


def _recipe(model):
    return ProgressiveBits(model, bits=[8, 6, 4], shares=[0.2, 0.2, 0.4], total_steps=10)


def _images():
    return tf.constant(small_images().test_images, tf.float32)


def test_each_floor_lasts_for_its_share_of_the_steps():
    recipe, floors = _recipe(training_copy(_model())), []
    for _ in range(12):
        floors.append(int(recipe.floor))
        recipe()
    assert floors == [8, 8, 6, 6, 4, 4, 4, 4, 0, 0, 0, 0]


# At 8 bits that model has fewer quantizers: streams of 8 bits are as fine as its activations.
@pytest.mark.thorough
@pytest.mark.parametrize("floor", [7, 4, 0])
def test_a_model_with_a_floor_is_the_model_of_so_many_bits(floor):
    model = training_copy(_model())
    recipe = _recipe(model)
    recipe.floor.assign(floor)
    other = sat_tf.requantize(_model(), BitPolicy.mobile(floor or 2))
    # The same levels as with fixed bits, and the same sums.
    assert np.array_equal(model(_images()), other(_images()))


@pytest.mark.thorough
def test_weights_with_a_floor_of_8_bits_are_on_the_grid_of_8_bits():
    model = training_copy(_model())
    assert int(_recipe(model).floor) == 8
    other = sat_tf.requantize(_model(), BitPolicy.mobile(8))
    for name in LAYERS:
        one, twin = (of.get_layer(f"quant_{name}").effective_kernel() for of in (model, other))
        assert np.array_equal(one, twin)


@pytest.mark.thorough
@on_each_number_of_replicas
def test_it_ends_with_the_codes_of_the_policy(replicas):
    start = _model()
    with replicas.scope():
        model = training_copy(start, synchronized=True)
    floors = []
    learner, losses = fitted(
        model,
        _recipe,
        replicas,
        steps=10,
        after=lambda recipe: floors.append(int(recipe.floor.numpy())),
    )
    assert floors == [8, 6, 6, 4, 4, 4, 4, 0, 0, 0]
    assert np.isfinite(losses).all()
    trained = training_copy(learner.student)
    eight_bits = sat_tf.requantize(trained, BitPolicy.mobile(8))
    target = sat_tf.requantize(eight_bits, BitPolicy.mobile(2))
    for name in LAYERS:
        assert np.array_equal(units_of(trained, name), units_of(target, name))
    for layer in trained.layers:
        if isinstance(layer, QuantizedLayer) and layer.quantize_config.weights is not None:
            twin = target.get_layer(layer.name)
            assert np.array_equal(layer.effective_kernel(), twin.effective_kernel())


@pytest.mark.thorough
def test_a_run_that_is_restored_goes_on_at_the_same_bits(tmp_path):
    one_device = tf.distribute.get_strategy()
    learner, _ = fitted(training_copy(_model()), _recipe, one_device, steps=5)
    path = tf.train.Checkpoint(learner=learner).save(str(tmp_path / "step"))
    again, _ = fitted(training_copy(_model()), _recipe, one_device, steps=0)
    tf.train.Checkpoint(learner=again).restore(path).assert_existing_objects_matched()
    assert int(again.after_step[0].floor) == int(learner.after_step[0].floor) == 4
    assert int(again.after_step[0].steps) == 5
    assert np.array_equal(again.student(_images()), learner.student(_images()))


@pytest.mark.thorough
def test_copies_have_no_floor():
    model = training_copy(_model())
    _recipe(model)
    assert np.array_equal(training_copy(model)(_images()), _model()(_images()))
