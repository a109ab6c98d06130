import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

import sat_tf
from sat_tf.exact import evaluate
from sat_tf.exact.certificate import comparison, proof
from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.certificate.proof import recheck
from sat_tf.exact.certificate.proof_images import ImagesFrom, random_images
from sat_tf.exact.certificate.runtimes import USUAL_RUNTIMES
from sat_tf.exact.evaluate import file_interface
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.top_k import top_hits
from sat_tf.export import evaluate_simulator, evaluate_tflite, read_graph, simulate, verify_file
from sat_tf.export.lowering.outputs import with_own_names
from tests.export.proofs import calibrated, deployed, file_outputs, keras_tensors, stored
from tests.export.zoo import chain, images_for, quantized

DEEP = pytest.param("quantized", marks=pytest.mark.thorough)  # a network of 52 layers


@pytest.fixture(scope="module", params=["small", DEEP])
def verified(request, tmp_path_factory):
    """A model, its images, the report, the certificate, and what is written of that."""
    model, folder = request.getfixturevalue(request.param), tmp_path_factory.mktemp("export")
    pixels, written = images_for(model, 64), folder / "certificate.json"
    report = sat_tf.export_tflite(model, folder / "model.tflite")
    found = sat_tf.verify_tflite(
        model, folder / "model.tflite", pixels, np.zeros(64, int), certificate_path=written
    )
    return model, pixels, report, found, json.loads(written.read_text())


def test_every_integer_tensor_is_compared_for_every_image_and_none_differs(verified):
    model, _, _, found, _ = verified
    names = {tensor.name.removesuffix("_codes") for tensor in found.tensors}
    for layer in model.layers:
        if getattr(layer, "output_variables", None) or layer.name.endswith("_image"):
            assert layer.layer.name in names
    assert all(t.codes_compared == 64 * int(np.prod(t.shape)) > 0 for t in found.tensors)
    assert {tensor.codes_differing for tensor in found.tensors} == {found.codes_differing} == {0}


def test_the_json_says_what_the_certificate_says(verified):
    _, _, report, found, written = verified
    assert written == json.loads(json.dumps(found.to_dict()))
    assert written["codes_differing"] == 0
    assert written["sha256"] == report.sha256
    assert written["bytes"] == report.bytes
    assert written["gzip_bytes"] == report.gzip_bytes < report.bytes
    assert set(written["versions"]) >= {"python", "ai-edge-litert", "tensorflow", "numpy"}
    assert written["operators"] == report.operators
    assert list(written["runtimes"]) == list(USUAL_RUNTIMES)


@pytest.mark.thorough
def test_the_codes_of_the_trained_model_are_counted(verified):
    model, pixels, _, found, _ = verified
    graph = with_own_names(deployed(model))
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


@pytest.fixture
def simulates(monkeypatch):
    """Lets the simulation of a file change the values of a tensor."""

    def of(name, change):
        def wrong(graph, batch, given):
            tensors = simulate(graph, batch, given)
            return {**tensors, name: change(tensors[name])}

        monkeypatch.setattr(comparison, "simulate", wrong)

    return of


@pytest.mark.thorough
def test_a_float_tensor_that_becomes_nan_is_no_small_difference(simulates, path):
    model = quantized("residual_float_streams")
    name = next(n for n, one in deployed(model).tensors.items() if not one.codes)
    sat_tf.export_tflite(model, path)
    simulates(name, lambda values: np.full_like(values, np.nan))
    found = sat_tf.verify_tflite(model, path, images_for(model, 2))
    assert found.runtimes["xnnpack"].largest_float_difference == np.inf


def test_one_wrong_integer_is_counted(small, small_file, small_images, simulates):
    _, name, *_ = deployed(small).integer_tensors
    simulates(name, lambda codes: codes + (np.arange(codes.size) == 0).reshape(codes.shape))
    found = sat_tf.verify_tflite(small, small_file, small_images[:2])
    assert (found.codes_differing, found.top1) == (1, {})  # without labels
    assert [t.name for t in found.tensors if t.codes_differing] == [name]


