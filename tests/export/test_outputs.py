"""Outputs: of integers, real values of which readers get, and of the names that users gave."""

import functools
import importlib.util

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.exact.evaluate import evaluate_simulator, evaluate_tflite
from sat_tf.exact.litert.runtime import RUNTIMES, Runtime
from sat_tf.exact.operations.conversions import ShiftImage, ShiftOutput
from sat_tf.exact.operations.graph import Graph, outputs_of
from sat_tf.exact.operations.graph_file import serialize
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.exact.tflite.tensors import Codes, Image, Tensor
from sat_tf.export import read_device_check, read_graph, simulate, verify_file, write_kit
from sat_tf.export.export import file_content, file_graph
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.graph.network import Network
from tests.exact.device.kits import certificate_in, checked_here, unpacked
from tests.export.proofs import calibrated, file_outputs, proved
from tests.export.zoo import through

L = keras.layers
INTEGERS = ("int8", "uint8")
HAS_MICRO = importlib.util.find_spec("tflite_micro") is not None
FUNCTIONS = {"SOFTMAX", "LOGISTIC"}
PIXELS = np.random.default_rng(5).integers(0, 256, (12, 12, 12, 3)).astype(np.uint8)


ENDS = {
    "classifier": "GlobalAveragePooling2D | Dense 5 name=logits",
    "several": {
        "boxes": "Conv2D 4 1 name=box | Reshape (-1,4) name=rows",
        "age": "GlobalAveragePooling2D | Dense 1 name=years",
        "kind": "GlobalAveragePooling2D | Dense 3 name=scores",
    },
    "segmentation": "Conv2DTranspose 3 2 2 name=mask",
    "regression": "Flatten | Dense 2 relu name=sizes",
    "sigmoid": "Flatten | Dense 1 sigmoid name=yes",
    "probabilities": "GlobalAveragePooling2D | Dense 6 softmax name=classes",
    "moved_probabilities": "Conv2D 3 1 activation=softmax name=anchors | Reshape (-1,3) name=rows",
    "many_classes": "GlobalAveragePooling2D | Dense 512 name=logits",
}


@functools.cache
def _quantized(name):
    keras.utils.set_random_seed(2)
    image = keras.Input((12, 12, 3), name="image")
    tensor = L.Conv2D(6, 3, padding="same", activation="relu", name="conv")(image)
    tensor = L.Conv2D(8, 3, 2, padding="same", activation="relu", name="more")(tensor)
    outputs = tf.nest.map_structure(lambda end: through(tensor, end), ENDS[name])
    return calibrated(keras.Model(image, outputs), 4, PIXELS.astype(np.float32))


@pytest.fixture(scope="module", params=[name for name in ENDS if name != "many_classes"])
def files(request, tmp_path_factory):
    """A model, its files by their types of outputs, and the reports on these."""
    model, folder = _quantized(request.param), tmp_path_factory.mktemp(request.param)
    paths = {kind: folder / f"{kind}.tflite" for kind in ("float32", *INTEGERS)}
    reports = {
        kind: sat_tf.export_tflite(model, path, output_type=kind) for kind, path in paths.items()
    }
    return model, paths, reports


def _parsed(path):
    return read_contents(path.read_bytes(), path.name)


@pytest.mark.parametrize("kind", INTEGERS)
def test_nothing_of_it_is_float_and_its_outputs_stand_for_those_of_the_float_file(files, kind):
    model, paths, reports = files
    assert {made.type for made in _parsed(paths[kind]).outputs} == {kind.upper()}
    assert reports[kind].float_operators == []
    assert reports["float32"].float_operators
    assert reports[kind].float_layers == []
    assert not any("float32" in text for text in reports[kind].warnings)
    # The last codes are called as the outputs.
    assert len(reports["float32"].certified) <= len(reports[kind].certified)
    expected, found = (file_outputs(paths[one], PIXELS) for one in ("float32", kind))
    # Functions of codes have 256 of them, the largest of 255/256.
    off = 1.1 / 256 if FUNCTIONS & set(reports[kind].operators) else 0.0
    np.testing.assert_allclose(found, expected, rtol=0, atol=off)
    assert np.ptp(found) > 0
    # A file that is read back computes the same, and is written the same.
    content = paths[kind].read_bytes()
    graph, settings = (
        read_graph(content, "file"),
        FileSettings.of_file(_parsed(paths[kind]).settings, "file"),
    )
    assert settings.output_type == kind
    assert [graph.codes(name).dtype for name in graph.outputs] == [kind] * len(graph.outputs)
    np.testing.assert_array_equal(outputs_of(simulate(graph, PIXELS), graph), found)
    assert file_content(file_graph(Network(model), settings), settings) == content


def test_the_integers_of_uint8_are_128_more_than_those_of_int8(files):
    _, paths, _ = files
    found = []
    for path in (paths[kind] for kind in INTEGERS):
        runtime, outputs = Runtime(path.read_bytes(), keep_tensors=True), _parsed(path).outputs
        runtime.run(PIXELS[:1])
        made = runtime.tensors([output.name for output in outputs]).values()
        found.append([*zip(outputs, made, strict=True)])
    for (lower, signed), (higher, unsigned) in zip(*found, strict=True):
        assert lower.scales == higher.scales
        assert lower.zero_points + 128 == higher.zero_points
        np.testing.assert_array_equal(signed.astype(int) + 128, unsigned)


