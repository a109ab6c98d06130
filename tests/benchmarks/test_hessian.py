import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from benchmarks.hessian import hessian_costs, hutchinson, model_traces
from sat_tf.analysis.allocation.choices import ModelChoices
from sat_tf.analysis.labelled_images import LabelledImages
from sat_tf.qat.policy import BitPolicy
from tests.analysis.allocation.small_models import images_for, residual

L = keras.layers
IMAGES = np.random.default_rng(0).normal(size=(3, 2))
LABELS = np.array([0, 2, 1])


class AllSigns:
    """Stands for a generator: the signs of all directions, one after the other."""

    def __init__(self, *sizes):
        self._signs = itertools.cycle(itertools.product((-1.0, 1.0), repeat=sum(sizes)))
        self._left = []

    def choice(self, _, size):
        if not self._left:
            self._left = list(next(self._signs))
        count = int(np.prod(size))
        taken, self._left = self._left[:count], self._left[count:]
        return np.reshape(taken, size)


def two_layers():
    """softplus(x A) B, in float64, so that second differences of NumPy's are exact to 7 digits."""
    image = keras.Input((2,), dtype="float64", name="image")
    one = L.Dense(2, "softplus", use_bias=False, dtype="float64", name="one")(image)
    two = L.Dense(3, use_bias=False, dtype="float64", name="two")(one)
    return keras.Model(image, two)


def cross_entropies(kernels, labels, moved=0.0):
    """The loss of each image, in NumPy; what the second layer reads is moved."""
    hidden = np.log1p(np.exp(IMAGES @ kernels[0])) + moved
    logits = hidden @ kernels[1]
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(labels)), labels]


def trace_of(function, point):
    """The trace of a function's Hessian, by second differences."""
    h, total = 1e-4, 0.0
    for index in np.ndindex(point.shape):
        step = np.zeros_like(point)
        step[index] = h
        total += (function(point + step) - 2 * function(point) + function(point - step)) / h**2
    return total


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return two_layers()


@pytest.fixture(scope="module")
def exact(model):
    """The traces of both kernels, and of what the second layer reads."""
    first, second = (layer.kernel.numpy() for layer in model.layers[1:])
    hidden = np.zeros((len(IMAGES), 2))
    return (
        trace_of(lambda w: cross_entropies([w, second], LABELS).mean(), first),
        trace_of(lambda w: cross_entropies([first, w], LABELS).mean(), second),
        trace_of(lambda d: cross_entropies([first, second], LABELS, d).mean(), hidden),
    )


def test_the_mean_over_all_directions_is_the_trace_of_each_block():
    matrix = np.random.default_rng(0).normal(size=(5, 5))
    matrix += matrix.T
    points = [tf.Variable(np.array([1.0, 2.0])), tf.Variable(np.array([[3.0, 0.0, 1.0]]))]

    def loss():
        whole = tf.concat([points[0], points[1][0]], 0)
        return tf.tensordot(whole, tf.linalg.matvec(matrix, whole), 1) / 2

    draw = AllSigns(2, 3)
    mean = sum(hutchinson(loss, points, draw) for _ in range(2**5)) / 2**5
    expected = np.trace(matrix[:2, :2]), np.trace(matrix[2:, 2:])
    np.testing.assert_allclose(mean, expected, rtol=1e-12)


@pytest.fixture
def all_signs(monkeypatch):
    """Makes the directions of a number of values all that there are, again and again."""

    def use(*sizes):
        monkeypatch.setattr(np.random, "default_rng", lambda _: AllSigns(*sizes))
        return 2 ** sum(sizes)

    return use


def traces(model, labels, kernels, readers, **options):
    sample = LabelledImages(IMAGES, labels)
    settings = {"seed": 0, "images_at_once": 3, **options}
    return model_traces(model, sample, kernels, readers, **settings)


# Second differences in float64 lose half of 16 digits.
OF_DIFFERENCES = {"rel": 1e-6, "abs": 1e-7}


@pytest.mark.parametrize("images_at_once", [3, 2])
def test_kernels_have_the_traces_of_the_mean_loss(images_at_once, model, exact, all_signs):
    for index, (name, size) in enumerate((("one", 4), ("two", 6))):
        probes = all_signs(size)
        found = traces(model, LABELS, [name], [], probes=probes, images_at_once=images_at_once)
        assert found.kernels[name] == pytest.approx(exact[index], **OF_DIFFERENCES)


def test_activations_have_the_mean_trace_of_the_losses_of_images(model, exact, all_signs):
    found = traces(model, LABELS, [], ["two"], probes=all_signs(len(IMAGES) * 2))
    # Moving all images at once moves the mean loss by the mean of what each is moved by.
    assert found.inputs["two"] == pytest.approx(exact[2], **OF_DIFFERENCES)


