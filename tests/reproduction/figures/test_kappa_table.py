import numpy as np
import pytest

from sat_tf import models
from sat_tf.analysis.kappa import kappa_0
from sat_tf.reproduction.figures import kappa_table
from sat_tf.reproduction.figures.variances import gaussian
from tests import reference
from tests.reproduction.figures.small import classifier_alone, kappa_0_table, nothing

PRINTED = kappa_table.PRINTED


def test_the_table_is_that_of_float64(monkeypatch):
    sizes = {"resnet18": 24, "resnet50": 80, "mobilenet_v1": 40, "mobilenet_v2": 50}
    monkeypatch.setattr(
        models, "build", lambda name, **_: classifier_alone(sizes[name], classes=30, pool=3)
    )
    table = kappa_table.measure(11, nothing, samples=4)
    for number, (name, features) in enumerate(sizes.items(), start=1):
        weights = [gaussian((features, 30), 1.0 / 30, 11, number, sample) for sample in range(4)]
        vanilla = [features * np.var(w, dtype=np.float64) / 9 for w in weights]
        clamp = [features * reference.clamp(w).var() / 9 for w in weights]
        row = table.row(model=name)
        assert (row["n_L"], row["n_hat_L"], row["k_pool"]) == (features, 30, 3)
        assert row["vanilla_mean"] == pytest.approx(np.mean(vanilla), rel=1e-6)
        assert row["vanilla_std"] == pytest.approx(np.std(vanilla, ddof=1), rel=1e-4)
        assert row["clamp_mean"] == pytest.approx(np.mean(clamp), rel=1e-5)
        assert row["clamp_std"] == pytest.approx(np.std(clamp, ddof=1), rel=1e-4)


@pytest.mark.parametrize(
    ("seed", "samples"), [(0, 25), pytest.param(1, 100, marks=pytest.mark.slow)]
)
def test_the_printed_table_is_within_sampling_error(seed, samples):
    # The vanilla values have next to none, and round to what is printed. Clamped ones depend on the
    # largest of many weights: a tenth from draw to draw. With the ratio of 100 000 weights for all
    # models every printed value is within it. The ratios of the layers themselves are lower the
    # more weights they have: MobileNet-V2's, which is printed to two digits, may be out of reach.
    table = kappa_0_table(seed, samples)
    verdicts = {claim.about: claim.holds for claim in kappa_table.compare(table)}
    assert verdicts.pop("MobileNet-V2: κ₀ clamped") in (False, True)
    assert len(verdicts) == 15
    assert all(verdicts.values()), verdicts
    for name, printed in PRINTED.items():
        row = table.row(model=name)
        assert abs(row["one_ratio_mean"] - float(printed.clamp)) < row["one_ratio_std"]
        # Of the paper's order also with the layer's own ratio.
        assert 0.75 < row["clamp_mean"] / float(printed.clamp) < 1.0


def test_the_printed_clamped_values_are_fifty_times_the_vanilla_ones():
    # Which no four layers of different sizes would be.
    for printed in PRINTED.values():
        assert float(printed.clamp) == pytest.approx(50 * float(printed.vanilla))


def test_values_round_to_what_is_printed_at_its_digits():
    assert kappa_table.round_to_printed([0.0104, 0.0149, 0.0151], "0.01") == pytest.approx(2 / 3)
    assert kappa_table.round_to_printed([1.51, 2.49, 2.51, 1.49], "2") == 0.5


def test_kappa_0_is_about_the_variance_of_the_logits():
    model = classifier_alone(96, classes=200, pool=7)
    kernel = model.get_layer("classifier").kernel
    kernel.assign(gaussian(kernel.shape, 0.3, 0))
    # Normalized maps, whose places are independent and which no rectifier shifts.
    logits = model(gaussian((300, 7, 7, 96), 1.0, 1)).numpy()
    # 300 sums of 96 features: their squares vary by sqrt(2 / (300 · 96)) in the mean, and by a few
    # percent with the 200 classes, which share them.
    assert logits.var() == pytest.approx(kappa_0(model), rel=0.05)


@pytest.mark.parametrize("name", ["mobilenet_v2_small", "resnet18"])
def test_classifiers_start_with_the_variance_of_the_paper(name):
    width = {"width_multiplier": 0.25} if name == "resnet18" else {}
    model = models.build(name, image_size=24, num_classes=1000, seed=0, **width)
    kernel = model.get_layer("classifier").kernel.numpy().astype(np.float64)
    # Standard error of a variance over 128 000 weights: 0.4 %.
    assert kernel.var() == pytest.approx(1.0 / 1000, rel=0.016)


@pytest.mark.slow
def test_the_sizes_are_those_of_the_models():
    table = kappa_table.measure(0, nothing, samples=2)
    for name, printed in PRINTED.items():
        row = table.row(model=name)
        assert (row["n_L"], row["n_hat_L"]) == (printed.features, printed.classes)
        assert row["k_pool"] == printed.pool
