"""Exported: models that nest, share and preprocess, with several inputs and outputs."""

import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.lowering.outputs import with_own_names
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.graph import simulate
from sat_tf.export.operations.graph_file import read_graph, serialize
from sat_tf.export.operations.linear import Linear
from sat_tf.qat.model_class import policy_of
from sat_tf.qat.policy import BitPolicy
from tests.export.proofs import calibrated, proved
from tests.qat import float_models
from tests.qat.models import nested_models

L = keras.layers
IMAGES = float_models.images(32).astype(np.uint8)


def _preprocessed(*front):
    image = keras.Input((8, 8, 3), name="image")
    tensor = image
    for layer in front:
        tensor = layer(tensor)
    tensor = L.Conv2D(4, 3, padding="same", activation="relu", name="conv")(tensor)
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(3, name="classifier")(tensor), name="preprocessed")


def _factor_in_a_sum():
    image = keras.Input((8, 8, 3), name="image")
    total = L.Add(name="add")([image, L.Rescaling(0.5, name="half")(image)])
    tensor = L.Conv2D(4, 3, activation="relu", name="conv")(total)
    return keras.Model(image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(tensor)))


def _slashes():
    """Names with slashes, and those that quantized layers would have."""
    image = keras.Input((8, 8, 3), name="the image")
    tensor = L.Conv2D(4, 3, name="block/conv")(image)
    tensor = L.ReLU(name="quant_block/conv")(L.BatchNormalization(name="block/norm")(tensor))
    tensor = L.Conv2D(4, 1, name="add_to_4_bits")(tensor)
    tensor = L.GlobalAveragePooling2D(name="add")(tensor)
    return keras.Model(image, L.Dense(3, name="block")(tensor), name="slashes")


MODELS = {
    **nested_models.MODELS,
    "factor": lambda: _preprocessed(L.Rescaling(1 / 255, name="rescaling")),
    "offset": lambda: _preprocessed(L.Rescaling(1 / 127.5, -1.0, name="rescaling")),
    "factor_behind_offset": lambda: _preprocessed(
        L.Rescaling(1 / 127.5, -1.0, name="rescaling"), L.Rescaling(2.0, name="factor")
    ),
    "normalized": lambda: _preprocessed(
        L.Rescaling(1 / 255, name="rescaling"),
        L.Normalization(mean=[0.4, 0.5, 0.6], variance=[0.04, 0.05, 0.0], name="norm"),
    ),
    "factor_in_a_sum": _factor_in_a_sum,
    "slashes": _slashes,
}


def _quantized(name, policy=None):
    return calibrated(MODELS[name](), policy or 4, IMAGES)


SLOW = ("nested_in_a_sequential", "partly_normalized", "shared_backbone", "factor_in_a_sum")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in MODELS]
)
def test_xnnpack_computes_the_simulated_integers(name, path):
    model = _quantized(name)
    report, found = proved(model, path, IMAGES)
    assert found.runtimes["xnnpack"].outputs_differing == 0
    assert [operator.split()[0] for operator in report.float_operators] == ["DEQUANTIZE"]
    # The file is read back as it was written.
    graph = read_graph(path.read_bytes(), "file")
    expected = simulate(with_own_names(deployed_graph(model)), IMAGES)
    for tensor, codes in simulate(graph, IMAGES).items():
        np.testing.assert_array_equal(codes, expected[tensor])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["factor", "normalized", "factor_in_a_sum"])
def test_a_model_of_quantized_weights_alone_computes_what_keras_does(name, path):
    model = _quantized(name, BitPolicy(weight_bits=4, activation_bits=None))
    _, found = proved(model, path, IMAGES)
    outputs = model(IMAGES.astype(np.float32)).numpy()
    difference = found.runtimes["xnnpack"].largest_output_difference
    assert difference < 1e-5 * np.abs(outputs).max()


def test_a_plain_factor_costs_nothing():
    plain, rescaled = (
        calibrated(_preprocessed(*front), 4, IMAGES)
        for front in ([], [L.Rescaling(1 / 255, name="rescaling")])
    )
    one, other = deployed_graph(plain), deployed_graph(rescaled)
    assert [type(op) for op in one.operations] == [type(op) for op in other.operations]
    assert other.images[0].scale == 1.0  # the file reads the pixels that the Keras model does


def test_each_use_of_a_shared_layer_has_the_same_codes():
    graph = deployed_graph(_quantized("shared"))
    kernels = [
        op.kernel for op in graph.operations if isinstance(op, Linear) and op.kernel.shape[1] == 3
    ]
    assert len(kernels) == 3  # the stem, and two uses
    np.testing.assert_array_equal(kernels[1], kernels[2])
    content = serialize(graph, {})
    stored = kernels[1].astype(np.int8).tobytes()
    assert content.count(stored) == 1


