import numpy as np
import pytest
import tensorflow as tf

from sat_tf.training.learner import Learner, training_copy
from sat_tf.training.recipes import WeightAverage
from tests.training.recipes.trained import fitted, on_each_number_of_replicas
from tests.training.small import small_images, small_quantized_model

DECAY = 0.5


def _recipe(model):
    return WeightAverage(model, decay=DECAY)


@pytest.mark.thorough
@on_each_number_of_replicas
def test_the_average_is_that_of_the_formula_and_can_take_the_place_of_the_weights(replicas):
    start = small_quantized_model()
    with replicas.scope():
        model = training_copy(start, synchronized=True)
    expected = [weight.astype(np.float64) for weight in model.get_weights()]
    steps = 0

    def follow(average):
        nonlocal expected, steps
        steps += 1
        decay = min(DECAY, (1 + steps) / (10 + steps))
        expected = [
            decay * old + (1 - decay) * new
            for old, new in zip(expected, model.get_weights(), strict=True)
        ]

    learner, _ = fitted(model, _recipe, replicas, steps=8, after=follow)
    average = learner.after_step[0]
    assert len(average.averages) == len(expected)  # clipping levels and statistics too
    weights, averages = model.get_weights(), [value.numpy() for value in average.averages]
    for found, wanted in zip(averages, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    average.swap()
    assert all(np.array_equal(*pair) for pair in zip(model.get_weights(), averages, strict=True))
    average.swap()
    assert all(np.array_equal(*pair) for pair in zip(model.get_weights(), weights, strict=True))
    average.keep()
    assert all(np.array_equal(*pair) for pair in zip(model.get_weights(), averages, strict=True))


@pytest.mark.thorough
def test_held_out_images_are_measured_with_the_average():
    model = training_copy(small_quantized_model())
    learner, _ = fitted(model, _recipe, tf.distribute.get_strategy(), steps=3)
    average, images = learner.after_step[0], small_images()
    pairs = tf.data.Dataset.from_tensor_slices((images.test_images, images.test_labels)).batch(11)
    found = learner.evaluate(pairs, verbose=0, callbacks=[average.measured()])
    weights = model.get_weights()
    average.keep()
    averaged = Learner(model, batch_size=11)
    averaged.compile()
    assert found == averaged.evaluate(pairs, verbose=0)
    assert not all(np.array_equal(*pair) for pair in zip(weights, model.get_weights(), strict=True))


@pytest.mark.thorough
def test_it_is_part_of_checkpoints_once(tmp_path):
    def made(steps):
        model = training_copy(small_quantized_model())
        return fitted(model, _recipe, tf.distribute.get_strategy(), steps=steps)[0]

    learner, again = made(4), made(0)
    path = tf.train.Checkpoint(learner=learner).save(str(tmp_path / "step"))
    tf.train.Checkpoint(learner=again).restore(path).assert_existing_objects_matched()
    assert int(again.after_step[0].steps) == 4
    for one, other in zip(
        learner.after_step[0].averages, again.after_step[0].averages, strict=True
    ):
        assert np.array_equal(one, other)
    saved = [name for name, _ in tf.train.list_variables(path) if "OPTIMIZER_SLOT" not in name]
    assert len([name for name in saved if "after_step" in name]) == len(learner.student.weights) + 1
