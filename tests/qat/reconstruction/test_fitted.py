import dataclasses
import json

import numpy as np
import pytest

import sat_tf
from sat_tf.messages import RunError
from sat_tf.output_folder import RECONSTRUCTION
from sat_tf.qat.reconstruction.fitted import Fitted, fit
from sat_tf.training.run_folder import RunFolder
from tests.training.small import small_float_model, small_images

FITTED = Fitted(
    steps=200,
    images=240,
    held_out=48,
    seconds=43.2,
    error_before=0.25,
    error_after=0.0625,
    agreement_before=0.875,
    agreement_after=1.0,
    calibrated_top1=0.75,
    fitted_top1=0.5,
    kept=False,
)


def calibrated():
    model = sat_tf.quantize_model(small_float_model(), sat_tf.BitPolicy.mobile(2))
    images = small_images().train_images
    return sat_tf.calibrate(model, images, keep_function=True, progress=False)


def reconstructed(model, shares=(), **options):
    """Fits a model, whose top-1 is given before and after it was fitted."""
    found = iter(shares)
    return fit(
        model,
        small_float_model(),
        small_images().train_images,
        num_images=len(small_images().train_images),
        steps=5,
        seed=0,
        measure=lambda: {"top1": next(found)} if shares else {},
        progress=False,
        **options,
    )


def test_what_was_gained_is_said_in_words():
    assert FITTED.how == (
        "block by block, 200 steps each, on 240 images, 48 of them held out, in 43 s"
    )
    assert FITTED.gained == (
        "class of the float model: 87.50 % before, 100.00 % after; top-1 with labels: 75.00 % "
        "before, 50.00 % after; the calibrated model is kept, because its top-1 is the better one"
    )
    undone = dataclasses.replace(FITTED, agreement_after=0.875, fitted_top1=0.75)
    assert undone.gained.endswith("the calibrated model is kept, because no fit has helped")


def test_outputs_that_are_no_classes_have_errors():
    values = Fitted(
        steps=1, images=40, held_out=8, seconds=0, error_before=0.25, error_after=0.0625, kept=True
    )
    assert values.gained == "error of the outputs: 0.25 before, 0.0625 after"


def test_a_record_is_read_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path)
    assert Fitted.read(folder) is None
    FITTED.write(folder)
    assert Fitted.read(folder) == FITTED
    damaged = {**json.loads((tmp_path / RECONSTRUCTION).read_text()), "steps": "many"}
    folder.write_json(RECONSTRUCTION, damaged)
    with pytest.raises(RunError, match="damaged file"):
        Fitted.read(folder)


@pytest.mark.thorough
def test_the_calibrated_model_is_kept_where_labels_say_that_it_is_better():
    model = calibrated()
    before = model.get_weights()
    found = reconstructed(model, (0.75, 0.5), keep_better=True)
    assert (found.calibrated_top1, found.fitted_top1, found.kept) == (0.75, 0.5, False)
    np.testing.assert_equal(before, model.get_weights())


@pytest.mark.parametrize("measured", [1, 2])
def test_a_model_that_cannot_be_measured_has_not_changed(measured, monkeypatch):
    model = calibrated()
    before, left = model.get_weights(), [measured]

    def changed(model, *args, **options):
        model.set_weights([one + 1 for one in model.get_weights()])

    def measure():
        changed(model)
        left[0] -= 1
        if not left[0]:
            raise RunError("a logit is NaN")
        return {}

    monkeypatch.setattr("sat_tf.qat.reconstruction.reconstruct.reconstruct", changed)
    images = small_images().train_images
    with pytest.raises(RunError, match="NaN"):
        fit(
            model,
            small_float_model(),
            images,
            num_images=len(images),
            steps=1,
            seed=0,
            measure=measure,
        )
    np.testing.assert_equal(before, model.get_weights())


@pytest.mark.thorough
def test_layers_that_were_frozen_are_fitted_and_stay_frozen():
    model, other = calibrated(), calibrated()
    frozen = model.get_layer("quant_pointwise")
    frozen.trainable = False
    assert reconstructed(model).kept
    assert reconstructed(other).kept
    assert not frozen.trainable
    assert not frozen.layer.trainable
    assert all(layer.trainable for layer in model.layers if layer is not frozen)
    frozen.trainable = True  # for the order of the weights
    np.testing.assert_equal(model.get_weights(), other.get_weights())
