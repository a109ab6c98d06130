"""A quantized `.keras` file gives the same on TensorFlow, JAX and PyTorch, and trains on each."""

import functools

import keras
import numpy as np
import pytest

import sat_tf
from tests.keras3 import scenario
from tests.keras3.models import digits_network, pixels_and_labels
from tests.keras3.processes import run_on

pytestmark = pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning")

POLICIES = {
    "w4a4": sat_tf.BitPolicy.mobile(4),
    "w2a2 of LSQ": sat_tf.BitPolicy.mobile(2, weight_quantizer="lsq", activation_quantizer="lsq"),
    "w3a3 of the paper": sat_tf.BitPolicy.paper(3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images, and a model quantized by each policy."""
    folder = tmp_path_factory.mktemp("backends")
    images, labels = pixels_and_labels(64 * 20)
    np.savez(folder / "images.npz", images=images, labels=labels)
    for name, policy in POLICIES.items():
        keras.utils.set_random_seed(4)  # no value is so near a tie then that a last bit decides
        model = sat_tf.quantize_model(digits_network(), policy)
        sat_tf.calibrate(model, images[:64])
        model.save(folder / f"{name}.keras")
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """Returns the file that a backend has made of one of these, and what it gave."""

    @functools.cache
    def ran(backend):
        run_on(backend, "-m", "tests.keras3.scenario", folder)
        return folder / backend

    @functools.cache
    def of(backend, name):
        if backend == "tensorflow":
            data = dict(np.load(folder / "images.npz"))
            return None, scenario.trained(folder / f"{name}.keras", data)[1]
        return ran(backend) / f"{name}.keras", dict(np.load(ran(backend) / f"{name}.npz"))

    return of


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("name", POLICIES)
def test_a_file_computes_and_learns_the_same_where_tensorflow_is_not(name, backend, folder, found):
    _, expected = found("tensorflow", name)
    trained, received = found(backend, name)
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
    images = np.load(folder / "images.npz")["images"][:64]
    found = keras.ops.convert_to_numpy(again(images, training=False))
    np.testing.assert_allclose(found, received["after"], rtol=1e-4, atol=1e-4)
