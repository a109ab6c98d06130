"""A quantized `.keras` file gives the same on TensorFlow, JAX and PyTorch, and trains on each."""

import keras
import numpy as np
import pytest

import sat_tf
from tests.keras3.networks import digits_network, pixels_and_labels
from tests.keras3.processes import run_on

pytestmark = pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning")

OTHERS = ("jax", "torch")
POLICIES = {
    "w4a4": sat_tf.BitPolicy.mobile(4),
    "w2a2 of LSQ": sat_tf.BitPolicy.mobile(2, weight_quantizer="lsq", activation_quantizer="lsq"),
    "w3a3 of the paper": sat_tf.BitPolicy.paper(3),
}


def run(backend, folder, model_path):
    results, trained = folder / f"{backend}.npz", folder / f"{backend}.keras"
    arguments = [model_path, folder / "images.npz", results, trained]
    run_on(backend, "-m", "tests.keras3.scenario", *arguments)
    return dict(np.load(results)), trained


@pytest.fixture(scope="module", params=POLICIES)
def of_tensorflow(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("backends")
    images, labels = pixels_and_labels(64 * 20)
    np.savez(folder / "images.npz", images=images, labels=labels)
    keras.utils.set_random_seed(4)  # at which no value is so near a tie that a last bit decides
    model = sat_tf.quantize_model(digits_network(), POLICIES[request.param])
    sat_tf.calibrate(model, images[:64])
    model.save(folder / "model.keras")
    return folder, run("tensorflow", folder, folder / "model.keras")[0]


@pytest.mark.thorough
@pytest.mark.parametrize("backend", OTHERS)
def test_a_file_computes_and_learns_the_same_where_tensorflow_is_not(of_tensorflow, backend):
    folder, expected = of_tensorflow
    received, trained = run(backend, folder, folder / "model.keras")
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
    # What was trained there goes on here.
    again = keras.saving.load_model(trained)
    images = np.load(folder / "images.npz")["images"][:64]
    found = keras.ops.convert_to_numpy(again(images, training=False))
    np.testing.assert_allclose(found, received["after"], rtol=1e-4, atol=1e-4)
