import csv
import dataclasses
import functools
import itertools
import os
import signal
from unittest import mock

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import sat_tf
from sat_tf.core import dorefa
from sat_tf.core.grid import GRIDS
from sat_tf.output_folder import FLOAT_MODEL
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.reconstruction.fit import soft_divergence
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.training import recipes
from sat_tf.training.learner import Learner, cross_entropy, training_copy
from sat_tf.training.loop.stage import (
    StopWhenNotFinite,
    held_out_metrics,
    kept_current,
    train_stage,
)
from sat_tf.training.run_folder import OSCILLATIONS, EpochMetrics
from tests.training.loop import test_stage
from tests.training.recipes.trained import fitted, on_each_number_of_replicas, units_of
from tests.training.small import small_float_model, small_images, small_quantized_model

CONFIG = """
name: small
data: {name: digits, shift_pixels: 1}
model: {name: mobilenet_v1}
training: {keep: last}
stages:
  float: {epochs: 8, batch_size: 32, base_learning_rate: 1.6, warmup_epochs: 0}
"""
RECIPES = {
    "distillation": "{temperature: 2.0}",
    "progressive_bits": "{bits: [8, 6], shares: [0.2, 0.2]}",
    "oscillation": "{start: 0.5, momentum: 0.5, last_threshold: 0.02}",
    "weight_average": "{decay: 0.5}",
    "label_smoothing": "{amount: 0.2}",
}
ALL = [f"recipes.{name}={value}" for name, value in RECIPES.items()]


def make_run(folder, *overrides, strategy=None):
    folder.mkdir(exist_ok=True)
    small_float_model().save(folder / FLOAT_MODEL)
    return test_stage.make_run(folder, *overrides, strategy=strategy, text=CONFIG)


def trained(run):
    """The model of the stage, which is measured after its last epoch as it is handed back."""
    model = train_stage(run, "quantized", small_quantized_model())[1]
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    measured = held_out_metrics(model, run.source, run.input_range)
    assert measured["top1"] == run.rows[-1].held_out_top1
    return model


def stop_behind(monkeypatch, step):
    """Sends SIGINT to this process behind so many steps of any stage."""
    check = StopWhenNotFinite.on_train_batch_end

    def on_train_batch_end(callback, batch, logs=None):
        check(callback, batch, logs)
        if int(callback.model.optimizer.iterations.numpy()) == step:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(StopWhenNotFinite, "on_train_batch_end", on_train_batch_end)


@pytest.fixture(scope="module")
def without_recipes(tmp_path_factory):
    return trained(make_run(tmp_path_factory.mktemp("without"))).get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_changes_what_a_stage_learns(name, tmp_path, without_recipes):
    model = trained(make_run(tmp_path, f"recipes.{name}={RECIPES[name]}"))
    assert not all(map(np.array_equal, without_recipes, model.get_weights()))


@pytest.mark.slow
def test_a_recipe_stays_out_of_other_stages(tmp_path, without_recipes):
    run = make_run(tmp_path, "recipes.distillation.teacher=missing.keras", *ALL[1:4])
    config = run.config.recipes
    assert config.distillation.stages == config.weight_average.stages == ["quantized"]
    _, model = train_stage(run, "float", small_quantized_model())
    np.testing.assert_equal(without_recipes, model.get_weights())


@pytest.mark.thorough
def test_a_stage_with_every_recipe_lists_oscillations_and_goes_on_bit_for_bit(
    tmp_path, monkeypatch
):
    whole = make_run(tmp_path / "whole", *ALL)
    weights = trained(whole).get_weights()
    rows = list(csv.DictReader((whole.folder.path / OSCILLATIONS).open()))
    listed = itertools.product("12345678", ("depthwise", "pointwise"), "4")
    assert [(row["epoch"], row["layer"], row["bits"]) for row in rows] == list(listed)
    assert all(int(row["oscillating"]) + int(row["frozen"]) <= int(row["weights"]) for row in rows)
    with monkeypatch.context() as patch:
        stop_behind(patch, 11)  # in the fourth epoch
        stopped = make_run(tmp_path / "parts", *ALL)
        with pytest.raises(KeyboardInterrupt, match="epoch 3 of the quantized stage is saved"):
            trained(stopped)
    run = make_run(tmp_path / "parts", *ALL)
    run.rows[:] = EpochMetrics.read(run.folder)
    again = trained(run).get_weights()
    np.testing.assert_equal(weights, again)
    rows = (
        [dataclasses.replace(row, seconds=None) for row in of_run]
        for of_run in (EpochMetrics.read(run.folder), whole.rows)
    )
    np.testing.assert_equal(*rows)


