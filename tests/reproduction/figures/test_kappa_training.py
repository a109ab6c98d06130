import numpy as np
import pytest
import tf_keras as keras

from sat_tf.analysis.audit.kappa_1 import gradient_flow
from sat_tf.analysis.kappa import kappa_0
from sat_tf.data.images import ImageSet
from sat_tf.models.resnet import resnet18
from sat_tf.reproduction.figures import kappa_training
from tests.reproduction.figures.small import nothing, training_table

layers = keras.layers
EPSILON = 1e-3


def differentiated(images, labels, first, second, normalized):
    """∂L/∂W of two dense layers with a rectifier between, in float64, by the chain rule."""
    x = images.reshape(len(images), -1).astype(np.float64)
    z = x @ first
    deviation = np.sqrt(z.var(axis=0) + EPSILON) if normalized else 1.0
    y = (z - z.mean(axis=0)) / deviation if normalized else z
    rectified = np.maximum(y, 0.0)
    logits = rectified @ second
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    d_logits = (shares - np.eye(second.shape[1])[labels]) / len(images)
    d_y = (d_logits @ second.T) * (y > 0)
    d_z = d_y
    if normalized:
        d_z = (d_y - d_y.mean(axis=0) - y * (d_y * y).mean(axis=0)) / deviation
    return x.T @ d_z, rectified.T @ d_logits


@pytest.mark.parametrize("normalized", [True, False])
def test_kappa_1_of_a_network_differentiated_by_hand(normalized):
    rng = np.random.default_rng(2)
    images, labels = rng.normal(size=(16, 1, 1, 6)).astype(np.float32), rng.integers(0, 3, 16)
    image = keras.Input((1, 1, 6))
    features = layers.Dense(5, use_bias=False, name="first")(layers.Flatten()(image))
    if normalized:
        features = layers.BatchNormalization(epsilon=EPSILON)(features)
    outputs = layers.Dense(3, use_bias=False, name="second")(layers.ReLU()(features))
    model = keras.Model(image, outputs)
    first, second = (model.get_layer(n).kernel.numpy().astype(float) for n in ("first", "second"))
    gradients = differentiated(images, labels, first, second, normalized)
    ratio = gradients[0].var() / gradients[1].var()
    found = gradient_flow(model, images, labels).layers[0]
    # Eq. 3: κ₁ = n₁ VAR[W₁] / (n̂₂ VAR[W₂]) times the ratio; Eq. 4: κ₂ = 1 / (n̂₂ VAR[W₂]) times it.
    # Gradients are computed in float32.
    assert found.kappa_1 == pytest.approx(6 * first.var() / (3 * second.var()) * ratio, rel=1e-4)
    assert found.kappa_2 == pytest.approx(ratio / (3 * second.var()), rel=1e-4)
    assert found.kappa == (found.kappa_1 if normalized else found.kappa_2)


@pytest.mark.thorough
def test_a_training_is_recorded_from_its_start_to_its_end():
    rng = np.random.default_rng(0)
    labels = np.arange(80, dtype=np.int32) % 4
    # Classes differ in brightness, so that the loss falls.
    pixels = rng.integers(0, 64, (80, 8, 8, 3)) + 60 * labels[:, None, None, None]
    images = ImageSet(
        name="grey",
        train_images=pixels.astype(np.uint8),
        train_labels=labels,
        test_images=pixels[:4].astype(np.uint8),
        test_labels=labels[:4],
        num_classes=4,
    )
    small = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False, "stage_blocks": (1, 1)}
    model = resnet18(8, 4, width_multiplier=0.125, seed=0, **small)
    start = kappa_0(model)
    shares = []
    table = kappa_training.record(model, images, 0, shares.append, steps=5, every=2)
    assert sum(shares) == pytest.approx(1.0)
    kappas = table.where(quantity="kappa_0")
    assert kappas["step"].tolist() == [0.0, 2.0, 4.0, 5.0]
    assert kappas["value"][0] == pytest.approx(start)
    assert kappas["value"][-1] == pytest.approx(kappa_0(model))
    assert start != kappa_0(model)
    flow = table.where(quantity="kappa_1")
    # The stem, two convolutions a block, and the shortcut that changes the shape.
    assert len(flow.distinct("layer")) == 1 + 2 + 3
    assert np.isfinite(flow["value"]).all()
    loss = table.where(quantity="loss")["value"]
    assert loss[-1] < loss[0]


def test_verdicts_are_about_all_layers_but_the_first():
    def verdicts(**changes):
        return [claim.holds for claim in kappa_training.compare(training_table(**changes))]

    assert verdicts() == [True, True, True, True]
    assert verdicts(kappa_0=0.5) == [False, True, True, True]
    assert verdicts(kappa_1=30.0) == [True, False, False, True]


@pytest.mark.slow
def test_the_first_steps_of_the_figure_are_of_order_one():
    from sat_tf import data

    images = data.load_glyphs(num_classes=200, train_per_class=4, test_per_class=1)
    small = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
    model = resnet18(24, 200, width_multiplier=0.25, seed=0, **small)
    table = kappa_training.record(model, images, 0, nothing, steps=4, every=4)
    _, before, during, _ = kappa_training.compare(table)
    assert before.holds
    assert during.holds