def test_a_float_head_reads_the_real_values_of_a_requantized_stream(path):
    model = chain((6, 6, 3), "Conv2D 4 3 | Flatten | Dense 5")
    images = images_for(model, 16)
    policy = sat_tf.BitPolicy.mobile(4, requantize_streams=True)
    model = calibrated(model, policy, images)
    sat_tf.export_tflite(model, path, float_head=True)
    expected = model(images.astype(np.float32)).numpy()
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


def test_a_certificate_holds_for_its_file_and_images_which_are_drawn_again_where_random(
    alone, small_file, small_images, tmp_path
):
    _, path = alone
    found = recheck(small_file, read_certificate(path), small_images)
    assert found.differences == []
    assert found.certificate.codes_differing == 0
    images = random_images((8, 9, 3), 5, 42)
    path = tmp_path / "certificate.json"
    verify_file(small_file, images, certificate_path=path, images_from=ImagesFrom("noise", 42))
    assert recheck(small_file, read_certificate(path)).differences == []


def test_codes_and_tensors_that_are_not_those_of_the_certificate_are_named(
    alone, small_file, small_images, simulates
):
    recorded, _ = alone
    first, *rest = recorded.codes
    others = [dataclasses.replace(first, name="gone"), *rest]
    found = recheck(small_file, dataclasses.replace(recorded, codes=others), small_images)
    missing = f"{first.name}: it is not in the certificate", "gone: it is not in the file"
    assert found.differences == [*missing]
    simulates(rest[-1].name, lambda codes: np.clip(codes + 1, -128, 127))
    found = recheck(small_file, recorded, small_images)
    assert found.differences[0] == f"{rest[-1].name}: its codes differ from the certificate"
    assert "in the certificate" in found.differences[-1]


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


LABELS = np.random.default_rng(0).integers(0, 4, 32)


@pytest.fixture(scope="module")
def expected(small_file, small_images):
    outputs = file_outputs(small_file, small_images)
    return {k: top_hits(outputs, LABELS, k) / len(LABELS) for k in (1, 2, 4)}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("function", [evaluate_tflite, evaluate_simulator])
def test_shares_are_those_of_one_interpreter(
    function, processes, small_file, small_images, expected
):
    settings = {"top": (1, 2, 4), "processes": processes, "progress": False}
    found = function(small_file, small_images, LABELS, **settings)
    assert found.top == expected
    assert (found.num_images, found.not_finite, found.processes) == (32, 0, processes)


def test_batches_and_a_path_as_text_give_the_same(small_file, small_images, expected):
    batches = tf.data.Dataset.from_tensor_slices((small_images, LABELS)).batch(20)
    found = evaluate_tflite(str(small_file), batches, top=(1, 2, 4), processes=2, progress=True)
    assert found.top == expected


def test_a_graph_is_simulated_as_its_file_which_says_what_it_takes(
    small_file, small_images, expected
):
    graph = read_graph(small_file.read_bytes(), "file")
    found = evaluate_simulator(graph, small_images, LABELS, top=[1], progress=False)
    assert found.top == {1: expected[1]}
    interface = file_interface(small_file)
    assert (interface.input_shape, interface.input_type) == ((8, 9, 3), np.uint8)
    assert interface.num_outputs == 4


def test_outputs_that_are_not_finite_are_counted_and_wrong(small_file, small_images, monkeypatch):
    outputs = np.array([[np.nan, 1.0, 0.0], [1.0, 0.0, 0.0], [np.inf, 0.0, 0.0]])
    batches = [(outputs, np.array([1, 0, 0])), (np.zeros((1, 3)), np.array([1]))]
    monkeypatch.setattr(evaluate, "_outputs", lambda *_: iter(batches))
    found = evaluate_tflite(small_file, small_images, LABELS, top=(1, 2))
    assert (found.num_images, found.not_finite, found.top) == (4, 2, {1: 0.25, 2: 0.5})
