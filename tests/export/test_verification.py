import json

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.certificate import proof
from sat_tf.export.certificate.runtimes import USUAL_RUNTIMES
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.lowering.outputs import with_own_names
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.graph import simulate
from tests.export.local import keras_tensors, stored
from tests.export.zoo import images_for


# A network of 52 layers beside a small one.
@pytest.fixture(
    scope="module", params=["small", pytest.param("quantized", marks=pytest.mark.thorough)]
)
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def pixels(model):
    return images_for(model, 64)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "model.tflite"
    return path, sat_tf.export_tflite(model, path)


@pytest.fixture(scope="module")
def certificate(model, exported, pixels):
    path, _ = exported
    labels = np.zeros(len(pixels), int)
    written = path.with_name("certificate.json")
    found = sat_tf.verify_tflite(model, path, pixels, labels, certificate_path=written)
    return found, json.loads(written.read_text())


def test_every_integer_tensor_is_compared_for_every_image_and_none_differs(model, certificate):
    found, _ = certificate
    names = {tensor.name.removesuffix("_codes") for tensor in found.tensors}
    made = {
        layer.layer.name
        for layer in model.layers
        if getattr(layer, "output_variables", None) or layer.name.endswith("_image")
    }
    assert made <= names
    assert all(t.codes_compared == 64 * int(np.prod(t.shape)) > 0 for t in found.tensors)
    assert {tensor.codes_differing for tensor in found.tensors} == {found.codes_differing} == {0}


def test_the_json_says_what_the_certificate_says(certificate, exported):
    found, written = certificate
    _, report = exported
    assert written == json.loads(json.dumps(found.to_dict()))
    assert written["codes_differing"] == 0
    assert written["sha256"] == report.sha256
    assert written["bytes"] == report.bytes
    assert written["gzip_bytes"] == report.gzip_bytes < report.bytes
    assert set(written["versions"]) >= {"python", "ai-edge-litert", "tensorflow", "numpy"}
    assert written["operators"] == report.operators
    assert list(written["runtimes"]) == list(USUAL_RUNTIMES)


@pytest.mark.thorough
def test_the_codes_of_the_trained_model_are_counted(model, certificate, pixels):
    found, _ = certificate
    graph = with_own_names(deployed_graph(model))
    simulated = simulate(graph, pixels)
    trained = keras_tensors(model, pixels.astype(np.float32))
    counted = {tensor.name: tensor for tensor in found.trained}
    names = {name for name, tensor in graph.tensors.items() if tensor.codes}
    assert set(counted) == {name for name in names if graph.former_name(name) in trained}
    for name, tensor in counted.items():
        codes = stored(trained[graph.former_name(name)], graph.codes(name))
        assert tensor.codes_compared == codes.size
        assert tensor.codes_differing == np.count_nonzero(codes != simulated[name])
    # Biases that are rounded anew change codes, and these change others behind them.
    lowest = 0.01 if len(graph.operations) > 50 else 0.001
    assert lowest < found.trained_differing < 1.0


@pytest.mark.thorough
def test_a_float_tensor_that_becomes_nan_is_no_small_difference(
    with_float_streams, images, tmp_path, monkeypatch
):
    def wrong(graph, batch, given):
        tensors = simulate(graph, batch, given)
        name = next(n for n in tensors if graph.tensors[n].codes is None)
        tensors[name] = np.full_like(tensors[name], np.nan)
        return tensors

    sat_tf.export_tflite(with_float_streams, tmp_path / "model.tflite")
    monkeypatch.setattr(proof, "simulate", wrong)
    found = sat_tf.verify_tflite(with_float_streams, tmp_path / "model.tflite", images[:2])
    assert found.runtimes["xnnpack"].largest_float_difference == np.inf


def test_one_wrong_integer_is_counted(small, small_file, small_images, monkeypatch):
    _, name, *_ = deployed_graph(small).integer_tensors

    def wrong(graph, batch, given):
        tensors = simulate(graph, batch, given)
        tensors[name] = tensors[name].copy()
        tensors[name][0, 0, 0, 0] += 1
        return tensors

    monkeypatch.setattr(proof, "simulate", wrong)
    found = sat_tf.verify_tflite(small, small_file, small_images[:2])
    assert (found.codes_differing, found.top1) == (1, {})  # without labels
    assert [t.name for t in found.tensors if t.codes_differing] == [name]


def test_a_float_head_reads_the_real_values_of_a_requantized_stream(tmp_path):
    model = keras.Sequential(
        [
            keras.layers.Input((6, 6, 3)),
            keras.layers.Conv2D(4, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(5),
        ]
    )
    policy = sat_tf.BitPolicy.mobile(4, requantize_streams=True)
    images = np.random.default_rng(0).integers(0, 256, (16, 6, 6, 3)).astype(np.uint8)
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, images)
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite", float_head=True)
    expected = quantized(images.astype(np.float32)).numpy()
    file = Runtime((tmp_path / "model.tflite").read_bytes(), keep_tensors=False)
    # The first layer's bias is an integer in the file.
    np.testing.assert_allclose(file.run(images), expected, atol=0.02 * np.abs(expected).max())
