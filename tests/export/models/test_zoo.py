import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.export.export import ExportReport, file_content
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.export.operations.simulator import simulate
from sat_tf.export.tflite.structure import read_structure
from tests.export.local import local_differences
from tests.export.zoo import EACH, FEW, ZOO, Specimen, images_for, quantized


@dataclasses.dataclass(frozen=True)
class Exported:
    """A model of the zoo with its file."""

    specimen: Specimen
    model: keras.Model
    path: pathlib.Path
    report: ExportReport

    @property
    def images(self) -> np.ndarray:
        return images_for(self.model)


def _export(name: str, folder: pathlib.Path, **settings: str) -> Exported:
    specimen, model, path = ZOO[name], quantized(name), folder / "model.tflite"
    report = sat_tf.export_tflite(model, path, float_head=specimen.float_head, **settings)
    return Exported(specimen, model, path, report)


@pytest.fixture(scope="module", params=EACH)
def exported(request, tmp_path_factory) -> Exported:
    return _export(request.param, tmp_path_factory.mktemp(request.param))


def test_the_few_have_every_operator_storage_and_kind_of_stream():
    def kinds(names):
        return {
            kind
            for specimen in map(ZOO.__getitem__, names)
            for kind in (
                *specimen.operators,
                *((operator, "float") for operator in specimen.float_operators),
                *((field, getattr(specimen, field)) for field in ("float_head", "annotated")),
                ("streams", specimen.policy.stream_bits is None),
                ("grid", specimen.policy.weight_grid),
            )
        }

    assert kinds(FEW) == kinds(ZOO)


def test_xnnpack_computes_the_simulated_integers_of_every_model(exported):
    found = sat_tf.verify_tflite(exported.model, exported.path, exported.images)
    xnnpack = found.runtimes["xnnpack"]
    assert xnnpack.codes_compared > 0
    assert {t.name: t.codes_differing for t in xnnpack.tensors if t.codes_differing} == {}
    assert xnnpack.outputs_differing == 0
    # Products and sums of float32 in another order, where there are any.
    assert xnnpack.largest_float_difference < 1e-4
    # uint8 to int8 is left to the runtime, and means of integers that padding is no part of; no
    # other kernel, with another rounding, has a part.
    float_means = sum("AVERAGE_POOL_2D" in name for name in exported.report.float_operators)
    left = 1 + exported.report.operators.get("AVERAGE_POOL_2D", 0) - float_means
    delegation = xnnpack.delegation
    assert delegation.delegated == delegation.operators - left
    assert delegation.partitions <= left


def test_the_file_has_the_expected_operators(exported):
    assert exported.report.operators == exported.specimen.file_operators
    kinds = tuple(name.split()[0] for name in exported.report.float_operators)
    assert kinds == exported.specimen.float_operators


def test_only_what_was_never_observed_and_sums_of_many_are_warned_of(exported):
    sums = [text for text in exported.report.warnings if "the file combines two at a time" in text]
    assert bool(sums) == exported.specimen.combines_many
    others = set(exported.report.warnings) - set(sums)
    assert bool(others) == (not exported.specimen.calibrated)


def test_each_operation_gives_the_codes_of_its_keras_layer(exported):
    specimen = exported.specimen
    graph = deployed_graph(exported.model, float_head=specimen.float_head)
    differences = local_differences(exported.model, graph, exported.images)
    assert differences
    off = {d.tensor: d.beyond(specimen.largest) for d in differences}
    assert {name: channels for name, channels in off.items() if channels} == {}
    # Keras does not round logits: a value between two codes may become either of them.
    shares = {d.tensor: d.share_beyond(specimen.differing) for d in differences if d.rounded}
    assert {name: share for name, share in shares.items() if share} == {}


def test_a_file_that_is_read_back_computes_what_its_model_does(exported):
    graph = deployed_graph(exported.model, float_head=exported.specimen.float_head)
    expected = simulate(graph, exported.images[:4])
    found = simulate(read_graph(exported.path.read_bytes(), "file"), exported.images[:4])
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_a_file_that_is_read_back_and_written_is_the_same(exported):
    content = exported.path.read_bytes()
    settings = FileSettings.of_file(read_structure(content, "file").metadata, "file")
    assert file_content(read_graph(content, "file"), settings) == content


def test_a_file_says_which_codes_its_tensors_have(exported):
    graph = deployed_graph(exported.model, float_head=exported.specimen.float_head)
    found = read_graph(exported.path.read_bytes(), "file")
    for name, tensor in graph.tensors.items():
        if tensor.codes is not None:
            expected = dataclasses.replace(tensor.codes, unit=1.0)  # no file says the unit
            assert found.codes(name) == expected, name


@pytest.mark.parametrize("name", ["residual", "annotated_by_hand", "residual_float_streams"])
def test_a_saved_and_loaded_model_has_the_same_file(name, tmp_path):
    found = _export(name, tmp_path)
    found.model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert sat_tf.verify_tflite(loaded, found.path, found.images).codes_differing == 0
    report = sat_tf.export_tflite(loaded, tmp_path / "again.tflite")
    assert report.sha256 == found.report.sha256


@pytest.mark.parametrize(
    "name",
    [
        "average_pooling",
        "padded_average_pooling",
        "inception",
        "densely_connected",
        "sums_of_many",
        "pooled_stem",
        "several_dense",
        "dense_on_a_sequence",
        "dilated_depthwise",
        "flat_pixels_normalized",
        "max_pooling",
        "no_variance",
        "pixels_to_one",
        "preactivation",
        "residual_rectified",
        "softmax",
        "sums_of_other_shapes",
        "uneven_windows",
        "zero_padding",
    ],
)
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Statistics for quantized inputs")
def test_the_ordinary_converter_gives_the_classes_of_the_written_file(name, tmp_path):
    # The converter has no weights of 4 bits, whose biases are on coarser grids.
    found = _export(name, tmp_path, pack="none")
    converter = tf.lite.TFLiteConverter.from_keras_model(sat_tf.export.to_keras(found.model))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    content = converter.convert()
    float_operators = read_structure(content, name).float_operators()
    assert [operator.split()[0] for operator in float_operators] == ["QUANTIZE", "DEQUANTIZE"]
    pixels = found.specimen.policy.range_of("image").fed(found.images)
    ordinary = Runtime(content, keep_tensors=False).run(pixels)
    written = Runtime(found.path.read_bytes(), keep_tensors=False).run(found.images)
    if "SOFTMAX" not in found.report.operators:  # the converter rounds probabilities
        np.testing.assert_allclose(ordinary, written, rtol=1e-6)
    # Rounded probabilities can be equal: the class is among the likeliest.
    classes = np.argmax(written, axis=1)
    assert np.all(ordinary[np.arange(len(classes)), classes] == np.max(ordinary, axis=1))
