"""Other ways to choose bits, with which those of `allocate` are compared: HAWQ-V3's and HAQ's."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from benchmarks.haq_searches import greedy_search, random_search, within_budget
from benchmarks.hessian import hessian_costs, model_traces
from sat_tf.analysis.allocation.budget import Knapsack, solve
from sat_tf.analysis.allocation.choices import ModelChoices
from sat_tf.analysis.labelled_images import LabelledImages
from sat_tf.qat.policy import BitPolicy
from tests.analysis.allocation.small_models import images_for, residual

# -- the rule and the searches of HAQ --------------------------------------------------------------

BITS = (2, 4, 8)


def layers(limit, *, tie=(0, 1, 2), sizes=(10, 20, 40)):
    """Three layers of (weight bits, activation bits), which use size · weights · activations."""
    pairs = list(itertools.product(BITS, BITS))
    draw = np.random.default_rng(0)
    weight = draw.random((3, 2))
    cost = [
        weight[item, 0] * 4.0**-w + weight[item, 1] * 4.0**-a for item in range(3) for w, a in pairs
    ]
    problem = Knapsack(
        item=np.repeat(np.arange(3), len(pairs)),
        cost=np.array(cost),
        usage={"product": np.array([size * w * a for size in sizes for w, a in pairs])},
        limits={"product": float(limit)},
        level=np.array([a for _ in sizes for _, a in pairs]),
        tie=np.array(tie),
    )
    return problem, np.array(pairs * 3)


def test_the_budget_is_met_from_the_last_layer_backwards():
    # 64 · 70 = 4480. The last layer: activations to 4, 3200; its weights to 4, 2560;
    # the second one: activations to 4, 1920.
    for limit, expected in (
        (4480, [(8, 8), (8, 8), (8, 8)]),
        (3200, [(8, 8), (8, 8), (8, 4)]),
        (2560, [(8, 8), (8, 8), (4, 4)]),
        (2000, [(8, 8), (8, 4), (4, 4)]),
        (280, [(2, 2), (2, 2), (2, 2)]),
        (279, None),
    ):
        problem, bits = layers(limit)
        most = np.flatnonzero((bits == 8).all(axis=1))
        found = within_budget(problem, bits, most)
        assert found is None or problem.within(found)
        assert expected == (None if found is None else [tuple(bits[option]) for option in found])


@pytest.mark.parametrize("tie", [(0, 1, 2), (0, 1, 0)])
@pytest.mark.parametrize("limit", [300, 1000, 2500])
def test_searches_keep_the_budget_and_are_never_better_than_the_optimum(limit, tie):
    problem, bits = layers(limit, tie=tie)
    best = solve(problem)

    def cost(chosen):
        return math.fsum(problem.cost[chosen])

    for found in (
        random_search(problem, bits, cost, evaluations=40, seed=0),
        greedy_search(problem, bits, cost, evaluations=40),
    ):
        assert problem.within(found.chosen)
        levels = problem.level[found.chosen]
        assert tie[0] != tie[2] or levels[0] == levels[2]
        assert found.cost == cost(found.chosen) >= best.cost - 1e-12
        assert len(found.history) <= 40
        assert list(found.history) == sorted(found.history, reverse=True)
        assert found.history[-1] == found.cost


# -- traces of Hessians ----------------------------------------------------------------------------

L = keras.layers
IMAGES = np.random.default_rng(0).normal(size=(3, 2))
LABELS = np.array([0, 2, 1])


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
    """softplus(x A) B, in float64, so that second differences of NumPy's are exact to 7 digits."""
    keras.utils.set_random_seed(3)
    image = keras.Input((2,), dtype="float64", name="image")
    one = L.Dense(2, "softplus", use_bias=False, dtype="float64", name="one")(image)
    two = L.Dense(3, use_bias=False, dtype="float64", name="two")(one)
    return keras.Model(image, two)


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


@pytest.fixture
def all_signs(monkeypatch):
    """Makes the directions of so many values all that there are, one after the other."""

    def use(count):
        directions = itertools.product((-1.0, 1.0), repeat=count)
        signs = itertools.cycle(itertools.chain.from_iterable(directions))
        generator = mock.Mock()
        generator.choice = lambda _, size: np.fromiter(signs, float, np.prod(size)).reshape(size)
        monkeypatch.setattr(np.random, "default_rng", lambda _: generator)
        return 2**count

    return use


def traces(model, labels, kernels, readers, **options):
    sample = LabelledImages(IMAGES, labels)
    settings = {"seed": 0, "images_at_once": 3, **options}
    return model_traces(model, sample, kernels, readers, **settings)


# Second differences in float64 lose half of 16 digits.
OF_DIFFERENCES = {"rel": 1e-6, "abs": 1e-7}


@pytest.mark.parametrize("images_at_once", [3, 2])
def test_kernels_have_the_traces_of_the_mean_loss_and_activations_that_of_images(
    images_at_once, model, exact, all_signs
):
    for index, (name, size) in enumerate((("one", 4), ("two", 6))):
        probes = all_signs(size)
        found = traces(model, LABELS, [name], [], probes=probes, images_at_once=images_at_once)
        assert found.kernels[name] == pytest.approx(exact[index], **OF_DIFFERENCES)
    found = traces(model, LABELS, [], ["two"], probes=all_signs(len(IMAGES) * 2))
    # Moving all images at once moves the mean loss by the mean of what each is moved by.
    assert found.inputs["two"] == pytest.approx(exact[2], **OF_DIFFERENCES)


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


@pytest.mark.thorough
def test_costs_fall_with_bits_follow_the_seed_and_are_a_table_of_allocate():
    model = residual()
    choices = ModelChoices(model, BitPolicy(), BITS, BITS)
    table, again = (
        hessian_costs(model, images_for(model), choices, choices.policy_at(2, 2), num_images=64)
        for _ in range(2)
    )
    assert table == again
    for costs in table.values():
        bits = sorted(costs)
        assert costs[bits[0]] >= costs[bits[-1]] >= 0.0
    assert table["two"][2, 2] > 100 * table["two"][8, 8] > 0.0
    bits = {"weight_bits": BITS, "activation_bits": BITS}
    found = sat_tf.allocate(model, cost=table, budget={"average_bits": "60%"}, **bits)
    assert found.proof.gap == 0.0
