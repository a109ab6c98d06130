import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact import evaluate
from sat_tf.exact.certificate import comparison, proof
from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.certificate.inputs import ImagesFrom, random_images
from sat_tf.exact.certificate.proof import recheck, verify_file
from sat_tf.exact.certificate.runtimes import USUAL_RUNTIMES
from sat_tf.exact.evaluate import evaluate_simulator, evaluate_tflite, file_interface
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.top_k import top_hits
from sat_tf.export.lowering.outputs import with_own_names
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from tests.export.proofs import calibrated, keras_tensors, stored
from tests.export.zoo import images_for

DEEP = pytest.param("quantized", marks=pytest.mark.thorough)  # a network of 52 layers


@pytest.fixture(scope="module", params=["small", DEEP])
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
    graph = with_own_names(deployed_graph(Network(model)))
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
    with_float_streams, images, path, monkeypatch
):
    def wrong(graph, batch, given):
        tensors = simulate(graph, batch, given)
        name = next(n for n in tensors if graph.tensors[n].codes is None)
        tensors[name] = np.full_like(tensors[name], np.nan)
        return tensors

    sat_tf.export_tflite(with_float_streams, path)
    monkeypatch.setattr(comparison, "simulate", wrong)
    found = sat_tf.verify_tflite(with_float_streams, path, images[:2])
    assert found.runtimes["xnnpack"].largest_float_difference == np.inf


def test_one_wrong_integer_is_counted(small, small_file, small_images, monkeypatch):
    _, name, *_ = deployed_graph(Network(small)).integer_tensors

    def wrong(graph, batch, given):
        tensors = simulate(graph, batch, given)
        tensors[name] = tensors[name].copy()
        tensors[name][0, 0, 0, 0] += 1
        return tensors

    monkeypatch.setattr(comparison, "simulate", wrong)
    found = sat_tf.verify_tflite(small, small_file, small_images[:2])
    assert (found.codes_differing, found.top1) == (1, {})  # without labels
    assert [t.name for t in found.tensors if t.codes_differing] == [name]


def test_a_float_head_reads_the_real_values_of_a_requantized_stream(path):
    layers = [keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(5)]
    model = keras.Sequential([keras.layers.Input((6, 6, 3)), *layers])
    images = np.random.default_rng(0).integers(0, 256, (16, 6, 6, 3)).astype(np.uint8)
    policy = sat_tf.BitPolicy.mobile(4, requantize_streams=True)
    quantized = calibrated(model, policy, images)
    sat_tf.export_tflite(quantized, path, float_head=True)
    expected = quantized(images.astype(np.float32)).numpy()
    file = Runtime(path.read_bytes(), keep_tensors=False)
    # The first layer's bias is an integer in the file.
    np.testing.assert_allclose(file.run(images), expected, atol=0.02 * np.abs(expected).max())


@pytest.fixture(scope="module")
def alone(small_file, small_images, tmp_path_factory):
    path = tmp_path_factory.mktemp("proof") / "certificate.json"
    labels = np.arange(len(small_images)) % 4
    options = {"certificate_path": path, "runtimes": ("builtin", "reference")}
    return verify_file(small_file, small_images, labels, **options), path


def test_a_file_is_proved_without_its_model_as_with_it(alone, small, small_file, small_images):
    alone, _ = alone
    both = sat_tf.verify_tflite(small, small_file, small_images)
    assert alone.codes_differing == both.codes_differing == 0
    assert alone.codes_compared == both.codes_compared > 0
    codes = [[(t.name, t.sha256, t.counts) for t in each.codes] for each in (alone, both)]
    assert codes[0] == codes[1]
    assert (alone.reference, both.reference) == ("simulation", "keras")
    assert (alone.trained, alone.to_dict()["trained_differing"]) == ([], None)


def test_every_runtime_is_counted_against_the_simulation(alone):
    found, _ = alone
    assert list(found.runtimes) == ["xnnpack", "builtin", "reference"]
    assert found.refused == {}
    xnnpack = found.runtimes["xnnpack"]
    assert (xnnpack.first_differing, xnnpack.agreement) == (None, 1.0)
    assert xnnpack.largest_output_difference == 0.0
    assert xnnpack.top1 == found.top1["simulation"] == found.top1["tflite"]
    for count in found.runtimes.values():
        differing = [tensor.name for tensor in count.tensors if tensor.codes_differing]
        assert count.first_differing == (differing[0] if differing else None)


def test_a_certificate_holds_for_its_file_and_images(alone, small_file, small_images):
    _, path = alone
    found = recheck(small_file, read_certificate(path), small_images)
    assert found.differences == []
    assert found.certificate.codes_differing == 0


