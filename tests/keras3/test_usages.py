"""Quantized Keras 3 models are trained in all the ways in which Keras 3 trains models."""

import json

import keras
import numpy as np
import pytest

import sat_tf
from tests.keras3 import usages
from tests.keras3.models import digits_network, pixels_and_labels
from tests.keras3.processes import run_on

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usages")
    images, labels = pixels_and_labels(64)
    np.savez(folder / "images.npz", images=images, labels=labels)
    for name, precision in (("model", "float32"), ("mixed", "mixed_bfloat16")):
        keras.utils.set_random_seed(4)
        keras.config.set_dtype_policy(precision)
        try:
            model = sat_tf.quantize_model(digits_network(), sat_tf.BitPolicy.mobile(4))
        finally:
            keras.config.set_dtype_policy("float32")
        sat_tf.calibrate(model, images)
        model.save(folder / f"{name}.keras")
    return folder


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def found(request, folder):
    if request.param == "tensorflow":
        return usages.every_usage(folder)
    results = folder / f"{request.param}.json"
    run_on(request.param, "-m", "tests.keras3.usages", folder, results)
    return json.loads(results.read_text())


def test_data_of_every_kind_gives_the_same_losses(found):
    for name in ("py_dataset", "torch_loader", "tf_data"):
        if found[name] is not None:
            assert found[name] == pytest.approx(found["numpy"], rel=1e-5), name


def test_compiled_and_not_it_learns_the_same(found):
    first = found["numpy"][0]
    assert found["compiled"] == pytest.approx([first] * len(found["compiled"]), rel=1e-3)


def test_in_mixed_precision_it_learns_and_its_tensors_are_short(found):
    losses, dtype = found["mixed"]
    assert losses[-1] < losses[0]
    assert dtype == "bfloat16"


def test_callbacks_of_keras_save_stop_and_resume(found):
    assert found["checkpoint"] == 0.0
    assert found["early_stopping"] == 2
    alone, rest = found["backup"]
    assert rest == pytest.approx(alone[2:], rel=1e-4)


def test_a_step_of_ones_own_is_the_one_that_is_run(found):
    calls, before, after = found["own_step"]
    assert calls >= 1
    assert len(before) >= 3
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_two_devices_learn_what_one_does(found):
    if found["two_devices"] is None:
        pytest.skip("keras.distribution is for JAX")
    devices, alone, together = found["two_devices"]
    assert devices == 2
    assert together == pytest.approx(alone, rel=1e-5)