@pytest.mark.parametrize("kind", INTEGERS)
def test_every_code_of_every_runtime_is_the_simulated_one(files, kind):
    model, paths, _ = files
    runtimes = (*RUNTIMES, "micro") if HAS_MICRO else RUNTIMES
    found = sat_tf.verify_tflite(model, paths[kind], PIXELS, runtimes=runtimes, progress=False)
    assert not found.refused
    names = {made.name for made in _parsed(paths[kind]).outputs}
    assert names <= {tensor.name for tensor in found.codes}
    for name, count in found.runtimes.items():
        assert sum(tensor.codes_compared for tensor in count.own or count.tensors) > 0, name
        assert sum(tensor.codes_differing for tensor in count.own or count.tensors) == 0, name
    assert found.runtimes["xnnpack"].outputs_differing == 0
    assert found.runtimes["xnnpack"].float_values_compared == 0
    assert found.float_operators == []
    if FUNCTIONS & set(found.operators):
        assert found.agreement >= 0.9
        return
    float_file = sat_tf.verify_tflite(model, paths["float32"], PIXELS, progress=False)
    outputs = (each.runtimes["xnnpack"].outputs for each in (found, float_file))
    for one, other in zip(*outputs, strict=True):
        for field in ("agreement", "largest_difference", "values"):
            assert getattr(one, field) == getattr(other, field)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("scale", [1 / 256, 0.0371, 3.0])
@pytest.mark.parametrize("zero_point", [-128, -3, 127])
def test_the_shift_to_uint8_is_exact_for_every_code(runtime, scale, zero_point):
    codes = Codes(np.float32(scale), zero_point)
    grids = {"codes": codes, "more": codes.unsigned()}
    tensors = {name: Tensor(name, (256,), grid) for name, grid in grids.items()}
    operations = (ShiftImage(("image",), "codes"), ShiftOutput(("codes",), "more"))
    images = (Image("image", (256,), codes.scale, zero_point + 128),)
    graph = Graph("shift", tensors, operations, images, "more")
    content, pixels = serialize(graph, {}), np.arange(256, dtype=np.uint8)[np.newaxis]
    found = Runtime(content, runtime, keep_tensors=True)
    expected = (np.arange(256) - zero_point - 128) * np.float32(scale)
    np.testing.assert_array_equal(found.run(pixels)[0], expected.astype(np.float32))
    np.testing.assert_array_equal(found.tensors(["more"])["more"], pixels)
    np.testing.assert_array_equal(simulate(graph, pixels)["more"], pixels)
    again = read_graph(content, "file")
    assert (again.tensors, again.operations) == (graph.tensors, graph.operations)


@pytest.mark.parametrize("kind", INTEGERS)
def test_a_proof_kit_compares_the_last_codes_and_its_certificate_is_read_back(tmp_path, kind):
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(_quantized("probabilities"), path, output_type=kind)
    (made,) = _parsed(path).outputs
    kit = write_kit(path, PIXELS[:2], tmp_path / "kit.zip", codes=True)
    assert made.name in kit.compared
    assert not kit.not_compared
    assert checked_here(unpacked(kit.path, tmp_path / "kit"), tmp_path).returncode == 0
    found, is_simulated = read_device_check(path, certificate_in(tmp_path), PIXELS[:2])
    assert found.is_exact
    assert is_simulated
    assert (found.codes_differing, found.tensors_compared) == (0, len(kit.compared))


@pytest.mark.parametrize("kind", INTEGERS)
def test_accuracy_and_outputs_are_those_of_the_float_file(tmp_path, kind):
    paths = {one: tmp_path / f"{one}.tflite" for one in ("float32", kind)}
    for one, path in paths.items():
        sat_tf.export_tflite(_quantized("classifier"), path, output_type=one)
    labels = np.arange(len(PIXELS)) % 5
    settings = {"top": (1, 2), "processes": 1, "progress": False}
    expected = evaluate_tflite(paths["float32"], PIXELS, labels, **settings)
    for measured in (evaluate_tflite, evaluate_simulator):
        assert measured(paths[kind], PIXELS, labels, **settings).top == expected.top
    outputs = [file_outputs(path, PIXELS) for path in paths.values()]
    np.testing.assert_array_equal(*outputs)
    assert outputs[1].dtype == np.float32
    found = verify_file(paths[kind], PIXELS, labels, progress=False)
    assert found.top1["tflite"] == expected.top[1]
    assert found.codes_differing == 0


def test_kernels_that_may_end_their_process_on_many_classes_are_left_out(path):
    file = {"softmax": True, "output_type": "int8"}
    runtimes = ["builtin", "reference"]
    _, found = proved(_quantized("many_classes"), path, PIXELS[:2], file, runtimes=runtimes)
    assert "512 classes" in found.refused["reference"]
    assert "builtin" not in found.refused


PICTURES = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3)).astype(np.uint8)