def test_the_same_seed_gives_the_same_traces(model):
    both = ["one", "two"]
    found = traces(model, LABELS, both, ["two"], probes=2)
    assert found == traces(model, LABELS, both, ["two"], probes=2)
    assert found != traces(model, LABELS, both, ["two"], probes=2, seed=1)


def test_without_labels_the_trace_of_a_softmax_is_that_of_the_divergence(all_signs):
    # Of softmax regression: Σ p (1 - p) · |x|², the mean over images.
    image = keras.Input((2,), dtype="float64", name="image")
    one = keras.Model(image, L.Dense(3, use_bias=False, dtype="float64", name="one")(image))
    kernel = one.layers[1].kernel.numpy()
    shares = np.exp(IMAGES @ kernel)
    shares /= shares.sum(axis=1, keepdims=True)
    expected = np.mean((shares * (1 - shares)).sum(axis=1) * (IMAGES**2).sum(axis=1))
    probes = all_signs(6)
    softmax = keras.Model(image, L.Softmax(dtype="float64")(one.output))
    found = traces(softmax, None, ["one"], [], probes=probes)
    assert found.kernels["one"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("units", [1, 2])
def test_an_output_that_nothing_calls_classes_has_the_squared_distance(units, all_signs):
    image = keras.Input((2,), dtype="float64", name="image")
    one = keras.Model(image, L.Dense(units, use_bias=False, dtype="float64", name="one")(image))
    found = traces(one, None, ["one"], [], probes=all_signs(2 * units))
    # The Hessian of the mean of (x w)² / 2 is that of x xᵀ.
    expected = units * np.mean((IMAGES**2).sum(axis=1))
    assert found.kernels["one"] == pytest.approx(expected, rel=1e-12)


def test_a_tensor_with_several_readers_is_shared_out_among_them():
    image = keras.Input((2,), name="image")
    hidden = L.Dense(2, name="one")(image)
    both = L.Add()([L.Dense(3, name="two")(hidden), L.Dense(3, name="three")(hidden)])
    found = model_traces(
        keras.Model(image, both),
        LabelledImages(IMAGES, LABELS),
        [],
        ["two", "three"],
        probes=2,
        seed=0,
        images_at_once=3,
    )
    assert found.inputs["two"] == found.inputs["three"] != 0.0


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (lambda x: tf.reduce_sum(tf.math.log(x)), "loss"),
        (lambda x: tf.reduce_sum(tf.sqrt(x + 1.0)), "gradients"),
        (lambda x: tf.reduce_sum(tf.abs(x + 1.0) ** 1.5), "second derivatives"),
    ],
)
def test_what_is_not_finite_is_refused(loss, what):
    point = tf.Variable([-1.0])
    with pytest.raises(ValueError, match=f"NaN or infinite {what}, expected finite ones"):
        hutchinson(lambda: loss(point), [point], np.random.default_rng(0))


def test_a_point_that_the_loss_does_not_read_has_no_curvature():
    read, unread = tf.Variable([2.0]), tf.Variable([1.0, 1.0])
    found = hutchinson(lambda: tf.reduce_sum(read**2), [read, unread], np.random.default_rng(0))
    assert found.tolist() == [2.0, 0.0]


def table_of(model, dataset, **settings):
    """The costs of 2, 4 and 8 bits."""
    choices = ModelChoices(model, BitPolicy(), (2, 4, 8), (2, 4, 8))
    fewest = choices.policy_at(2, 2)
    return hessian_costs(model, dataset, choices, fewest, num_images=64, **settings)


@pytest.mark.thorough
def test_costs_fall_with_bits_follow_the_seed_and_are_a_table_of_allocate():
    model = residual()
    table = table_of(model, images_for(model))
    assert table == table_of(model, images_for(model))
    for costs in table.values():
        bits = sorted(costs)
        assert costs[bits[0]] >= costs[bits[-1]] >= 0.0
    assert table["two"][2, 2] > 100 * table["two"][8, 8] > 0.0
    bits = {"weight_bits": (2, 4, 8), "activation_bits": (2, 4, 8)}
    found = sat_tf.allocate(model, cost=table, budget={"average_bits": "60%"}, **bits)
    assert found.proof.gap == 0.0


@pytest.mark.thorough
def test_a_model_at_no_minimum_is_warned_of():
    model = residual()
    with pytest.warns(UserWarning, match="the trace of .* is negative"):
        table_of(model, (images_for(model), np.arange(64) % 4))


def test_a_loss_without_any_curvature_is_refused():
    model = residual()
    model.set_weights([100 * weight for weight in model.get_weights()])
    certain = keras.Model(model.input, L.Softmax()(model.output))
    with pytest.raises(ValueError, match="the trace 0 for every layer"):
        table_of(certain, images_for(model))
