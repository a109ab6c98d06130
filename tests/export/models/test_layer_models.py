import dataclasses
import pathlib

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.export import ExportReport, file_content
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.export.operations.simulator import simulate
from sat_tf.export.tflite.structure import read_structure
from tests.export.layer_models import MODELS, LayerModel
from tests.export.local import local_differences
from tests.export.zoo import images_for, make_realistic

# Two models say most; the others are for the long run.
QUICK = ("functions", "pairs")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@dataclasses.dataclass(frozen=True)
class Exported:
    """A model with its file."""

    kind: LayerModel
    model: keras.Model
    path: pathlib.Path
    report: ExportReport
    graph: Graph

    @property
    def images(self) -> np.ndarray:
        return images_for(self.model)


@pytest.fixture(scope="module", params=NAMES)
def exported(request, tmp_path_factory) -> Exported:
    kind = MODELS[request.param]
    model = kind.model()
    make_realistic(model)
    model = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    sat_tf.calibrate(model, images_for(model).astype(np.float32))
    path = tmp_path_factory.mktemp(request.param) / "model.tflite"
    report = sat_tf.export_tflite(model, path)
    return Exported(kind, model, path, report, deployed_graph(model))


@pytest.mark.thorough
def test_litert_computes_the_simulated_integers(exported):
    found = sat_tf.verify_tflite(exported.model, exported.path, exported.images)
    assert found.codes_differing == 0
    xnnpack = found.runtimes["xnnpack"]
    assert xnnpack.codes_compared > 0
    assert {t.name: t.codes_differing for t in xnnpack.tensors if t.codes_differing} == {}
    if not exported.kind.functions:  # float32 products and sums in another order
        assert xnnpack.outputs_differing == 0
    assert found.islands == list(exported.graph.float_layers)


def test_the_file_has_the_operators_of_the_layers(exported):
    operators = exported.report.operators
    assert {
        name: operators.get(name) for name in exported.kind.operators
    } == exported.kind.operators
    kinds = {name.split()[0] for name in exported.report.float_operators}
    assert (kinds == {"DEQUANTIZE"}) == (not exported.kind.functions)


def test_what_is_computed_in_float_is_said(exported):
    said = [line.split(":")[0] for line in exported.report.warnings if "float32" in line]
    assert tuple(said) == exported.kind.functions


def test_each_operation_gives_the_codes_of_its_keras_layer(exported):
    differences = local_differences(exported.model, exported.graph, exported.images)
    assert differences
    off = {d.tensor: d.beyond(exported.kind.largest) for d in differences}
    assert {name: channels for name, channels in off.items() if channels} == {}
    shares = {d.tensor: d.share_beyond(exported.kind.differing) for d in differences if d.rounded}
    assert {name: share for name, share in shares.items() if share} == {}


def test_a_file_that_is_read_back_computes_the_same_and_is_written_the_same(exported):
    content = exported.path.read_bytes()
    graph = read_graph(content, "file")
    if exported.kind.functions:
        return  # the file no longer knows the layers that made its float operators
    expected = simulate(exported.graph, exported.images[:4])
    found = simulate(graph, exported.images[:4])
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    settings = FileSettings.of_file(read_structure(content, "file").metadata, "file")
    assert file_content(graph, settings) == content


@pytest.mark.thorough
def test_the_deployed_model_computes_the_codes_of_the_file(exported):
    images = exported.images[:8]
    codes, _ = sat_tf.export.deployed_model(exported.model).run(images)
    expected = simulate(exported.graph, images)
    for name, values in codes.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
