import dataclasses
import functools
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.export.export import ExportReport, file_content
from sat_tf.export.lowering.outputs import with_own_names
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.qat.calibrate import estimate_statistics
from tests.export import operators, proofs
from tests.export.layer_models import MODELS, detector, unet
from tests.export.proofs import calibrated, deployed, file_outputs, proved
from tests.export.zoo import EACH, FEW, ZOO, Specimen, chain, images_for, quantized

L = keras.layers
# Two models of layers say most.
LAYERS = [
    name if name in ("functions", "pairs") else pytest.param(name, marks=pytest.mark.thorough)
    for name in MODELS
]


@dataclasses.dataclass(frozen=True)
class Exported:
    name: str
    specimen: Specimen
    model: keras.Model
    path: pathlib.Path
    report: ExportReport
    images: np.ndarray
    functions: tuple[str, ...]  # Layers that are computed in float32, which nobody simulates.

    @functools.cached_property
    def graph(self) -> Graph:
        return deployed(self.model, float_head=self.specimen.float_head)


def _export(name: str, folder: pathlib.Path, **settings: str) -> Exported:
    specimen, path = {**ZOO, **MODELS}[name], folder / "model.tflite"
    model = quantized(name) if name in ZOO else specimen.quantized()
    report = sat_tf.export_tflite(model, path, float_head=specimen.float_head, **settings)
    return Exported(name, specimen, model, path, report, images_for(model), specimen.functions)


@pytest.fixture(scope="module", params=[*EACH, *LAYERS])
def exported(request, tmp_path_factory) -> Exported:
    return _export(request.param, tmp_path_factory.mktemp(request.param))


def test_the_few_have_every_operator_storage_and_kind_of_stream():
    lines = operators.read()

    def kinds(names):
        for name in names:
            yield from operators.counts(lines[name])
            yield from ((operator, "float") for operator in lines[name].split("; ")[1].split())
            specimen = ZOO[name]
            yield from (("head", specimen.float_head), ("annotated", specimen.annotated))
            yield "streams", specimen.policy.stream_bits is None
            yield "grid", specimen.policy.weight_grid

    assert {*kinds(FEW)} == {*kinds(ZOO)}


def test_xnnpack_computes_the_simulated_integers_of_every_model(exported):
    found = sat_tf.verify_tflite(exported.model, exported.path, exported.images)
    xnnpack = found.runtimes["xnnpack"]
    assert xnnpack.codes_compared > 0
    assert {t.name: t.codes_differing for t in xnnpack.tensors if t.codes_differing} == {}
    assert found.codes_differing == 0
    assert found.float_layers == list(exported.graph.float_layers)
    # Products and sums of float32 in another order, where there are any.
    assert exported.functions or xnnpack.outputs_differing == 0
    assert exported.functions or xnnpack.largest_float_difference < 1e-4
    if exported.name in MODELS:
        return
    # uint8 to int8 is left to the runtime, and means of integers that padding is no part of; no
    # other kernel, with another rounding, has a part.
    float_means = sum("AVERAGE_POOL_2D" in name for name in exported.report.float_operators)
    left = 1 + exported.report.operators.get("AVERAGE_POOL_2D", 0) - float_means
    delegation = xnnpack.delegation
    assert delegation.delegated == delegation.operators - left
    assert delegation.partitions <= left


@pytest.mark.thorough
@pytest.mark.parametrize("runtime", ["builtin", "reference"])
def test_other_runtimes_compute_the_codes_of_their_own_kernels(runtime, exported):
    if exported.functions:
        pytest.skip("the file no longer knows the layers that made its float operators")
    images = exported.images[:4]
    assert proofs.own_count(exported.path.read_bytes(), images, runtime)[1] == 0


