"""The share of weights that change their code in a step is what the schedule says."""

import json

import keras as keras3  # noqa: TID251 -- the callback is for both
import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.callbacks import TransitionRate
from sat_tf.qat import transition_rate
from sat_tf.qat.policy import BitPolicy
from tests import reference
from tests.training.recipes.trained import on_each_number_of_replicas
from tests.training.small import small_float_model, small_images

IMAGES = small_images(train=64)

pytestmark = pytest.mark.filterwarnings("ignore::sat_tf.qat.layout.GuessedClippingLevelsWarning")


def test_targets_grow_with_the_bits_and_fall_on_half_a_cosine():
    for done, cosine in [(0.0, 1.0), (1 / 3, 0.75), (0.5, 0.5), (1.0, 0.0), (1.5, 0.0)]:
        targets = transition_rate.target_rates(0.01, [1, 4], done)
        np.testing.assert_allclose(targets, [0.01 * cosine, 0.02 * cosine], atol=1e-18)


def test_a_factor_grows_below_its_target_and_falls_above_it_by_the_gain_at_most():
    # R:        0.02  0.02  0.02  0.02  0.02  0.02  0
    # K:        0.02  0.01  0.03  0.04  0.5   0     0
    # exponent: none  g/2   -g/2  -g    -g    g     the factor is 0
    targets = np.array([0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.0])
    running = np.array([0.02, 0.01, 0.03, 0.04, 0.5, 0.0, 0.0])
    factors = np.array([1.0, 2.0, 1.0, 1.0, 1.0, 10.0, 1.0])
    found = transition_rate.adapted_factors(factors, targets, running)
    expected = [1.0, 2 * np.exp(0.05), *np.exp([-0.05, -0.1, -0.1]), 10.0, 0.0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def _quantized(bits=2, quantizer="dorefa", first_last=None):
    options = {"first_last_weight_bits": first_last, "weight_quantizer": quantizer}
    policy = BitPolicy(weight_bits=bits, activation_bits=4, **options)
    return _compiled(sat_tf.quantize_model(small_float_model(), policy))


def _compiled(model, library=keras, **options):
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(library.optimizers.SGD(0.02, momentum=0.9), loss, **options)
    return model


def _walked(model, callback, steps, size=0.01, after=lambda: None):
    """Steps of an optimizer that moves weights at random; the kernels before, and all changes."""
    kernels = [layer.layer.weights[0] for layer in _layers(model)]
    draw, start = np.random.default_rng(0), [kernel.numpy() for kernel in kernels]
    changes = []
    callback.set_model(model)
    callback.on_train_begin()
    for batch in range(steps):
        callback.on_train_batch_begin(batch)
        changes.append([draw.normal(0, size, w.shape).astype(np.float32) for w in start])
        for kernel, change in zip(kernels, changes[-1], strict=True):
            kernel.assign_add(change)
        model.optimizer.iterations.assign_add(1)
        callback.on_train_batch_end(batch)
        after()
    return start, changes


def _layers(model):
    return [x for x in model.layers if getattr(x, "weight_quantizer", None) is not None]


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_weights_rates_and_factors_are_those_of_the_reference(bits):
    model, steps = _quantized(bits), 12
    callback = TransitionRate(steps, first_rate=0.05, most_bits=8)
    starts, changes = _walked(model, callback, steps)
    for place, layer in enumerate(_layers(model)):
        axes, grid = layer.weight_quantizer.range_axes, layer.weight_quantizer.row.name
        latent, rate, factor = reference.transitions(
            starts[place],
            [of_step[place] for of_step in changes],
            lambda w, axes=axes, grid=grid: reference.weight_units(w, bits, grid, axes),
            bits,
            first_rate=0.05,
        )
        np.testing.assert_allclose(layer.layer.weights[0], latent, atol=1e-5)
        assert callback.state["rates"][place] == pytest.approx(rate, abs=1e-6)
        assert callback.state["factors"][place] == pytest.approx(factor, rel=1e-5)
    assert callback.state["step"] == steps


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("quantizer", ["dorefa", "l1", "lsq"])
def test_a_target_of_zero_leaves_every_weight_and_code_as_it_is(quantizer, bits):
    if quantizer == "lsq" and bits == 1:
        pytest.skip("there is none")
    model = _quantized(bits, quantizer)
    before = model.get_weights()
    callback = TransitionRate(10, first_rate=0.0, most_bits=8)
    callback.state = {"step": 0, "rates": [0.1] * 4, "factors": [0.0] * 4}
    _walked(model, callback, 4, size=1.0)
    np.testing.assert_equal(before, model.get_weights())
    assert max(callback.state["rates"]) < 0.1
    assert callback.state["factors"] == [0.0] * 4


def test_kernels_of_more_bits_and_frozen_ones_move_as_the_optimizer_says():
    model = _quantized(2, first_last=8)
    model.get_layer("quant_pointwise").trainable = False
    callback = TransitionRate(4, first_rate=0.0)
    callback.state = {"step": 0, "rates": [0.0], "factors": [0.0]}
    layers = _layers(model)
    kernels = [layer.layer.weights[0] for layer in layers]
    start, changes = _walked(model, callback, 1)
    for layer, kernel, before, change in zip(layers, kernels, start, changes[0], strict=True):
        controlled = layer.name == "quant_depthwise"
        np.testing.assert_allclose(kernel, before + (0.0 if controlled else change), atol=1e-6)


@pytest.mark.parametrize("bits", [2, 4])
def test_the_rate_that_is_reached_follows_the_schedule(bits):
    model, steps = _quantized(bits), 300
    callback, reached = TransitionRate(steps, first_rate=0.03), []
    _walked(model, callback, steps, 0.003, lambda: reached.append(callback.state["rates"]))
    weights = [np.prod(layer.layer.weights[0].shape) for layer in _layers(model)]
    for begin in (100, 150, 200):
        done = (begin + 25) / steps
        target = transition_rate.target_rates(0.03, [bits], done)[0]
        found = np.average(np.mean(reached[begin : begin + 50], axis=0), weights=weights)
        # The running rate is that of some ten steps before.
        assert found == pytest.approx(target, rel=0.25)


# -- in `fit` --------------------------------------------------------------------------------------


def _fitted(model, callback, epochs=2, **options):
    data = {"x": IMAGES.train_images.astype(np.float32), "y": IMAGES.train_labels}
    settings = {"batch_size": 16, "verbose": 0, "shuffle": False}
    return model.fit(**data, **settings, epochs=epochs, callbacks=[callback], **options)


def _in_keras3():
    layers = keras3.layers
    inputs = keras3.Input((8, 8, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(6, 3)(inputs)))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(6, 3)(x)))
    outputs = layers.Dense(3)(layers.GlobalAveragePooling2D()(x))
    keras3.utils.set_random_seed(0)
    model = keras3.Model(inputs, outputs)
    policy = BitPolicy.mobile(2, input_range=(0, 255))
    return _compiled(sat_tf.quantize_model(model, policy), keras3)