def _features():
    picture = L.Input((8, 8, 3), name="picture")
    return picture, through(picture, "Conv2D 4 3 name=conv | GlobalAveragePooling2D name=mean")


def _of_pictures(model, policy=8):
    return calibrated(model, policy, images=PICTURES.astype(np.float32))


@pytest.fixture(scope="module")
def quantized():
    """Outputs of each kind; the last two are one layer, and the codes of `scores` have a name."""
    picture, mean = _features()
    ends = {
        "probs": "Dense 3 softmax name=probs",
        "softmax": "Dense 3 name=logits | Softmax name=softmax",
        "box": "Dense 4 name=box",
        "sizes": "Dense 2 relu name=sizes",
        "angle": "Dense 2 tanh name=angle",
        "rows": "Dense 3 name=row | Reshape (1,3) name=rows",
        "dropped": "Dense 3 name=kept | Dropout 0.5 name=dropped",
        "scores": "Dense 4 relu name=scores_codes | Dense 3 name=scores",
    }
    outputs = {name: through(mean, layers) for name, layers in ends.items()}
    inner = keras.Sequential([L.Dense(3, name="d"), L.Softmax(name="s")], name="inner")
    shared = L.Dense(2, activation="sigmoid", name="shared")
    outputs |= {"inner": inner(mean), "shared": shared(mean)}
    outputs |= {"shared_1": shared(L.ReLU(name="positive")(mean))}
    model = keras.Model(picture, list(outputs.values()))
    assert model.output_names == list(outputs)
    return model, _of_pictures(model)


def _names(path):
    """The names of a file's inputs and outputs in its signature, and of its output tensors."""
    interpreter = Interpreter(str(path))
    (signature,) = interpreter.get_signature_list().values()
    tensors = [details["name"] for details in interpreter.get_output_details()]
    return signature["inputs"], signature["outputs"], tensors


@pytest.mark.parametrize("output_type", ["float32", "int8", "uint8"])
def test_each_output_has_its_name_in_keras(quantized, output_type, path):
    model, q = quantized
    _, certificate = proved(q, path, PICTURES, {"output_type": output_type})
    inputs, outputs, tensors = _names(path)
    assert inputs == ["picture"]
    assert outputs == sorted(model.output_names)
    assert tensors == model.output_names
    # No layer is lost to the comparison by the name of an output.
    trained = {tensor.name.removesuffix("_codes") for tensor in certificate.trained}
    assert {"box", "sizes", "scores", "conv", "mean"} <= trained
    assert trained & {"kept", "dropped"}


def test_a_call_by_name_gives_what_the_keras_output_of_that_name_does(quantized, path):
    model, q = quantized
    sat_tf.export_tflite(q, path)
    run = Interpreter(str(path)).get_signature_runner()
    found = [run(picture=pixels[np.newaxis]) for pixels in PICTURES]
    expected = dict(zip(model.output_names, q.predict(PICTURES.astype(np.float32)), strict=True))
    for name, values in expected.items():
        made = np.concatenate([one[name] for one in found])
        np.testing.assert_allclose(made, values, atol=0.3 * np.ptp(values), err_msg=name)


@pytest.mark.thorough
def test_the_converters_file_and_that_of_a_saved_model_have_the_same_names(quantized, tmp_path):
    model, q = quantized
    sat_tf.export_tflite(q, tmp_path / "converter.tflite", route="converter")
    assert _names(tmp_path / "converter.tflite")[:2] == (["picture"], sorted(model.output_names))
    q.save(tmp_path / "q.keras")
    again = sat_tf.requantize(keras.models.load_model(tmp_path / "q.keras"), sat_tf.BitPolicy())
    sat_tf.calibrate(again, PICTURES.astype(np.float32))
    sat_tf.export_tflite(again, tmp_path / "again.tflite")
    assert _names(tmp_path / "again.tflite")[2] == model.output_names


@pytest.mark.parametrize("settings", [{"softmax": True}, {"float_head": True}])
def test_an_ending_that_the_export_adds_keeps_the_name(settings, path):
    picture, mean = _features()
    q = _of_pictures(keras.Model(picture, L.Dense(3, name="probs")(mean)))
    proved(q, path, PICTURES, settings)
    assert _names(path) == (["picture"], ["probs"], ["probs"])


@pytest.mark.parametrize("route", ["direct", "converter"])
def test_the_keys_of_a_dictionary_are_the_names(route, path):
    picture, mean = _features()
    outputs = {"class": L.Dense(3, activation="softmax")(mean), "where": L.Dense(2)(mean)}
    q = _of_pictures(keras.Model({"image": picture}, outputs))
    sat_tf.export_tflite(q, path, route=route)
    assert _names(path)[:2] == (["image"], ["class", "where"])


def test_an_output_left_float_in_a_model_inside_keeps_the_name_of_that(path):
    picture, mean = _features()
    inner = keras.Sequential([L.Dense(3), L.LayerNormalization()], name="probs")
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float")
    q = _of_pictures(keras.Model(picture, inner(mean)), policy)
    sat_tf.export_tflite(q, path)
    assert _names(path) == (["picture"], ["probs"], ["probs"])