def test_the_file_has_the_operators_of_the_table_and_says_only_what_is_to_be_warned_of(exported):
    assert operators.line_of(exported.report) == operators.read()[exported.name]
    # The first call of an operation in a process has no number behind its name.
    said = [text for text in exported.report.warnings if "is computed in float32" in text]
    names = tuple(re.sub(r"(?<=resize)_\d+$", "", text.split(":")[0]) for text in said)
    assert names == exported.functions
    others = set(exported.report.warnings) - set(said)
    sums = {text for text in others if "the file combines two at a time" in text}
    assert bool(sums) == exported.specimen.combines_many
    others -= sums | {text for text in others if "TRANSPOSE_CONV has the shape of its" in text}
    # This LiteRT computes these windows rightly; the XNNPACK of some TensorFlow does not.
    early = {text for text in others if "end in front of the last row or column" in text}
    assert bool(early) == (exported.specimen is ZOO["uneven_windows"])
    others -= early
    assert bool(others) == (not exported.specimen.calibrated)


def test_each_operation_gives_the_codes_of_its_keras_layer(exported):
    specimen = exported.specimen
    differences = proofs.local_differences(exported.model, exported.graph, exported.images)
    assert differences
    off = {d.tensor: d.beyond(specimen.largest) for d in differences}
    assert {name: channels for name, channels in off.items() if channels} == {}
    # Keras does not round logits: a value between two codes may become either of them.
    shares = {d.tensor: d.share_beyond(specimen.differing) for d in differences if d.rounded}
    assert {name: share for name, share in shares.items() if share} == {}


def test_a_file_that_is_read_back_computes_the_same_and_is_written_the_same(exported):
    content = exported.path.read_bytes()
    graph = read_graph(content, "file")
    if exported.functions:
        return
    named = with_own_names(exported.graph)
    expected, found = (simulate(one, exported.images[:4]) for one in (named, graph))
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    settings = FileSettings.of_file(read_contents(content, "file").settings, "file")
    assert file_content(graph, settings) == content
    if exported.name in MODELS:
        return  # of tables of codes no file says which a tensor has
    for name, tensor in named.tensors.items():
        if tensor.codes is not None:
            codes = dataclasses.replace(tensor.codes, unit=1.0)  # no file says the unit
            assert graph.codes(name) == codes, name


@pytest.mark.parametrize("name", ["residual", "annotated_by_hand", "residual_float_streams"])
def test_a_saved_and_loaded_model_has_the_same_file(name, tmp_path):
    found = _export(name, tmp_path)
    found.model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert sat_tf.verify_tflite(loaded, found.path, found.images).codes_differing == 0
    report = sat_tf.export_tflite(loaded, tmp_path / "again.tflite")
    assert report.sha256 == found.report.sha256


CONVERTED = """
    average_pooling padded_average_pooling inception densely_connected sums_of_many pooled_stem
    several_dense dense_on_a_sequence no_variance dilated_depthwise flat_pixels_normalized
    max_pooling pixels_to_one preactivation residual_rectified softmax sums_of_other_shapes
    uneven_windows zero_padding
"""


@pytest.mark.parametrize("name", CONVERTED.split())
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Statistics for quantized inputs")
def test_the_ordinary_converter_gives_the_classes_of_the_written_file(name, tmp_path):
    # The converter has no weights of 4 bits, whose biases are on coarser grids.
    found = _export(name, tmp_path, pack="none")
    converter = tf.lite.TFLiteConverter.from_keras_model(sat_tf.export.to_keras(found.model))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    content = converter.convert()
    float_operators = read_contents(content, name).float_operators()
    assert [operator.split()[0] for operator in float_operators] == ["QUANTIZE", "DEQUANTIZE"]
    pixels = found.specimen.policy.range_of("image").fed(found.images)
    ordinary = Runtime(content, keep_tensors=False).run(pixels)
    written = file_outputs(found.path, found.images)
    if "SOFTMAX" not in found.report.operators:  # the converter rounds probabilities
        np.testing.assert_allclose(ordinary, written, rtol=1e-6)
    # Rounded probabilities can be equal: the class is among the likeliest.
    classes = np.argmax(written, axis=1)
    assert np.all(ordinary[np.arange(len(classes)), classes] == np.max(ordinary, axis=1))


