"""A quantized `.keras` file gives the same on TensorFlow, JAX and PyTorch, and trains on each."""

import functools
import json

import keras
import numpy as np
import pytest

import sat_tf
from tests.keras3 import training
from tests.keras3.models import digits_network, pixels_and_labels
from tests.keras3.processes import run_on

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning"),
]
W4A4, LSQ = sat_tf.BitPolicy.mobile(4), {"weight_quantizer": "lsq", "activation_quantizer": "lsq"}
POLICIES = {
    "w4a4": W4A4,
    "w2a2 of LSQ": sat_tf.BitPolicy.mobile(2, **LSQ),
    "w3a3 of the paper": sat_tf.BitPolicy.paper(3),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Images and models quantized by each policy; returns the folder of what a backend makes."""
    folder = tmp_path_factory.mktemp("backends")
    images, labels = pixels_and_labels(64 * 20)
    np.savez(folder / "images.npz", images=images, labels=labels)
    for name, policy in {**POLICIES, "mixed": W4A4}.items():
        keras.utils.set_random_seed(4)  # no value is so near a tie then that a last bit decides
        keras.config.set_dtype_policy("mixed_bfloat16" if name == "mixed" else "float32")
        try:
            model = sat_tf.quantize_model(digits_network(), policy)
        finally:
            keras.config.set_dtype_policy("float32")
        sat_tf.calibrate(model, images[:64])
        model.save(folder / f"{name}.keras")

    @functools.cache
    def of(backend):
        if backend == "tensorflow":
            training.main(folder)
        else:
            run_on(backend, "-m", "tests.keras3.training", folder, timeout=900)
        return folder / backend

    return of


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_file_computes_and_learns_the_same_where_tensorflow_is_not(name, backend, results):
    trained, folders = results(backend) / f"{name}.keras", map(results, ("tensorflow", backend))
    expected, received = (dict(np.load(folder / f"{name}.npz")) for folder in folders)
    largest = np.max(np.abs(expected["before"]))
    np.testing.assert_allclose(received["before"], expected["before"], rtol=0, atol=1e-5 * largest)
    gradients = [name for name in expected if name.startswith("gradient")]
    assert sum("clipping_level" in name for name in gradients) >= 3
    assert sum("kernel" in name for name in gradients) >= 3
    sizes = {name: np.max(np.abs(expected[name])) for name in gradients}
    for name in gradients:
        # The sum for a clipping level is a small rest of many large terms, whose last bits differ.
        size = max(sizes.values()) if "clipping_level" in name else sizes[name]
        np.testing.assert_allclose(
            received[name], expected[name], rtol=0, atol=1e-4 * size, err_msg=name
        )
    np.testing.assert_allclose(received["losses"], expected["losses"], rtol=1e-3, atol=1e-3)
    # The model that was trained there goes on here.
    again = keras.saving.load_model(trained)
    found = keras.ops.convert_to_numpy(again(pixels_and_labels(64)[0], training=False))
    np.testing.assert_allclose(found, received["after"], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def found(request, results):
    """What the usages gave on each backend."""
    return json.loads((results(request.param) / "usages.json").read_text())


def test_data_of_every_kind_gives_the_same_losses_compiled_or_not(found):
    for name in ("py_dataset", "torch_loader", "tf_data"):
        if found[name] is not None:
            assert found[name] == pytest.approx(found["numpy"], rel=1e-5), name
    first = found["numpy"][0]
    assert found["compiled"] == pytest.approx([first] * len(found["compiled"]), rel=1e-3)


def test_in_mixed_precision_and_by_a_step_of_ones_own_it_learns(found):
    losses, dtype = found["mixed"]
    assert losses[-1] < losses[0]
    assert dtype == "bfloat16"
    calls, before, after = found["own_step"]
    assert calls >= 1
    assert len(before) >= 3
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_callbacks_of_keras_save_stop_and_resume(found):
    assert found["checkpoint"] == 0.0
    assert found["early_stopping"] == 2
    alone, rest = found["backup"]
    assert rest == pytest.approx(alone[2:], rel=1e-4)


def test_transition_rates_are_those_of_tensorflow_and_factors_of_zero_hold_kernels(found, results):
    expected = json.loads((results("tensorflow") / "usages.json").read_text())["transition_rate"]
    state, rates, held = found["transition_rate"]
    assert state["step"] == 4
    # A code or two are ties that differ.
    np.testing.assert_allclose(state["rates"], expected[0]["rates"], atol=0.005)
    np.testing.assert_allclose(state["factors"], expected[0]["factors"], rtol=0.1)
    assert rates == [0.0] * len(rates)
    assert held >= len(rates)


def test_two_devices_learn_what_one_does(found):
    if found["two_devices"] is None:
        pytest.skip("keras.distribution is for JAX")
    devices, alone, together = found["two_devices"]
    assert devices == 2
    assert together == pytest.approx(alone, rel=1e-5)
