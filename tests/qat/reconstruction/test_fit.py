import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.qat.reconstruction import blocks, fit
from sat_tf.qat.wrapper import weight_quantizer
from tests import reference

L = keras.layers


def test_adam_is_that_of_the_paper_with_a_unit_for_each_variable():
    draw = np.random.default_rng(0)
    start, gradients = draw.normal(size=3), draw.normal(size=(5, 3))
    variables = [tf.Variable(start, dtype=tf.float32), tf.Variable(start, dtype=tf.float32)]
    adam = fit._Adam([fit._Trained(variables[0], 1.0), fit._Trained(variables[1], 0.25)])
    for gradient in gradients:
        adam.apply([tf.constant(gradient, tf.float32)] * 2, tf.constant(0.1))
    for variable, unit in zip(variables, (1.0, 0.25), strict=True):
        expected = reference.adam(start, gradients, rate=0.1 * unit)
        # Float32, and values that end near 0: a few last places of the largest, which is near 1.
        np.testing.assert_allclose(variable.numpy(), expected, rtol=0, atol=3e-6)


def test_adam_keeps_constraints_and_leaves_what_has_no_gradient():
    kept = tf.Variable(0.5, constraint=lambda value: tf.maximum(value, 0.4))
    still = tf.Variable(2.0)
    adam = fit._Adam([fit._Trained(kept, 1.0), fit._Trained(still, 1.0)])
    adam.apply([tf.constant(1.0), None], tf.constant(0.3))
    assert kept.numpy() == np.float32(0.4)
    assert still.numpy() == 2.0


@pytest.mark.parametrize("size", [1.0, 0.01])
def test_what_quantizers_learn_moves_in_proportion_whatever_its_size_is(size):
    draw = np.random.default_rng(0)
    model = keras.Sequential([L.Input((4, 4, 8)), L.Conv2D(6, 3, activation="relu"), L.Dense(3)])
    shapes = [weights.shape for weights in model.get_weights()]
    model.set_weights([size * draw.normal(size=shape) for shape in shapes])
    policy = sat_tf.BitPolicy.mobile(
        4, weight_quantizer="lsq", activation_quantizer="lsq", first_last_weight_bits=None
    )
    layers = sat_tf.quantize_model(model, policy).layers
    layer = next(one for one in layers if weight_quantizer(one) is not None)
    units = {id(one.variable): one.unit for one in fit.trained(layer)}
    kernel, bias = layer.layer.kernel, layer.layer.bias
    magnitude = layer.kernel_variables["magnitude"]
    level = layer.output_variables["clipping_level"]
    assert {*units} == {*map(id, (kernel, bias, magnitude, level))}
    # Each channel has a magnitude of its own; 4 bits are 16 codes.
    np.testing.assert_array_equal(units[id(magnitude)], magnitude.numpy())
    assert units[id(level)] == pytest.approx(2.0 * level.numpy() / 15)
    assert units[id(kernel)] == pytest.approx(6.0 * 2.0 * np.max(np.abs(kernel)) / 15**2)
    assert units[id(bias)] == 1.0


def _part(wanted, logits):
    """A part that puts out what it is given, and should put out something else."""
    image = keras.Input(wanted.shape[1:], name="image")
    layer = L.Activation("linear", name="same")
    network = Network(keras.Model(image, layer(image)))
    span = blocks.Front(network, [logits.astype(np.float32)]).up_to(["same"])
    aim = fit.Aim.of_output(wanted.astype(np.float32), network, "same")
    return fit.Part(span, {"same": aim})


def test_errors_by_hand():
    wanted, made = np.array([[0.0, 2.0], [2.0, 0.0]]), np.array([[0.0, 2.0], [1.0, 1.0]])
    squared, divergence = _part(wanted, made).errors(np.arange(2))
    assert squared == pytest.approx((1.0 + 1.0) / (4.0 + 4.0))
    # At a temperature of 4, logits of 2 and 0 are 0.5 and 0.
    shares = np.exp(0.5) / (np.exp(0.5) + 1.0), 1.0 / (np.exp(0.5) + 1.0)
    by_hand = 16.0 * sum(share * np.log(share / 0.5) for share in shares) / 2  # of two images
    assert divergence == pytest.approx(by_hand, rel=1e-5)


def test_probabilities_have_the_divergence_of_the_logits_behind_them():
    wanted, made = np.array([[0.0, 2.0], [2.0, 0.0]]), np.array([[0.0, 2.0], [1.0, 1.0]])
    divergences = []
    for row, change in (("logits", tf.identity), ("probabilities", tf.nn.softmax)):
        student, teacher = (fit.logits_of(change(tf.constant(x)), row) for x in (made, wanted))
        divergences.append(fit.soft_divergence(teacher, student, fit.TEMPERATURE).numpy())
    # Logarithms of float32 probabilities are exact to some 1e-7.
    np.testing.assert_allclose(divergences[1], divergences[0], atol=1e-5)


def test_errors_and_agreement_are_those_of_the_reference():
    draw = np.random.default_rng(1)
    wanted, made = draw.normal(size=(2, 150, 4))
    part = _part(wanted, made)
    expected = reference.output_errors(made, wanted)
    np.testing.assert_allclose(part.errors(np.arange(150)), expected, rtol=1e-5)
    agreement = np.mean(np.argmax(made, axis=1) == np.argmax(wanted, axis=1))
    assert part.agreement(np.arange(150)) == pytest.approx(agreement)


@pytest.mark.parametrize(
    ("layers", "rows"),
    [
        ([L.Softmax()], "probabilities"),
        ([L.Dense(3, activation="softmax")], "probabilities"),
        ([L.Dense(3)], "logits"),
        ([L.Dense(1)], ""),
        ([L.Dense(3, activation="sigmoid")], ""),
        ([L.Softmax(), L.Dropout(0.5), L.Reshape((1, 3))], "probabilities"),
        ([L.Dense(6), L.Reshape((2, 3)), L.Softmax(), L.Flatten()], ""),
        ([L.Dense(3, activation="sigmoid"), L.Activation("linear")], ""),
        ([L.Dense(6), L.Reshape((2, 3))], "logits"),
    ],
)
def test_rows_of_classes_are_known_by_the_layer_that_makes_them(layers, rows):
    model = keras.Sequential([keras.Input((3,), name="image"), *layers])
    network, wanted = Network(model), np.ones((2, *model.output_shape[1:]))
    assert fit.Aim.of_output(wanted, network, network.output).rows == rows


def test_nothing_wanted_but_zeros_has_a_finite_error():
    squared, divergence = _part(np.zeros((2, 2)), np.ones((2, 2))).errors(np.arange(2))
    assert squared == pytest.approx(1.0)
    assert divergence == pytest.approx(0.0, abs=1e-6)