@pytest.mark.thorough
@pytest.mark.parametrize("made", [_quantized, _in_keras3])
def test_a_training_in_either_keras_goes_on_with_the_state_of_the_callback_before(made):
    whole, parts, callback = made(), made(), TransitionRate(8, first_rate=0.05)
    parts.set_weights(whole.get_weights())
    _fitted(whole, callback)
    assert callback.state["step"] == 8
    assert all(factor != 1.0 for factor in callback.state["factors"])
    first, second = TransitionRate(8, first_rate=0.05), TransitionRate(8, first_rate=0.05)
    _fitted(parts, first, epochs=1)
    with pytest.raises(ValueError, match="received the state of step 0 with"):
        _fitted(parts, second, epochs=1)
    second.state = json.loads(json.dumps(first.state))
    _fitted(parts, second, epochs=1)
    assert second.state == callback.state
    for one, other in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.thorough
def test_several_batches_in_one_execution_are_refused():
    model = _compiled(_quantized(), steps_per_execution=2)
    with pytest.raises(ValueError, match="received 2 batches in one execution"):
        _fitted(model, TransitionRate(8))


def test_a_model_without_such_codes_is_refused():
    for model, options in ((small_float_model(), {}), (_quantized(8), {"most_bits": 7})):
        with pytest.raises(ValueError, match="no trainable kernel has codes of"):
            _fitted(_compiled(model), TransitionRate(8, **options))


@pytest.mark.parametrize(("steps", "first_rate"), [(0, 0.01), (10, -0.1), (10, 1.5)])
def test_arguments_out_of_range_are_refused(steps, first_rate):
    with pytest.raises(ValueError, match="expected 1 step or more, and a share from 0 to 1"):
        TransitionRate(steps, first_rate=first_rate)


@pytest.mark.thorough
@on_each_number_of_replicas
def test_replicas_have_the_same_weights_and_rates(replicas):
    start = _quantized()
    with replicas.scope():
        model = keras.models.clone_model(start)
        model.set_weights(start.get_weights())
        _compiled(model)
    callback = TransitionRate(8, first_rate=0.05)
    _fitted(model, callback)
    assert callback.state["step"] == 8
    for layer in _layers(model):
        copies = replicas.experimental_local_results(layer.layer.weights[0])
        assert len(copies) == replicas.num_replicas_in_sync
        assert all(np.array_equal(copies[0], other) for other in copies)