# -- several inputs and outputs ----------------------------------------------------------------


@pytest.fixture(scope="module")
def detector():
    """Two images, two heads and the features behind them, calibrated."""
    inner = nested_models.backbone()
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 3), name="right")
    both = L.Concatenate(name="both")([inner(left), inner(L.Rescaling(0.5, name="half")(right))])
    mixed = L.Conv2D(8, 3, padding="same", activation="relu", name="mix")(both)
    boxes = L.Conv2D(4, 1, name="boxes")(mixed)
    classes = L.Dense(3, name="classes")(L.GlobalAveragePooling2D(name="pool")(mixed))
    model = keras.Model({"b": left, "a": right}, {"class": classes, "box": boxes}, name="detector")
    return calibrated(model, 4, _given())


def _given():
    """Returns images by the keys of the model's inputs."""
    return {
        "b": IMAGES.astype(np.float32),
        "a": float_models.images(32, seed=9),
    }


def _pixels():
    """In the order of the sorted keys."""
    given = _given()
    return [given["a"].astype(np.uint8), given["b"].astype(np.uint8)]


def test_the_keys_of_dictionaries_are_in_the_files_signature(detector, path):
    sat_tf.export_tflite(detector, path)
    run = Interpreter(str(path)).get_signature_runner()
    assert {name: tuple(found["shape"]) for name, found in run.get_output_details().items()} == {
        "box": (1, 8, 8, 4),
        "class": (1, 3),
    }
    pixels = dict(zip("ab", _pixels(), strict=True))
    made = run(**{key: images[:1] for key, images in pixels.items()})
    expected = detector({key: images[:1] for key, images in _given().items()})
    for key, values in made.items():
        assert np.max(np.abs(values - expected[key])) < 0.2 * np.max(np.abs(expected[key]))


def test_structure_and_order_of_inputs_and_outputs_are_kept(detector):
    assert [tensor.name for tensor in detector.inputs] == ["right", "left"]
    outputs = detector(_given())
    assert {name: tuple(tensor.shape) for name, tensor in outputs.items()} == {
        "box": (32, 8, 8, 4),
        "class": (32, 3),
    }
    detector.get_layer("quant_left_image")
    detector.get_layer("quant_right_image")
    for name in ("quant_boxes", "quant_classes"):
        variables = detector.get_layer(name).output_variables
        assert float(variables["highest"]) > float(variables["lowest"])


@pytest.mark.slow
def test_several_outputs_train(detector):
    model = sat_tf.requantize(detector, BitPolicy.mobile(4))
    model.compile(
        keras.optimizers.SGD(0.01),
        {"class": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "box": "mse"},
    )
    targets = {"class": np.arange(32) % 3, "box": np.zeros((32, 8, 8, 4), np.float32)}
    losses = model.fit(_given(), targets, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_a_file_has_the_inputs_and_outputs_in_the_order_of_the_model(detector, path):
    _, found = proved(detector, path, _pixels())
    assert found.runtimes["xnnpack"].outputs_differing == 0
    assert found.num_images == 32
    graph = read_graph(path.read_bytes(), "file")
    assert [image.name for image in graph.images] == ["right", "left"]
    assert graph.outputs == ("box", "class")
    simulated = simulate(graph, tuple(_pixels()))
    joined = [simulated[name].reshape(32, -1) for name in graph.outputs]
    outputs = Runtime(path.read_bytes(), keep_tensors=False).run(tuple(_pixels()))
    np.testing.assert_array_equal(outputs, np.concatenate(joined, axis=1))


def test_a_saved_model_of_several_outputs_has_the_same_file(detector, tmp_path):
    one = sat_tf.export_tflite(detector, tmp_path / "one.tflite")
    detector.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert set(loaded(_given())) == {"class", "box"}
    assert sat_tf.export_tflite(loaded, tmp_path / "other.tflite").sha256 == one.sha256


# -- images of any size ------------------------------------------------------------------------


def test_a_model_of_images_of_any_size_is_exported_for_one(path):
    image = keras.Input((None, None, 3), name="image")
    tensor = L.Conv2D(4, 3, padding="same", activation="relu", name="conv")(image)
    tensor = L.Dense(3, name="classifier")(L.GlobalAveragePooling2D(name="pool")(tensor))
    model = calibrated(keras.Model(image, tensor), 4, IMAGES)
    sat_tf.export_tflite(model, path, image_size=(8, 8))
    assert sat_tf.verify_tflite(model, path, IMAGES).codes_differing == 0
    sized = sat_tf.export.with_image_size(model, (8, 8))
    assert policy_of(sized) is policy_of(model)
    images = IMAGES.astype(np.float32)
    np.testing.assert_array_equal(sized(images), model(images))
    assert model.input_shape == (None, None, None, 3)