@pytest.mark.thorough
@pytest.mark.parametrize("replicas", [1, 2], indirect=True)
def test_a_stage_with_a_transition_rate_goes_on_bit_for_bit(tmp_path, monkeypatch, replicas):
    setting = "recipes.transition_rate={first_rate: 0.05}"
    weights = trained(make_run(tmp_path / "whole", setting, strategy=replicas)).get_weights()
    with monkeypatch.context() as patch:
        stop_behind(patch, 11)  # in the fourth epoch
        with pytest.raises(KeyboardInterrupt, match="epoch 3 of the quantized stage is saved"):
            trained(make_run(tmp_path / "parts", setting, strategy=replicas))
    run = make_run(tmp_path / "parts", setting, strategy=replicas)
    run.rows[:] = EpochMetrics.read(run.folder)
    np.testing.assert_equal(weights, trained(run).get_weights())


@pytest.mark.thorough
def test_a_stage_that_is_stopped_in_its_first_epoch_begins_again(tmp_path, monkeypatch):
    stop_behind(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt, match="no epoch of the quantized stage was finished"):
        trained(make_run(tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("replicas", [2], indirect=True)
def test_every_recipe_works_on_two_replicas(tmp_path, replicas):
    trained(make_run(tmp_path, *ALL, "training.keep=last", strategy=replicas))


# -- the teacher, and smoothed labels --------------------------------------------------------------

TEACHER, STUDENT = (
    np.random.RandomState(seed).normal(0, 3, (5, 4)).astype(np.float32) for seed in (0, 1)
)
LABELS = np.array([0, 3, 1, 2, 2], np.int32)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_divergence_and_its_gradient_are_those_of_the_formula(temperature):
    logits = (each.astype(np.float64) / temperature for each in (TEACHER, STUDENT))
    p, q = (scipy.special.softmax(each, axis=1) for each in logits)
    teacher, student = tf.constant(TEACHER), tf.constant(STUDENT)
    with tf.GradientTape() as tape:
        tape.watch([teacher, student])
        divergence = soft_divergence(teacher, student, temperature)
    expected = temperature**2 * (p * (np.log(p) - np.log(q))).sum(axis=1)
    np.testing.assert_allclose(divergence, expected, rtol=1e-4)
    of_teacher, of_student = tape.gradient(divergence, [teacher, student])
    assert of_teacher is None
    np.testing.assert_allclose(of_student, temperature * (q - p), atol=1e-5)
    np.testing.assert_allclose(soft_divergence(teacher, teacher, temperature), 0.0, atol=1e-6)


def test_the_weight_divides_the_loss_between_labels_and_teacher():
    teacher = small_float_model()
    images = tf.random.uniform((4, 8, 8, 3), 0, 255, seed=0)
    labels, logits = tf.constant([0, 1, 2, 0]), tf.random.normal((4, 3), seed=0)
    hard = cross_entropy(images, labels, logits)
    soft = soft_divergence(teacher(images, training=False), logits, 2.0)
    for weight in (0.0, 0.3, 1.0):
        loss = recipes.distilled(cross_entropy, teacher, temperature=2.0, weight=weight)
        expected = (1 - weight) * hard + weight * soft
        np.testing.assert_allclose(loss(images, labels, logits), expected, rtol=1e-5)


def test_the_teacher_reads_images_as_they_come_from_the_data():
    teacher = small_float_model()
    pixels = np.random.RandomState(0).randint(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    loss = recipes.distilled(cross_entropy, teacher, temperature=1.0, weight=1.0)
    target = teacher(tf.constant(pixels, tf.float32), training=False)
    same = loss(tf.constant(pixels), tf.constant([0] * 4), target)
    np.testing.assert_allclose(same, 0.0, atol=1e-6)


@pytest.mark.thorough
@on_each_number_of_replicas
def test_the_teacher_stays_as_it_is_and_out_of_checkpoints(replicas):
    of_teacher, start = small_float_model(), small_quantized_model()
    with replicas.scope():
        teacher = training_copy(of_teacher)
        model = training_copy(start, synchronized=True)
        loss = recipes.distilled(cross_entropy, teacher, temperature=2.0, weight=0.5)
    before = teacher.get_weights()
    learner, losses = fitted(model, None, replicas, steps=2, loss=loss)
    assert np.isfinite(losses).all()
    np.testing.assert_equal(before, teacher.get_weights())
    tracked = {id(variable) for variable in learner.variables}
    assert not tracked & {id(variable) for variable in teacher.variables}


def test_the_target_leaves_every_class_its_share():
    log_p = scipy.special.log_softmax(STUDENT.astype(np.float64), axis=1)
    target = 0.8 * np.eye(4)[LABELS] + 0.2 / 4
    found = recipes.smoothed_cross_entropy(0.2)(None, tf.constant(LABELS), tf.constant(STUDENT))
    np.testing.assert_allclose(found, -(target * log_p).sum(axis=1), rtol=1e-6)
    unlabelled = recipes.smoothed_cross_entropy(0.1)(
        None, tf.constant([-1] * 5), tf.constant(STUDENT)
    )
    assert np.isfinite(unlabelled).all()


# -- the average of weights ------------------------------------------------------------------------

DECAY = 0.5
_average = functools.partial(recipes.WeightAverage, decay=DECAY)


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

    learner, _ = fitted(model, _average, replicas, steps=8, after=follow)
    average = learner.after_step[0]
    assert len(average.averages) == len(expected)  # clipping levels and statistics too
    weights, averages = model.get_weights(), [value.numpy() for value in average.averages]
    for found, wanted in zip(averages, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    average.swap()
    np.testing.assert_equal(model.get_weights(), averages)
    average.swap()
    np.testing.assert_equal(model.get_weights(), weights)
    average.keep()
    np.testing.assert_equal(model.get_weights(), averages)


@pytest.mark.thorough
def test_held_out_images_are_measured_with_the_average_also_where_weights_are_copied():
    model = training_copy(small_quantized_model())
    learner, _ = fitted(model, _average, tf.distribute.get_strategy(), steps=3)
    average, images = learner.after_step[0], small_images()
    pairs = tf.data.Dataset.from_tensor_slices((images.test_images, images.test_labels)).batch(11)
    found = [learner.evaluate(pairs, verbose=0, callbacks=[average.measured()])]
    learner.test_function = None
    callbacks = [average.measured(), *kept_current(model)]
    found.append(learner.evaluate(pairs, verbose=0, callbacks=callbacks))
    weights = model.get_weights()
    average.keep()
    averaged = Learner(model, batch_size=11)
    averaged.compile()
    assert found == [averaged.evaluate(pairs, verbose=0)] * 2
    assert not all(map(np.array_equal, weights, model.get_weights()))


@pytest.mark.thorough
def test_it_is_part_of_checkpoints_once(tmp_path):
    def made(steps):
        model = training_copy(small_quantized_model())
        return fitted(model, _average, tf.distribute.get_strategy(), steps=steps)[0]

    learner, again = made(4), made(0)
    path = tf.train.Checkpoint(learner=learner).save(str(tmp_path / "step"))
    tf.train.Checkpoint(learner=again).restore(path).assert_existing_objects_matched()
    assert int(again.after_step[0].steps) == 4
    averages = (each.after_step[0].averages for each in (learner, again))
    assert all(np.array_equal(*pair) for pair in zip(*averages, strict=True))
    saved = [name for name, _ in tf.train.list_variables(path) if "OPTIMIZER_SLOT" not in name]
    assert len([name for name in saved if "after_step" in name]) == len(learner.student.weights) + 1


# -- bits that go down -----------------------------------------------------------------------------

LAYERS = ("stem", "depthwise", "pointwise", "classifier")
_progressive = functools.partial(
    recipes.ProgressiveBits, bits=[8, 6, 4], shares=[0.2, 0.2, 0.4], total_steps=10
)


def _model(bits=2):
    model = sat_tf.quantize_model(small_float_model(), BitPolicy.mobile(bits))
    return sat_tf.calibrate(model, small_images().train_images)


_IMAGES = tf.constant(small_images().test_images, tf.float32)


def test_each_floor_lasts_for_its_share_of_the_steps():
    recipe, floors = _progressive(training_copy(_model())), []
    for _ in range(12):
        floors.append(int(recipe.floor))
        recipe()
    assert floors == [8] * 2 + [6] * 2 + [4] * 4 + [0] * 4


# At 8 bits that model has fewer quantizers: streams of 8 bits are as fine as its activations.
@pytest.mark.thorough
@pytest.mark.parametrize("floor", [8, 7, 4, 0])
def test_a_model_with_a_floor_is_the_model_of_so_many_bits_whose_copies_have_no_floor(floor):
    model = training_copy(_model())
    recipe = _progressive(model)
    assert int(recipe.floor) == 8
    recipe.floor.assign(floor)
    other = sat_tf.requantize(_model(), BitPolicy.mobile(floor or 2))
    for name in LAYERS:
        one, twin = (of.get_layer(f"quant_{name}").effective_kernel() for of in (model, other))
        assert np.array_equal(one, twin)
    # The same levels as with fixed bits, and the same sums.
    assert floor == 8 or np.array_equal(model(_IMAGES), other(_IMAGES))
    assert np.array_equal(training_copy(model)(_IMAGES), _model()(_IMAGES))


@pytest.mark.thorough
@on_each_number_of_replicas
def test_it_ends_with_the_codes_of_the_policy(replicas):
    start = _model()
    with replicas.scope():
        model = training_copy(start, synchronized=True)
    floors = []

    def look(recipe):
        floors.append(int(recipe.floor.numpy()))

    learner, losses = fitted(model, _progressive, replicas, steps=10, after=look)
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


# -- weights that oscillate ------------------------------------------------------------------------


def test_oscillations_are_changes_against_the_last_direction():
    # n:          1 -> 2 -> 2 -> 1 -> 0 -> 1 -> 1 -> 0
    # change:        up   -   down down up   -   down
    # oscillates:    no   no  yes  no   yes  no  yes
    zero = tf.zeros([1])
    motion = recipes.Motion(zero + 1.0, zero, zero, zero + 1.0)
    frequency, average = 0.0, 1.0
    for n, oscillates in [(2, 0), (2, 0), (1, 1), (0, 0), (1, 1), (1, 0), (0, 1)]:
        motion = motion.after(tf.constant([float(n)]), 0.25)
        frequency += 0.25 * (oscillates - frequency)
        average += 0.25 * (n - average)
        np.testing.assert_allclose(motion.frequency, [frequency], rtol=1e-6)
        np.testing.assert_allclose(motion.average, [average], rtol=1e-6)


@pytest.mark.parametrize("range_axes", [(), (3,)])
@pytest.mark.parametrize(
    ("name", "bits"),
    [("dorefa", 1), ("dorefa", 2), ("dorefa", 4), ("narrow", 3), ("rounded", 2), ("modified", 3)],
)
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


def _of_one_kind():
    return sat_tf.quantize_model(small_float_model(), BitPolicy.mobile(2).of_one_kind())


@pytest.mark.essential
def test_a_weight_that_oscillates_is_frozen_at_its_average_code_and_stays_there():
    model = _of_one_kind()
    settings = {"momentum": 0.3, "first_threshold": 0.5, "last_threshold": 0.5}
    oscillation = recipes.Oscillation(model, total_steps=100, **settings)
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
    model = _of_one_kind()
    oscillation = recipes.Oscillation(model, total_steps=100, freeze=False, momentum=0.3)
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
    names = [count.layer for count in recipes.Oscillation(_of_one_kind(), total_steps=10).counts()]
    assert names == ["depthwise", "pointwise"]
    every = recipes.Oscillation(_of_one_kind(), total_steps=10, most_bits=8).counts()
    assert [count.layer for count in every] == ["stem", "depthwise", "pointwise", "classifier"]


def test_the_threshold_goes_down_on_half_a_cosine_from_the_start_on(monkeypatch):
    oscillation = recipes.Oscillation(
        _of_one_kind(), total_steps=100, first_threshold=0.04, last_threshold=0.02, start=0.5
    )
    kernels, (kernel, *_) = type(oscillation.kernels[0]), oscillation.kernels
    follow = mock.Mock(return_value=kernel.variable)
    monkeypatch.setattr(kernels, "follow", follow)
    oscillation.kernels = [kernel]
    for step, expected in [(1, 0.04), (50, 0.04), (75, 0.03), (100, 0.02)]:
        oscillation.steps.assign(step - 1)
        oscillation()
        assert float(follow.call_args.args[-1]) == pytest.approx(expected)


@pytest.mark.thorough
@on_each_number_of_replicas
def test_in_training_frozen_weights_keep_their_codes(replicas):
    settings = {"momentum": 0.3, "first_threshold": 0.2, "last_threshold": 0.2}
    recipe, start = (
        functools.partial(recipes.Oscillation, total_steps=24, **settings),
        _of_one_kind(),
    )
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
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
