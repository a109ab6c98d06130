import numpy as np
import pandas as pd
import pytest
import tf_keras as keras

from benchmarks.paper import kappa
from benchmarks.paper.kappa import PRINTED
from benchmarks.paper.variances import gaussian
from sat_tf.training import models
from sat_tf.training.audit.kappa import kappa_0
from sat_tf.training.data.source import ImageSet
from sat_tf.training.models.resnet import resnet18
from tests import reference

layers = keras.layers
EPSILON = 1e-3


def classifier_alone(features, *, classes=1000, pool=7):
    """A pooled map and the layer behind it: all of a network that κ₀ looks at."""
    image = keras.Input((pool, pool, features))
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")(image)
    return keras.Model(image, keras.layers.Dense(classes, name="classifier")(pooled))


def test_the_table_is_that_of_float64(monkeypatch):
    sizes = {"resnet18": 24, "resnet50": 80, "mobilenet_v1": 40, "mobilenet_v2": 50}
    monkeypatch.setattr(
        models, "build", lambda name, **_: classifier_alone(sizes[name], classes=30, pool=3)
    )
    table = kappa.kappa_table(11, samples=4)
    for number, (name, features) in enumerate(sizes.items(), start=1):
        weights = [gaussian((features, 30), 1.0 / 30, 11, number, sample) for sample in range(4)]
        vanilla = [features * np.var(w, dtype=np.float64) / 9 for w in weights]
        clamp = [features * reference.clamp(w).var() / 9 for w in weights]
        row = table[table["model"] == name].iloc[0]
        assert (row["n_L"], row["n_hat_L"], row["k_pool"]) == (features, 30, 3)
        assert row["vanilla_mean"] == pytest.approx(np.mean(vanilla), rel=1e-6)
        assert row["vanilla_std"] == pytest.approx(np.std(vanilla, ddof=1), rel=1e-4)
        assert row["clamp_mean"] == pytest.approx(np.mean(clamp), rel=1e-5)
        assert row["clamp_std"] == pytest.approx(np.std(clamp, ddof=1), rel=1e-4)


@pytest.mark.parametrize(
    ("seed", "samples"),
    [pytest.param(0, 25, marks=pytest.mark.thorough), pytest.param(1, 100, marks=pytest.mark.slow)],
)
def test_the_printed_table_is_within_sampling_error(seed, samples, monkeypatch):
    # The vanilla values have next to none, and round to what is printed. Clamped ones depend on the
    # largest of many weights: a tenth from draw to draw. With the ratio of 100 000 weights for all
    # models every printed value is within it. The ratios of the layers themselves are lower the
    # more weights they have: MobileNet-V2's, which is printed to two digits, may be out of reach.
    monkeypatch.setattr(models, "build", lambda name, **_: classifier_alone(PRINTED[name].features))
    table = kappa.kappa_table(seed, samples=samples)
    verdicts = {found.about: found.holds for found in kappa.compare_table(table)}
    assert verdicts.pop("MobileNet-V2: κ₀ clamped") in (False, True)
    assert len(verdicts) == 15
    assert all(verdicts.values()), verdicts
    for name, printed in PRINTED.items():
        row = table[table["model"] == name].iloc[0]
        assert abs(row["one_ratio_mean"] - float(printed.clamp)) < row["one_ratio_std"]
        # It is of the paper's order also with the layer's own ratio.
        assert 0.75 < row["clamp_mean"] / float(printed.clamp) < 1.0


def test_kappa_0_is_about_the_variance_of_the_logits():
    model = classifier_alone(96, classes=200, pool=7)
    kernel = model.get_layer("classifier").kernel
    kernel.assign(gaussian(kernel.shape, 0.3, 0))
    # Normalized maps, whose places are independent and which no rectifier shifts.
    logits = model(gaussian((300, 7, 7, 96), 1.0, 1)).numpy()
    # 300 sums of 96 features: their squares vary by sqrt(2 / (300 · 96)) in the mean, and by a few
    # percent with the 200 classes, which share them.
    assert logits.var() == pytest.approx(kappa_0(model), rel=0.05)


@pytest.mark.slow
def test_the_sizes_are_those_of_the_models():
    table = kappa.kappa_table(0, samples=2)
    for name, printed in PRINTED.items():
        row = table[table["model"] == name].iloc[0]
        assert (row["n_L"], row["n_hat_L"]) == (printed.features, printed.classes)
        assert row["k_pool"] == printed.pool


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
    table = kappa.record(model, images, 0, steps=5, every=2)
    kappas, flow, loss = (
        table[table["quantity"] == name] for name in ("kappa_0", "kappa_1", "loss")
    )
    assert kappas["step"].tolist() == [0, 2, 4, 5]
    assert kappas["value"].iloc[0] == pytest.approx(start)
    assert kappas["value"].iloc[-1] == pytest.approx(kappa_0(model))
    assert start != kappa_0(model)
    # The stem, two convolutions a block, and the shortcut that changes the shape.
    assert flow["layer"].nunique() == 1 + 2 + 3
    assert np.isfinite(flow["value"]).all()
    assert loss["value"].iloc[-1] < loss["value"].iloc[0]


def training_table(kappa_0=0.02, kappa_1=1.0):
    """A training of two convolutions, made up."""
    rows = []
    for step in (0, 10, 20):
        rows.append((step, 0, "loss", "", 7.0 - step / 10))
        rows.append((step, 0, "kappa_0", "classifier", kappa_0))
        rows.append((step, 0, "kappa_1", "stem_conv", 2.0))
        rows.append((step, 0, "kappa_1", "block_1_shortcut_conv", kappa_1))
        rows.append((step, 0, "kappa_1", "block_1_first_conv", 0.5))
    return pd.DataFrame(rows, columns=kappa.COLUMNS)


def test_verdicts_are_about_all_layers_but_the_first():
    def verdicts(**changes):
        return [found.holds for found in kappa.compare_training(training_table(**changes))]

    assert verdicts() == [True, True, True, True]
    assert verdicts(kappa_0=0.5) == [False, True, True, True]
    assert verdicts(kappa_1=30.0) == [True, False, False, True]


@pytest.mark.slow
def test_the_first_steps_of_the_figure_are_of_order_one():
    from sat_tf.training import data

    images = data.load_glyphs(num_classes=200, train_per_class=4, test_per_class=1)
    small = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
    model = resnet18(24, 200, width_multiplier=0.25, seed=0, **small)
    table = kappa.record(model, images, 0, steps=4, every=4)
    _, before, during, _ = kappa.compare_training(table)
    assert before.holds
    assert during.holds