def test_random_images_are_drawn_again(small_file, tmp_path):
    images = random_images((8, 9, 3), 5, 42)
    path = tmp_path / "certificate.json"
    verify_file(small_file, images, certificate_path=path, images_from=ImagesFrom("noise", 42))
    assert recheck(small_file, read_certificate(path)).differences == []


def test_codes_that_are_not_those_of_the_certificate_are_named(
    alone, small_file, small_images, monkeypatch
):
    recorded, _ = alone
    name = recorded.codes[-1].name

    def wrong_in_the_end(graph, batch, given):
        tensors = simulate(graph, batch, given)
        tensors[name] = np.clip(tensors[name] + 1, -128, 127)
        return tensors

    monkeypatch.setattr(comparison, "simulate", wrong_in_the_end)
    found = recheck(small_file, recorded, small_images)
    assert found.differences[0] == f"{name}: its codes differ from the certificate"
    assert "in the certificate" in found.differences[-1]


def test_tensors_that_are_not_in_both_are_named(alone, small_file, small_images):
    recorded, _ = alone
    first = dataclasses.replace(recorded.codes[0], name="gone")
    changed_certificate = dataclasses.replace(recorded, codes=[first, *recorded.codes[1:]])
    found = recheck(small_file, changed_certificate, small_images)
    assert found.differences == [
        f"{recorded.codes[0].name}: it is not in the certificate",
        "gone: it is not in the file",
    ]


def test_a_runtime_that_refuses_the_file_is_told_and_xnnpack_alone_is_an_error(
    small_file, small_images, monkeypatch
):
    refusals = {"xnnpack": None, "builtin": "it ends the process with SIGSEGV"}
    monkeypatch.setattr(proof, "refusals", lambda content, names: refusals)
    found = verify_file(small_file, small_images)
    assert list(found.runtimes) == ["xnnpack", "arm_xnnpack", "arm_xnnpack_unfused"]
    assert found.refused == {"builtin": "it ends the process with SIGSEGV"}
    refusals["xnnpack"] = "no memory"
    with pytest.raises(ValueError, match=r"LiteRT does not run \(no memory\), expected one that"):
        verify_file(small_file, small_images)


@pytest.fixture(scope="module")
def labels(small_images):
    return np.random.default_rng(0).integers(0, 4, len(small_images))


@pytest.fixture(scope="module")
def expected(small_file, small_images, labels):
    outputs = Runtime(small_file.read_bytes(), keep_tensors=False).run(small_images)
    return {k: top_hits(outputs, labels, k) / len(labels) for k in (1, 2, 4)}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("function", [evaluate_tflite, evaluate_simulator])
def test_shares_are_those_of_one_interpreter(
    function, processes, small_file, small_images, labels, expected
):
    settings = {"top": (1, 2, 4), "processes": processes, "progress": False}
    found = function(small_file, small_images, labels, **settings)
    assert found.top == expected
    assert (found.num_images, found.not_finite, found.processes) == (32, 0, processes)


def test_batches_and_a_path_as_text_give_the_same(small_file, small_images, labels, expected):
    batches = tf.data.Dataset.from_tensor_slices((small_images, labels)).batch(20)
    found = evaluate_tflite(str(small_file), batches, top=(1, 2, 4), processes=2, progress=True)
    assert found.top == expected


def test_a_graph_is_simulated_as_its_file(small_file, small_images, labels, expected):
    graph = read_graph(small_file.read_bytes(), "file")
    found = evaluate_simulator(graph, small_images, labels, top=[1], progress=False)
    assert found.top == {1: expected[1]}


def test_a_file_says_what_it_takes(small_file):
    interface = file_interface(small_file)
    assert (interface.input_shape, interface.input_type) == ((8, 9, 3), np.uint8)
    assert interface.num_outputs == 4


def test_outputs_that_are_not_finite_are_counted_and_wrong(
    small_file, small_images, labels, monkeypatch
):
    outputs = np.array([[np.nan, 1.0, 0.0], [1.0, 0.0, 0.0], [np.inf, 0.0, 0.0]])
    batches = [(outputs, np.array([1, 0, 0])), (np.zeros((1, 3)), np.array([1]))]
    monkeypatch.setattr(evaluate, "_outputs", lambda *_: iter(batches))
    found = evaluate_tflite(small_file, small_images, labels, top=(1, 2))
    assert (found.num_images, found.not_finite, found.top) == (4, 2, {1: 0.25, 2: 0.5})
