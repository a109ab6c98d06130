import contextlib
import itertools
import warnings

import numpy as np
import pytest

import sat_tf
from sat_tf.presentation.progress_bar import Progress
from sat_tf.qat.reconstruction import fit, reconstruct
from sat_tf.qat.reconstruction.fit import Checkpoint
from tests.qat import float_models

STEPS = 10


def _calibrated(float_model, images, policy=None):
    quantized = sat_tf.quantize_model(float_model, policy or sat_tf.BitPolicy.mobile(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statistics that are not those of noise
        sat_tf.calibrate(quantized, images, progress=False)
    return quantized


@pytest.fixture(scope="module")
def images():
    return float_models.images(64)


@pytest.fixture(scope="module")
def float_model():
    return float_models.build("mobile_block")


@pytest.fixture(scope="module")
def fitted(float_model, images):
    """A model before and after, and the result."""
    quantized = _calibrated(float_model, images)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    return quantized, before, found


def _distance(model, other, images):
    one, of_float = (np.asarray(m(images, training=False), np.float64) for m in (model, other))
    return float(np.mean(np.square(one - of_float)) / np.mean(np.square(of_float)))


def test_the_outputs_come_nearer_to_the_float_model(fitted, float_model, images):
    quantized, before, found = fitted
    after = _distance(quantized, float_model, images)
    weights = quantized.get_weights()
    quantized.set_weights(before)
    assert after < _distance(quantized, float_model, images)
    quantized.set_weights(weights)
    assert found.kept
    assert found.error_after < found.error_before
    assert found.num_images == 64
    assert found.held_out == 12


def test_no_block_is_worse_on_the_held_out_images(fitted):
    *_, found = fitted
    assert all(block.error_after <= block.error_before for block in found.blocks)
    assert found.blocks[-1].block == ""
    assert len(found.blocks) > 2


def test_the_result_is_a_table_and_rows(fitted):
    *_, found = fitted
    assert isinstance(found, reconstruct.Reconstruction)
    assert "the whole network" in found.table()
    assert "on 12 held-out images" in repr(found)
    assert [row["block"] for row in found.to_rows()] == [one.block for one in found.blocks]


@pytest.mark.thorough
def test_equal_seeds_give_equal_models(fitted, float_model, images):
    quantized, before, found = fitted
    weights = quantized.get_weights()
    quantized.set_weights(before)
    again = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    np.testing.assert_equal(weights, quantized.get_weights())
    assert again.error_after == found.error_after


def _statistics(model):
    return [v.numpy() for v in model.variables if "moving_" in v.name]


def test_frozen_layers_and_normalizations_stay_as_they_are(float_model, images):
    quantized = _calibrated(float_model, images)
    frozen = [
        layer for layer in quantized.layers if layer.name == "quant_expand" or "bn" in layer.name
    ]
    assert len(frozen) > 1
    for layer in frozen:
        layer.trainable = False
    before = [layer.get_weights() for layer in frozen]
    found = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    assert found.kept
    for layer, weights in zip(frozen, before, strict=True):
        np.testing.assert_equal(weights, layer.get_weights())


def test_statistics_are_those_of_the_fitted_images_where_the_whole_network_was_fitted(
    fitted, images
):
    quantized, before, found = fitted
    assert found.blocks[-1].kept
    after, weights = _statistics(quantized), quantized.get_weights()
    chosen = np.random.default_rng(0).permutation(len(images))[found.held_out :]
    sat_tf.calibrate(quantized, images[chosen], clipping_levels=False, progress=False)
    for one, other in zip(after, _statistics(quantized), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    quantized.set_weights(before)
    assert any(
        np.any(one != other) for one, other in zip(after, _statistics(quantized), strict=True)
    )
    quantized.set_weights(weights)


def test_many_images_have_no_more_than_64_held_out(fitted, float_model):
    quantized, before, _ = fitted
    weights = quantized.get_weights()
    quantized.set_weights(before)
    many = float_models.images(330)
    found = sat_tf.reconstruct(quantized, float_model, many, steps=1, progress=False)
    quantized.set_weights(weights)
    assert (found.num_images, found.held_out) == (330, 64)


def test_what_helps_nothing_leaves_the_model_as_it_was(float_model, images, monkeypatch):
    # A rate at which every fit diverges.
    for name in ("_BLOCK", "_WHOLE"):
        plan = getattr(reconstruct, name)
        monkeypatch.setattr(reconstruct, name, plan._replace(rate=1e6))
    quantized = _calibrated(float_model, images)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    np.testing.assert_equal(before, quantized.get_weights())
    assert not found.kept
    assert "nothing was better" in repr(found)
    assert found.error_after == found.error_before


def test_blocks_are_undone_that_make_the_outputs_worse(float_model, images, monkeypatch):
    made = reconstruct._Reconstructor._whole

    def growing(self):
        """The whole network, whose errors are larger each time that they are measured."""
        whole, more = made(self), itertools.count()
        errors = whole.errors
        whole.errors = lambda chosen: errors(chosen) + next(more)
        return whole

    monkeypatch.setattr(reconstruct._Reconstructor, "_whole", growing)
    quantized = _calibrated(float_model, images)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    np.testing.assert_equal(before, quantized.get_weights())
    assert len(found.blocks) > 2
    assert not any(block.kept for block in found.blocks)
    assert not found.kept


def test_all_problems_are_told_at_once(float_model):
    quantized = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(4))
    before = quantized.get_weights()
    other = float_models.build("sequential_with_input_layer")
    images = float_models.images(8)
    images[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="problems") as error:
        sat_tf.reconstruct(quantized, other, images, steps=0, seed=-1)
    for words in (
        "no such layer, expected weights of the shapes",
        "has seen no images, expected one that is calibrated; call sat_tf.calibrate",
        "steps=0: expected",
        "seed=-1: expected",
        "images with NaN or infinite values",
    ):
        assert words in str(error.value)
    np.testing.assert_equal(before, quantized.get_weights())


def test_images_may_be_integers(fitted, float_model):
    quantized, before, _ = fitted
    quantized.set_weights(before)
    pixels = np.random.default_rng(0).integers(0, 256, (40, *float_model.input_shape[1:]), np.uint8)
    found = sat_tf.reconstruct(quantized, float_model, pixels, steps=1, progress=False)
    assert found.num_images == 40


@pytest.mark.thorough
def test_its_file_computes_the_integers_of_the_model(fitted, images, tmp_path):
    quantized, *_ = fitted
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    pixels = images[:32].astype(np.uint8)
    certificate = sat_tf.verify_tflite(quantized, tmp_path / "model.tflite", pixels)
    assert certificate.codes_compared > 0
    assert certificate.codes_differing == 0


# -- interruptions ---------------------------------------------------------------------------------


class _Interrupted(Progress):
    """Interrupts the work after so many calls; sooner or later in a block, or in the whole."""

    def __init__(self, calls):
        super().__init__("", None)
        self.calls, self.places = calls, []

    def __call__(self, count):
        super().__call__(count)
        self.calls -= 1
        if not self.calls:
            raise KeyboardInterrupt

    def at(self, place):
        super().at(place)
        self.places.append(place)


@pytest.fixture
def progress_of(monkeypatch):
    """Lets reconstructions be interrupted after so many steps, and saves each step."""
    monkeypatch.setattr(fit, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(fit, "_COST", 0.0)

    def use(calls):
        progress = _Interrupted(calls)
        monkeypatch.setattr(
            reconstruct, "image_bar", lambda *args, **options: contextlib.nullcontext(progress)
        )
        return progress

    return use


@pytest.mark.thorough
def test_what_was_interrupted_goes_on_and_ends_bit_by_bit_as_without(
    fitted, float_model, images, progress_of, tmp_path
):
    quantized, before, found = fitted
    expected, path = quantized.get_weights(), tmp_path / "unfinished.npz"
    blocks = len(found.blocks) - 1
    told = []

    def run(calls):
        quantized.set_weights(before)
        progress = progress_of(calls)
        saved = Checkpoint(path, say=told.append)
        return progress, sat_tf.reconstruct(
            quantized, float_model, images, steps=STEPS, checkpoint=saved
        )

    # In the second block, and in the whole network.
    for calls in (STEPS + 4, STEPS * (blocks - 1) + 30):
        with pytest.raises(KeyboardInterrupt):
            run(calls)
        np.testing.assert_equal(before, quantized.get_weights())
    progress, again = run(-1)
    assert progress.places == ["the whole network"]
    assert "Going on with 1 of" in told[0]
    assert f"{blocks} of {blocks} blocks of the reconstruction, and " in told[-1]
    assert "steps of the whole network, which" in told[-1]
    np.testing.assert_equal(expected, quantized.get_weights())
    errors = [(one.block, one.error_before, one.error_after) for one in found.blocks]
    assert [(one.block, one.error_before, one.error_after) for one in again.blocks] == errors
    # Once more, nothing is left to do.
    progress, again = run(1)
    assert progress.calls == 1
    np.testing.assert_equal(expected, quantized.get_weights())
