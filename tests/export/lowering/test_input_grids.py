"""Layers that operators of NPUs compute on the grid of what they read: trained and proved."""

import dataclasses

import keras as keras3  # noqa: TID251
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.pools import AveragePool, ResizeBilinear
from sat_tf.export.targets.ethos_u import compile_file
from sat_tf.graph.network import Network
from sat_tf.qat.layout import call_name
from sat_tf.qat.policy import BitPolicy
from tests.export import zoo
from tests.export.local import keras_tensors, local_differences, stored
from tests.export.proofs import calibrated

L = keras.layers
POLICY = dataclasses.replace(BitPolicy.mobile(4), target="ethos-u55")
_NEW = (AveragePool, ResizeBilinear)


def _conv(filters: int, **settings):
    settings = {"padding": "same", **settings}
    return L.Conv2D(filters, 3, **settings)


def _model(shape, body) -> keras.Model:
    keras.utils.set_random_seed(3)
    image = L.Input(shape)
    y = L.GlobalAveragePooling2D()(body(_conv(8, activation="relu", name="stem")(image)))
    return keras.Model(image, L.Dense(5)(y))


def _normed(y):
    return L.ReLU()(L.BatchNormalization()(_conv(8)(y)))


def _stream(y):
    total = L.Add()([_conv(8)(y), _conv(8)(y)])
    pooled = L.AveragePooling2D(2, name="small")(total)
    return L.Add()([_conv(8)(pooled), _conv(8, strides=2)(total)])


def _joined(y):
    pooled = L.AveragePooling2D(3, 1, "same", name="small")(y)
    return _conv(8)(L.Concatenate()([_conv(4, activation="relu")(y), pooled]))


def _resized(y):
    small = _conv(8, strides=2, activation="relu")(y)
    large = L.UpSampling2D(2, interpolation="bilinear", name="large")(small)
    return _conv(8)(L.Concatenate()([large, y]))


MODELS = {
    "large": lambda: _model((48, 10, 1), lambda y: L.AveragePooling2D((24, 5), name="small")(y)),
    "padded": lambda: _model(
        (12, 12, 3), lambda y: _conv(8)(L.AveragePooling2D(3, 1, "same")(_normed(y)))
    ),
    "stream": lambda: _model((12, 12, 3), _stream),
    "joined": lambda: _model((12, 12, 3), _joined),
    "ceiling": lambda: _model(
        (12, 12, 3), lambda y: _conv(8)(L.AveragePooling2D(4)(L.ReLU(6.0)(_conv(8)(y))))
    ),
    "resized": lambda: _model((12, 12, 3), _resized),
    "signed": lambda: _model(
        (6, 6, 3), lambda y: _conv(8)(L.Resizing(12, 12, "bilinear")(_conv(8)(y)))
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def quantized(request):
    model = MODELS[request.param]()
    zoo.make_realistic(model)
    return calibrated(model, POLICY)


def _rounding(quantized: keras.Model, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The codes that the file makes of what Keras has quantized in front, and Keras's own."""
    (operation,) = (one for one in graph.operations if isinstance(one, _NEW))
    network = Network(quantized)
    node = next(one for one in network if call_name(one) == operation.output)
    layer, codes = node.layer, graph.codes(operation.output)
    made = keras_tensors(quantized, zoo.images_for(quantized).astype(np.float32))
    read = made[call_name(network[node.inputs[0]])]
    on_grid = layer.quantize_config.output(tf.constant(read), False, layer.output_variables)
    assert graph.codes(operation.inputs[0]) == codes
    found = operation.simulate(graph, stored(on_grid.numpy(), codes))
    return found, stored(made[operation.output], codes)


def test_training_rounds_as_the_file_does(quantized):
    graph = deployed_graph(quantized, pack="none")
    found, expected = _rounding(quantized, graph)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(expected)) > 20
    differences = local_differences(quantized, graph, zoo.images_for(quantized))
    assert all(not one.beyond(1) for one in differences)


def test_the_file_is_proved_and_runs_on_the_npu_alone(quantized, tmp_path):
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(quantized, path, pack="none")
    images = zoo.images_for(quantized, 16)
    certificate = sat_tf.verify_tflite(quantized, path, images, progress=False)
    assert certificate.codes_differing == 0
    assert set(compile_file(path, "ethos-u55-128").on_cpu) <= {"DEQUANTIZE"}


def test_its_quantizer_is_saved_and_loaded(quantized, tmp_path):
    path = tmp_path / "model.keras"
    quantized.save(path)
    images = zoo.images_for(quantized, 4).astype(np.float32)
    np.testing.assert_array_equal(keras.models.load_model(path)(images), quantized(images))


def _mask() -> keras.Model:
    image = L.Input((6, 6, 3))
    y = L.Conv2D(4, 1)(_conv(8, activation="relu")(image))
    return keras.Model(image, L.UpSampling2D(2, interpolation="bilinear", name="mask")(y))


def test_an_output_is_resized_on_the_codes_of_what_it_reads(tmp_path):
    quantized, path = calibrated(_mask(), POLICY), tmp_path / "model.tflite"
    sat_tf.export_tflite(quantized, path, pack="none")
    graph = deployed_graph(quantized, pack="none")
    resize = next(one for one in graph.operations if isinstance(one, ResizeBilinear))
    assert graph.codes("mask") == graph.codes(resize.inputs[0])
    certificate = sat_tf.verify_tflite(quantized, path, zoo.images_for(quantized), progress=False)
    assert certificate.codes_differing == 0
    for configuration in ("ethos-u55-128", "ethos-u85-256"):
        assert set(compile_file(path, configuration).on_cpu) <= {"DEQUANTIZE"}
    plan = sat_tf.explain(_mask(), POLICY)
    assert "it rounds to the codes of" in str(plan) or plan["mask"].fate.name == "MOVES"


def test_for_cpus_nothing_changes():
    model = MODELS["resized"]()
    for target in ("litert", "micro", None):
        quantized = sat_tf.quantize_model(model, dataclasses.replace(POLICY, target=target))
        configs = [getattr(layer, "quantize_config", None) for layer in quantized.layers]
        assert not any(config.around for config in configs if config)


def test_gradients_reach_what_is_read_and_the_clipping_level():
    quantized = calibrated(MODELS["large"](), POLICY)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(quantized(zoo.images_for(quantized, 8).astype(np.float32)) ** 2)
    found = tape.gradient(loss, quantized.trainable_variables)
    assert any("clipping_level" in one.name for one in quantized.trainable_variables)
    assert all(np.any(gradient.numpy() != 0.0) for gradient in found)


def test_keras_3_trains_the_same(tmp_path):
    layers = keras3.layers
    image = keras3.Input((8, 8, 3))
    y = layers.Conv2D(8, 3, activation="relu")(image)
    y = layers.AveragePooling2D(2)(y)
    y = layers.Conv2D(8, 3, padding="same", activation="relu")(y)
    y = layers.UpSampling2D(2, interpolation="bilinear")(y)
    y = layers.Flatten()(layers.Conv2D(4, 3)(y))
    model = keras3.Model(image, layers.Dense(3)(y))
    images = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3)).astype(np.float32)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, POLICY), images, progress=False)
    places = [getattr(layer, "place", "") for layer in quantized.layers]
    assert places.count("around") == 2
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(quantized, path, pack="none")
    certificate = sat_tf.verify_tflite(quantized, path, images.astype(np.uint8), progress=False)
    assert certificate.codes_differing == 0
