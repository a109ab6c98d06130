"""Keras 3 models are quantized, trained and exported as what they are."""

import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.commands import main
from sat_tf.keras3 import twin, variable_values
from sat_tf.keras3.quantized_layer import QuantizedLayer
from tests.export.proofs import proved
from tests.keras3 import models
from tests.keras3.models import digits_network, pixels_and_labels
from tests.keras3.processes import run_on
from tests.keras3.training import Batches

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import keras3_applications

pytestmark = pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning")

L, W4A4 = keras.layers, sat_tf.BitPolicy.mobile(4)


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


@pytest.fixture
def network():
    keras.utils.set_random_seed(5)
    return digits_network()


def _calibrated(images):
    keras.utils.set_random_seed(5)
    return sat_tf.calibrate(sat_tf.quantize_model(digits_network(), W4A4), images)


calibrated = pytest.fixture(scope="module")(_calibrated)
own = pytest.fixture(_calibrated)  # to be changed


@pytest.fixture(scope="module")
def images():
    return pixels_and_labels(64)[0]


def fit(model, steps=8):
    images, labels = pixels_and_labels(16 * steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    return model.fit(images, labels, batch_size=16, verbose=0, epochs=2).history["loss"]


def assert_same_output_variables(model, by_tf_keras, rtol=0.0):
    for layer in by_tf_keras.layers:
        for name, variable in getattr(layer, "output_variables", {}).items():
            own = numpy(model.get_layer(layer.name).output_variables[name])
            np.testing.assert_allclose(own, variable.numpy(), rtol=rtol, err_msg=layer.name)


def assert_same_when_loaded(model, images, path):
    """Returns what the model is after saving and loading."""
    model.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(numpy(loaded(images)), numpy(model(images)))
    return loaded


def test_a_keras_3_model_becomes_a_keras_3_model_with_the_plan_of_its_twin(network):
    quantized = sat_tf.quantize_model(network, W4A4)
    assert isinstance(quantized, keras.Model)
    by_tf_keras = sat_tf.quantize_model(sat_tf.from_keras3(network), W4A4)
    names = [[layer.name for layer in model.layers] for model in (quantized, by_tf_keras)]
    assert names[0] == names[1]
    assert sum(isinstance(layer, QuantizedLayer) for layer in quantized.layers) >= 8
    assert not any(isinstance(layer, QuantizedLayer) for layer in network.layers)
    assert sat_tf.explain(quantized).rows == sat_tf.explain(by_tf_keras).rows
    assert sat_tf.explain(quantized).policy.weight_bits == 4


@pytest.mark.essential
def test_it_computes_the_codes_of_its_twin(calibrated, images):
    found, expected = (numpy(of(images[:32])) for of in (calibrated, twin.twin_of(calibrated)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.max(np.abs(expected)))


@pytest.mark.thorough
def test_calibration_and_reconstruction_give_it_what_its_twin_gets(network, own, images):
    float_twin = sat_tf.from_keras3(network)
    by_tf_keras = sat_tf.calibrate(sat_tf.quantize_model(float_twin, W4A4), images)
    assert_same_output_variables(own, by_tf_keras)
    expected = sat_tf.reconstruct(by_tf_keras, float_twin, images, steps=4, progress=False)
    found = sat_tf.reconstruct(own, network, images, steps=4, progress=False)
    assert found.kept
    assert found.error_after == pytest.approx(expected.error_after, rel=1e-6)
    assert_same_output_variables(own, by_tf_keras, rtol=1e-6)


_RECONSTRUCTED = """
import keras, numpy as np, sat_tf
from tests.keras3.models import digits_network, pixels_and_labels
from tests.keras3.processes import run_on
keras.utils.set_random_seed(5)
network, images = digits_network(), pixels_and_labels(64)[0]
quantized = sat_tf.calibrate(sat_tf.quantize_model(network, 3), images, progress=False)
before = np.array(keras.ops.convert_to_numpy(quantized(images)))
found = sat_tf.reconstruct(quantized, network, images, steps=10, progress=False)
wanted, after = (keras.ops.convert_to_numpy(model(images)) for model in (network, quantized))
nearer = np.sum((after - wanted) ** 2) < np.sum((before - wanted) ** 2)
print(keras.backend.backend(), found.kept, nearer)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_it_is_reconstructed_on_every_backend(backend):
    printed = run_on(backend, "-W", "ignore", "-c", _RECONSTRUCTED)
    assert printed.splitlines()[-1] == f"{backend} True True"


def test_it_learns_and_its_file_computes_the_codes_of_its_twin(own, tmp_path):
    losses = fit(own)
    assert losses[-1] < losses[0]
    assert [v.name for v in own.trainable_variables].count("clipping_level") >= 3
    images, labels = pixels_and_labels(64)
    path = tmp_path / "model.tflite"
    _, certificate = proved(own, path, images.astype(np.uint8), labels=labels)
    assert certificate.codes_compared > 10_000


def test_where_the_backend_answers_otherwise_than_the_file_is_said(calibrated, images, monkeypatch):
    twin.warn_of_other_answers(calibrated, images.astype(np.uint8))  # nothing to say
    another = twin.twin_of(sat_tf.quantize_model(digits_network(), W4A4))  # of other weights
    monkeypatch.setattr(twin, "twin_of", lambda _: another)
    said = []
    for at_once in (twin._VALUES_AT_ONCE, 1):  # all images, and one after the other
        monkeypatch.setattr(twin, "_VALUES_AT_ONCE", at_once)
        with pytest.warns(UserWarning, match=r"on \d+ of 64 images its file") as found:
            twin.warn_of_other_answers(calibrated, images.astype(np.uint8))
        said.append([str(one.message) for one in found])
    assert said[0] == said[1]


@pytest.mark.thorough
def test_what_is_trained_and_saved_is_loaded_and_goes_on(own, tmp_path):
    fit(own)
    images, labels = pixels_and_labels(16)
    loaded = assert_same_when_loaded(own, images, tmp_path / "model.keras")
    assert sat_tf.explain(loaded, W4A4).rows == sat_tf.explain(own, W4A4).rows
    loaded.fit(images, labels, verbose=0)
    as_tf_keras = sat_tf.from_keras3(tmp_path / "model.keras")
    assert isinstance(as_tf_keras, tf_keras.Model)
    # The command exports it, and Keras itself as a SavedModel.
    assert main.main(["export", str(tmp_path / "model.keras")]) == 0
    assert (tmp_path / "model.tflite").is_file()
    own.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")  # whose variables go with it
    np.testing.assert_allclose(saved.serve(images), numpy(own(images)), atol=1e-4)


def test_another_policy_keeps_what_was_learnt(own):
    for variable in own.trainable_variables:
        variable.assign(1.1 * variable)
    fewer = sat_tf.requantize(own, sat_tf.BitPolicy.mobile(2))
    assert isinstance(fewer, keras.Model)
    one, other = (model.get_layer("quant_conv_1") for model in (own, fewer))
    np.testing.assert_array_equal(numpy(one.layer.kernel), numpy(other.layer.kernel))
    quantizers = [other.weight_quantizer, fewer.get_layer("quant_conv_2").weight_quantizer]
    assert [each.get_config()["num_bits"] for each in quantizers] == [8, 2]  # 8 in the first layer


def test_what_the_rewrite_has_changed_is_not_done_twice(tmp_path):
    conv = L.Conv1D(8, 3, padding="causal", activation="relu", name="conv")
    model = keras.Sequential([keras.Input((32, 4)), conv, L.Dense(4)])
    values = np.random.RandomState(0).normal(size=(8, 32, 4)).astype(np.float32)
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=8, input_type="int8")
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), values)
    found, expected = numpy(quantized(values)), numpy(model(values))
    assert found.shape == expected.shape
    assert np.max(np.abs(found - expected)) < 0.05 * np.max(np.abs(expected))
    assert sat_tf.requantize(quantized, policy).output_shape == (None, 32, 4)


def test_a_quantized_model_that_is_another_in_keras_3_is_refused(network, monkeypatch):
    kept = L.Conv2D.from_config

    def dilated(config):
        is_dense = set(config["strides"]) == {1}
        return kept({**config, "dilation_rate": 2} if is_dense else config)

    monkeypatch.setattr(L.Conv2D, "from_config", dilated)
    with pytest.raises(ValueError, match=r"conv_1: received a Conv2D whose output differs"):
        sat_tf.quantize_model(network, W4A4)


@pytest.mark.thorough
def test_a_kernel_that_is_frozen_alone_stays_so(own):
    layer = own.get_layer("quant_conv_2")
    layer.layer.trainable = False
    count = len(own.trainable_variables)
    fewer = sat_tf.requantize(own, sat_tf.BitPolicy.mobile(2))
    for made in (sat_tf.from_keras3(own), fewer, sat_tf.from_keras3(fewer)):
        assert len(made.trainable_variables) == count
    layer.layer.trainable = True
    assert len(sat_tf.from_keras3(own).trainable_variables) > count


def test_a_setting_that_is_changed_later_is_exported(own, images):
    before = twin.twin_of(own)
    assert twin.twin_of(own) is before
    own.layers[-1].layer.activation = keras.activations.softmax
    after = twin.twin_of(own)
    assert after is not before
    found = after(images).numpy()
    np.testing.assert_allclose(found, numpy(own(images)), atol=1e-5)
    assert sat_tf.explain(own).policy.weight_bits == 4


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_operations_in_mixed_precision_compute_what_those_of_keras_3_do(precision):
    try:
        keras.config.set_dtype_policy(precision)
        image = keras.Input((8, 8, 3))
        x = L.Conv2D(6, 3, activation="relu")(image)
        x = (x + L.Conv2D(6, 1)(x)) * 0.5
        x = keras.ops.mean(x * keras.ops.sigmoid(x), axis=(1, 2))
        model = keras.Model(image, L.Dense(3, dtype="float32")(x))
        quantized = sat_tf.quantize_model(model, W4A4)
    finally:
        keras.config.set_dtype_policy("float32")
    assert sum(isinstance(layer, QuantizedLayer) for layer in quantized.layers) >= 8
    assert {layer.dtype for layer in quantized.layers[1:-1]} == {"float32"}
    try:  # None is set, so that it is that of floats
        tf_keras.backend.set_floatx("float64")
        assert tf_keras.mixed_precision.global_policy().name == "float64"
    finally:
        tf_keras.backend.set_floatx("float32")


def test_its_settings_in_training_stay_those_of_keras_3():
    image = keras.Input((8, 8, 3), name="image")
    x = L.RandomTranslation(0.1, 0.1, fill_mode="nearest", name="shifted")(image)
    conv = L.Conv2D(4, 3, activation="relu", kernel_regularizer="l2", name="conv")
    x = L.Dropout(0.3, seed=7, name="dropped")(L.Flatten()(conv(x)))
    model = keras.Model(image, L.Dense(10, name="logits")(x))
    model.get_layer("logits").trainable = False
    quantized = sat_tf.quantize_model(model, W4A4)
    layers = {layer.name: getattr(layer, "layer", layer) for layer in quantized.layers}
    layers = {name.removeprefix("quant_"): layer for name, layer in layers.items()}
    assert (layers["shifted"].fill_mode, layers["dropped"].rate) == ("nearest", 0.3)
    assert float(numpy(layers["conv"].kernel_regularizer.l2)) == pytest.approx(0.01)
    assert len(quantized.losses) == 1
    assert not quantized.get_layer("quant_logits").trainable
    assert not any("logits" in variable.path for variable in quantized.trainable_variables)


@pytest.mark.thorough
def test_a_model_of_a_class_of_its_own_keeps_it(network):
    class Scaled(keras.Model):
        def __init__(self, *args, factor=1.0, **kwargs):
            super().__init__(*args, **kwargs)
            self.factor = factor

        def compute_loss(self, *args, **kwargs):
            return self.factor * super().compute_loss(*args, **kwargs)

    own = Scaled(network.inputs, network.outputs, factor=0.0)
    quantized = sat_tf.quantize_model(own, W4A4)
    assert isinstance(quantized, Scaled)
    assert fit(quantized, steps=2)[-1] == 0.0


@pytest.mark.thorough
def test_nested_shared_and_several(network, images, tmp_path):
    keras.utils.set_random_seed(1)
    left, right = (keras.Input((8, 8, 3), name=name) for name in ("left", "right"))
    backbone = keras.Model(network.inputs, network.get_layer("mean").output, name="backbone")
    one, other = backbone(left), backbone(right)
    far = keras.ops.abs(one - other)
    outputs = {"same": L.Dense(2, name="same")(far), "which": L.Dense(10, name="which")(one)}
    model = keras.Model({"left": left, "right": right}, outputs)
    given = {"left": images, "right": images[::-1]}
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, W4A4), given)
    found = quantized(given)
    assert set(found) == {"same", "which"}
    pixels = [array.astype(np.uint8) for array in given.values()]
    proved(quantized, tmp_path / "model.tflite", pixels)
    expected = twin.twin_of(quantized)(given)
    # Other backends round sums otherwise: an image with a value at a tie is another one then.
    least = 1.0 if keras.backend.backend() == "tensorflow" else 0.9
    for name in found:
        off = np.max(np.abs(numpy(found[name]) - expected[name].numpy()), axis=1)
        assert np.mean(off < 1e-4) >= least


@pytest.mark.thorough
def test_attention_learns_and_is_exported(images, tmp_path):
    # Its own attention, one that is called by names, and a product of two tensors.
    keras.utils.set_random_seed(2)
    image = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(8, 2, strides=2, name="patches")(L.Rescaling(1 / 128, -1.0)(image))
    x = L.Reshape((16, 8), name="tokens")(x)
    attention = L.MultiHeadAttention(2, 4, dropout=0.1, name="attention")
    x = L.Add(name="added")([x, attention(x, x)])
    query = L.Dense(8, name="query")(x)
    cross = L.MultiHeadAttention(2, 4, name="cross")
    x = cross(query=query, value=x, key=x, use_causal_mask=True)
    x = keras.ops.matmul(x, keras.ops.transpose(query, (0, 2, 1)))
    x = L.Dense(10, name="head")(L.GlobalAveragePooling1D(name="mean")(x))
    network = keras.Model(image, x)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(network, 4), images)
    assert quantized.get_layer("quant_attention_dropout").layer.rate == 0.1
    before = [numpy(variable).copy() for variable in quantized.trainable_variables]
    assert fit(quantized)[-1] < 3.0
    for variable, value in zip(quantized.trainable_variables, before, strict=True):
        # A softmax does not change where all keys move alike.
        if "attention" in variable.path and not variable.path.endswith(("key/bias", "skew")):
            assert not np.array_equal(numpy(variable), value), variable.path
    again = assert_same_when_loaded(quantized, images, tmp_path / "attention.keras")
    finer = sat_tf.requantize(again, 8)
    for model in (quantized, finer):
        proved(model, tmp_path / "model.tflite", images.astype(np.uint8))
    expected = twin.twin_of(finer)(images)
    np.testing.assert_allclose(numpy(finer(images)), expected, atol=1e-4)


@pytest.mark.thorough
def test_operations_on_truths_and_others_stay_float(tmp_path):
    ops = keras.ops
    image = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(4, 3, name="conv")(L.Rescaling(1 / 64)(image))
    x = ops.where(x > 0.0, x, 0.1 * x)
    near = ops.logical_and(x >= -2, ops.logical_not(ops.equal(x, x[:, :1])))
    far = ops.logical_or(ops.less(x, -3.0), ops.not_equal(x, 0.5))
    x = ops.where(ops.logical_or(near, far), x, ops.floor(x)) + ops.cast(x <= 1.0, "float32")
    x = ops.normalize(x, axis=-1) + ops.log_softmax(x) + ops.reciprocal(1.0 + ops.square(x))
    x = ops.mean(x, axis=(1, 2)) + ops.prod(x[:, :1, 0], axis=1)
    model = keras.Model(image, L.Dense(3, name="head")(x))
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float")
    images, labels = pixels_and_labels(32)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), images)
    expected = numpy(model(images))
    assert np.mean(np.abs(numpy(quantized(images)) - expected)) < 0.05 * np.ptp(expected)
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    quantized.fit(images, labels % 3, verbose=0)
    assert_same_when_loaded(quantized, images, tmp_path / "model.keras")
    proved(quantized, tmp_path / "model.tflite", images.astype(np.uint8))


def test_a_backend_that_was_changed_after_the_import_is_warned_of(network, monkeypatch):
    other = "torch" if keras.backend.backend() != "torch" else "jax"
    monkeypatch.setenv("KERAS_BACKEND", other)
    with pytest.warns(UserWarning, match=f"KERAS_BACKEND is '{other}'.*before the first import"):
        sat_tf.quantize_model(network, W4A4)


def test_a_twin_that_differs_is_refused_by_its_first_layer(monkeypatch):
    class Halved(L.Dense):
        def call(self, inputs):
            return 0.5 * super().call(inputs)

    monkeypatch.setattr(Halved, "__module__", "keras.src.layers.core.dense")
    Halved.__name__ = "Dense"
    layers = L.Conv2D(4, 3, name="conv"), L.Flatten(), Halved(3, name="half")
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    with pytest.raises(ValueError, match=r"half: received a Dense whose output differs"):
        sat_tf.quantize_model(model, W4A4)
    assert [layer.name for layer in model.layers][-1] == "half"


@pytest.mark.thorough
def test_a_sequential_model_becomes_one_that_is_trained(tmp_path):
    keras.utils.set_random_seed(2)
    layers = [keras.Input((8, 8, 3)), L.Rescaling(1 / 255, name="rescaling")]
    layers += [L.Conv2D(8, 3, activation="relu", name="conv"), L.Flatten()]
    model = keras.Sequential([*layers, L.Dense(10, activation="softmax", name="head")])
    quantized = sat_tf.quantize_model(model, W4A4)
    images, labels = pixels_and_labels(64)
    sat_tf.calibrate(quantized, images)
    quantized.compile("adam", "sparse_categorical_crossentropy")
    first, *_, last = quantized.fit(images, labels, epochs=5, verbose=0).history["loss"]
    assert last < first
    np.testing.assert_allclose(np.sum(numpy(quantized(images)), axis=-1), 1.0, rtol=1e-5)
    proved(quantized, tmp_path / "model.tflite", images.astype(np.uint8))


@pytest.fixture(scope="module")
def quantized():
    """A model before its calibration, and its weights then."""
    keras.utils.set_random_seed(5)
    model = sat_tf.quantize_model(digits_network(), W4A4)
    return model, model.get_weights()


def _tensors_of_torch(images):
    torch = pytest.importorskip("torch")
    return torch.utils.data.TensorDataset(torch.from_numpy(images), torch.zeros(len(images)))


GIVEN = {
    "batches": lambda images: Batches(images, np.zeros(64)),
    "variable": keras.Variable,
    "list": lambda images: [images],
    "dictionary": lambda images: {"image": images},
    "torch data": _tensors_of_torch,
    "torch": lambda images: pytest.importorskip("torch").tensor(images, requires_grad=True),
}


@pytest.mark.parametrize("given", [*GIVEN.values()], ids=GIVEN)
def test_images_for_calibration_come_as_keras_takes_them(quantized, calibrated, images, given):
    model, start = quantized
    model.set_weights(start)
    sat_tf.calibrate(model, given(images))
    for one, other in zip(calibrated.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))


def test_images_to_verify_with_come_as_the_model_is_called(calibrated, images, tmp_path):
    pixels = images[:8].astype(np.uint8)
    sat_tf.export_tflite(calibrated, tmp_path / "model.tflite")
    for given in (pixels, [pixels], {"image": pixels}):
        found = sat_tf.verify_tflite(calibrated, tmp_path / "model.tflite", given)
        assert (found.codes_differing, found.num_images) == (0, 8)


def test_a_weight_at_a_tie_has_the_code_in_the_file_that_it_has_in_keras_3(own):
    # Backends differ in the last bit of tanh: as here two latent weights on both sides of a tie.
    pairs = zip(twin.twin_of(own).layers, own.layers, strict=True)
    layers = [(one, layer) for one, layer in pairs if getattr(layer, "weight_quantizer", None)]
    one, layer = layers[-1]
    kernel, quantizer = one.layer.kernel, one.quantize_config.weights
    name, last = (0, 0), np.float32(2e-6) * np.max(np.abs(kernel.numpy()))

    def codes():
        latent = tf.convert_to_tensor(kernel)
        return quantizer.integer_weights(latent, one.kernel_variables).codes.numpy()

    def codes_at(value):
        latent = kernel.numpy()
        latent[name] = value
        kernel.assign(latent)
        return codes()

    low, high = np.float32([-0.3, 0.3]) * np.max(kernel.numpy())
    lowest = codes_at(low)[name]
    while high - low > last:
        middle = np.float32((low + high) / 2)
        low, high = (middle, high) if codes_at(middle)[name] == lowest else (low, middle)
    latent = kernel.numpy()
    latent[name] = high
    layer.layer.kernel.assign(latent)
    expected = codes_at(high)
    assert np.count_nonzero(codes_at(low) != expected) == 1
    variable_values.keep_codes(one, layer.effective_kernel())
    np.testing.assert_array_equal(codes(), expected)
    np.testing.assert_allclose(kernel.numpy(), latent, rtol=0, atol=4 * last)
    # One that is far from a tie is no matter of rounding.
    far = codes_at(np.float32(-0.9) * np.max(np.abs(latent)))
    variable_values.keep_codes(one, layer.effective_kernel())
    np.testing.assert_array_equal(codes(), far)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "build", [models.mobile, pytest.param(models.functions, marks=pytest.mark.slow)]
)
def test_a_keras_3_model_becomes_an_integer_file_with_its_codes(build, tmp_path):
    model = sat_tf.from_keras3(build())
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8))
    shape = (32, *model.input_shape[1:])
    images = np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8)
    sat_tf.calibrate(quantized, images.astype(np.float32))
    report, found = proved(quantized, tmp_path / "model.tflite", images)
    assert {name.split()[0] for name in report.float_operators} == {"DEQUANTIZE"}  # the logits
    assert found.runtimes["xnnpack"].codes_compared > 0


@pytest.mark.thorough
def test_outputs_keep_their_names_and_a_saved_model_knows_them(tmp_path):
    picture = L.Input((8, 8, 3), name="picture")
    mean = L.GlobalAveragePooling2D()(L.Conv2D(4, 3)(picture))
    inner = keras.Sequential([L.Input((4,)), L.Dense(3), L.Softmax()], name="probs")
    outputs = [inner(mean), L.Dense(2, activation="sigmoid", name="box")(mean)]
    q = sat_tf.quantize_model(keras.Model(picture, outputs), sat_tf.BitPolicy.mobile(8))
    images = np.random.default_rng(3).integers(0, 256, (8, 8, 8, 3)).astype(np.float32)
    sat_tf.calibrate(q, images)
    q.save(tmp_path / "q.keras")
    for model in (q, keras.saving.load_model(tmp_path / "q.keras")):
        sat_tf.export_tflite(model, tmp_path / "model.tflite")
        run = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
        assert list(run.get_input_details()) == ["picture"]
        assert set(run.get_output_details()) == {"probs", "box"}


def test_audit_converts_a_file_of_keras_3_and_says_so(tmp_path, capsys):
    models.normalized().save(tmp_path / "model.keras")
    assert main.main(["audit", str(tmp_path / "model.keras")]) == 0
    captured = capsys.readouterr()
    words = " ".join((captured.out + captured.err).split())
    assert f"saved by Keras {keras.__version__}; converted to tf_keras" in words
    assert "head" in words


def _families():
    for name in keras3_applications.FAMILIES:
        tier = pytest.mark.thorough if name == "MobileNet" else pytest.mark.slow
        yield pytest.param(name, marks=tier)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [*_families()])
def test_a_network_of_keras_trains_a_step_and_no_code_of_its_file_differs(name):
    row = keras3_applications.make_row(name)
    assert float(row["largest difference of a layer"]) <= 1e-5
    assert row["loss is finite"]
    assert row["codes compared"] > 1000
    assert row["codes differing"] == 0