MAP = np.random.default_rng(8).normal(size=(6, 6, 4)).astype(np.float32)
# Operators beside the usual ones at the end of a model.
ENDS = {
    "abs": tf.abs,
    "max_pool2d": lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"),
    "gather": lambda x: tf.gather(x, [3, 0, 0], axis=-1),
    "nearest": lambda x: tf.image.resize(x, (4, 9), "nearest"),
    "minimum": lambda x: tf.minimum(x, 0.5),
    "clip": lambda x: tf.clip_by_value(x, -0.5, 255.0),
    "clip_to_pixels": lambda x: tf.clip_by_value(x, 0.0, 255.0),
    "map": lambda x: x + MAP,
    "depth_to_space": lambda x: tf.nn.depth_to_space(x, 2),
    "channel_max": lambda x: tf.reduce_max(x, -1),
    "channel_mean": lambda x: tf.reduce_mean(x, -1),
    "output_padding": L.Conv2DTranspose(2, 3, 2, padding="same", output_padding=1),
}


@pytest.mark.parametrize("name", ENDS)
def test_at_the_end_of_a_model_they_are_integers_too(name, path):
    keras.utils.set_random_seed(1)
    image = keras.Input((6, 6, 3), name="image")
    outputs = ENDS[name](L.Conv2D(4, 3, padding="same", name="first")(image))
    report, proof = proved(calibrated(keras.Model(image, outputs)), path)
    assert [line.split()[0] for line in report.float_operators] == ["DEQUANTIZE"]
    assert proof.runtimes["xnnpack"].outputs_differing == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kernel", "strides", "more"),
    [
        *((1, 2, None), (2, 3, None), (2, 3, 1), (2, 3, 2), (1, 3, 1), (2, 4, 1), (3, 5, 2)),
        *(((3, 2), (2, 3), (0, 1)), ((2, 1), 2, None), ((2, 4), (3, 2), (1, 1)), (3, 2, 1)),
    ],
    ids=str,
)
def test_transposed_convolutions_with_kernels_smaller_than_strides_are_exact(
    kernel, strides, more, path
):
    up = L.Conv2DTranspose(4, kernel, strides, padding="same", output_padding=more, name="up")
    model = calibrated(chain((5, 4, 3), "Conv2D 6 3 padding=same activation=relu", up))
    images = images_for(model)
    _, certificate = proved(model, path, images, runtimes=("xnnpack", "builtin"))
    assert certificate.trained_differing < 0.02
    # XNNPACK has it: the builtin kernels round twice, and differ.
    assert certificate.runtimes["builtin"].codes_differing > 0


@pytest.mark.thorough
@pytest.mark.parametrize("build", [unet, detector])
def test_at_8_bits_it_does_what_the_float_model_does_and_at_4_it_trains(build):
    keras.utils.set_random_seed(3)
    model = build()
    size = model.input_shape[1]
    # Smooth pictures: noise at a quarter of their size, enlarged.
    noise = np.random.default_rng(5).uniform(0.0, 255.0, (64, size // 4, size // 4, 3))
    images = tf.image.resize(noise, (size, size), "bicubic").numpy().clip(0, 255)
    images = np.floor(images).astype(np.float32)
    estimate_statistics(model, images)
    outputs = (tf.nest.flatten(each(images)) for each in (model, calibrated(model, 8, images)))
    for one, other in zip(*outputs, strict=True):
        assert np.corrcoef(np.ravel(one), np.ravel(other))[0, 1] > 0.99
    made, pixels = calibrated(model, 4, images), images[:8]
    targets = tf.nest.map_structure(lambda tensor: tensor.numpy(), model(pixels[:, :, ::-1]))
    made.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    losses = made.fit(pixels, targets, batch_size=8, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
