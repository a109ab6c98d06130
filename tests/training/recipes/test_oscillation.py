import numpy as np
import pytest
import tensorflow as tf

import sat_tf
from sat_tf.core import dorefa
from sat_tf.core.grid import GRIDS
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.learner import training_copy
from sat_tf.training.recipes import Motion, Oscillation
from tests.training.recipes.trained import (
    fitted,
    latent_kernels,
    on_each_number_of_replicas,
    units_of,
)
from tests.training.small import small_float_model

ROWS = [("dorefa", 1), ("dorefa", 2), ("dorefa", 4), ("narrow", 3), ("rounded", 2), ("modified", 3)]


def test_oscillations_are_changes_against_the_last_direction():
    # n:          1 -> 2 -> 2 -> 1 -> 0 -> 1 -> 1 -> 0
    # change:        up   -   down down up   -   down
    # oscillates:    no   no  yes  no   yes  no  yes
    zero = tf.zeros([1])
    motion = Motion(zero + 1.0, zero, zero, zero + 1.0)
    frequency, average = 0.0, 1.0
    for n, oscillates in [(2, 0), (2, 0), (1, 1), (0, 0), (1, 1), (1, 0), (0, 1)]:
        motion = motion.after(tf.constant([float(n)]), 0.25)
        frequency += 0.25 * (oscillates - frequency)
        average += 0.25 * (n - average)
        np.testing.assert_allclose(motion.frequency, [frequency], rtol=1e-6)
        np.testing.assert_allclose(motion.average, [average], rtol=1e-6)


@pytest.mark.parametrize("range_axes", [(), (3,)])
@pytest.mark.parametrize(("name", "bits"), ROWS)
def test_held_weights_keep_their_codes_wherever_the_maximum_moves(name, bits, range_axes):
    generator = np.random.default_rng(0)
    kernel = generator.normal(0, 0.5, (3, 3, 4, 6)).astype(np.float32)
    top = GRIDS[name].top(bits)
    units = generator.integers(0, top + 1, kernel.shape)
    held = generator.random(kernel.shape) < 0.5
    for factor in (1.0, 0.01, 4.0):
        moved = np.where(held, kernel, factor * kernel).astype(np.float32)
        latent = dorefa.held_weights(moved, units, held, bits, name, range_axes=range_axes)
        found = dorefa.weight_units(latent, bits, name, range_axes=range_axes).numpy()
        assert np.array_equal(found[held], units[held])
        free = np.where(held, 0.0, moved)
        alone = dorefa.weight_units(free, bits, name, range_axes=range_axes).numpy()
        # Free weights have the codes they would have without the others.
        assert np.array_equal(found[~held], alone[~held])
        assert np.array_equal(latent.numpy()[~held], moved[~held])


def test_a_range_in_which_all_weights_are_held_stays_as_it_is():
    kernel = tf.constant([0.5, -1.0])
    held = dorefa.held_weights(kernel, tf.constant([3, 0]), tf.constant([True, True]), 2)
    assert np.array_equal(held, kernel)


def _model(bits=2):
    return sat_tf.quantize_model(small_float_model(), BitPolicy.mobile(bits).of_one_kind())


@pytest.mark.essential
def test_a_weight_that_oscillates_is_frozen_at_its_average_code_and_stays_there():
    model = _model()
    oscillation = Oscillation(
        model, total_steps=100, momentum=0.3, first_threshold=0.5, last_threshold=0.5
    )
    kernel = model.get_layer("quant_pointwise").layer.kernel
    start = np.full(kernel.shape, 0.3, np.float32)
    start.flat[0] = 1.0  # the maximum
    codes = []
    for step in range(40):
        values = start * (1.0 + 0.01 * step)
        # tanh(0.3) / tanh(1) is at n = 2; this one goes between n = 1 (two times of three) and 2.
        values.flat[5] = 0.05 if step % 3 == 0 else -0.05
        kernel.assign(values)
        oscillation()
        codes.append(units_of(model, "pointwise").flat[5])
    count = {c.layer: c for c in oscillation.counts()}["pointwise"]
    assert (count.bits, count.weights) == (2, start.size)
    assert (count.frozen, count.oscillating) == (1, 0)
    assert set(codes[:6]) == {1.0, 2.0}
    assert set(codes[20:]) == {1.0}


def test_without_freezing_weights_are_counted_and_left_alone():
    model = _model()
    oscillation = Oscillation(model, total_steps=100, freeze=False, momentum=0.3)
    kernel = model.get_layer("quant_pointwise").layer.kernel
    for step in range(10):
        values = np.full(kernel.shape, 0.3, np.float32)
        values.flat[0], values.flat[5] = 1.0, 0.05 if step % 2 else -0.05
        kernel.assign(values)
        oscillation()
        assert np.array_equal(kernel, values)
    count = {c.layer: c for c in oscillation.counts()}["pointwise"]
    assert (count.frozen, count.oscillating) == (0, 1)


def test_layers_of_more_bits_are_left_alone():
    names = [count.layer for count in Oscillation(_model(), total_steps=10).counts()]
    assert names == ["depthwise", "pointwise"]
    every = Oscillation(_model(), total_steps=10, most_bits=8).counts()
    assert [count.layer for count in every] == ["stem", "depthwise", "pointwise", "classifier"]


def test_the_threshold_goes_down_on_half_a_cosine_from_the_start_on(monkeypatch):
    oscillation = Oscillation(
        _model(), total_steps=100, first_threshold=0.04, last_threshold=0.02, start=0.5
    )
    kind, thresholds = type(oscillation.kernels[0]), []
    follow = kind.follow

    def recorded(kernel, begun, momentum, threshold):
        thresholds.append(float(threshold))
        return follow(kernel, begun, momentum, threshold)

    monkeypatch.setattr(kind, "follow", recorded)
    for step, expected in [(1, 0.04), (50, 0.04), (75, 0.03), (100, 0.02)]:
        oscillation.steps.assign(step - 1)
        oscillation()
        assert thresholds[-1] == pytest.approx(expected)


@pytest.mark.thorough
@on_each_number_of_replicas
def test_in_training_frozen_weights_keep_their_codes(replicas):
    def recipe(model):
        return Oscillation(
            model, total_steps=24, momentum=0.3, first_threshold=0.2, last_threshold=0.2
        )

    start = _model()
    with replicas.scope():
        model = training_copy(start, synchronized=True)
    frozen, codes = {}, {}

    def look(recipe):
        # These were frozen before this step.
        for kernel, count in zip(recipe.kernels, recipe.counts(), strict=True):
            name = count.layer
            now = units_of(model, name)
            if name in frozen:
                assert np.array_equal(now[frozen[name]], codes[name][frozen[name]])
            frozen[name], codes[name] = kernel.frozen.numpy(), now
            assert np.array_equal(kernel.units.numpy(), now)

    fitted(model, recipe, replicas, steps=24, after=look, learning_rate=3.0)
    assert sum(mask.sum() for mask in frozen.values()) > 5
    assert all(np.isfinite(kernel).all() for kernel in latent_kernels(model))
