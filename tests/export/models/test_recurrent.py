"""LSTMs of both Kerases: trained as the file computes them, and exported without a difference."""

import keras as keras3  # noqa: TID251 -- models of both Kerases
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import sat_tf
from sat_tf.exact.device.kit import write_kit
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.recurrence import Lstm
from sat_tf.graph.operation_layers import LongShortTermMemory
from sat_tf.qat.wrapper import QuantizedLayer
from tests.exact.device.kits import checked_here, unpacked
from tests.export.proofs import calibrated, deployed, differing_codes, proved

KERASES = {"keras2": tf_keras, "keras3": keras3}
POLICY = sat_tf.BitPolicy.mobile(8, input_type="int8")
FLOAT = sat_tf.BitPolicy.mobile(8, input_type="int8", unsupported="float")
STEPS = 8


def _waves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sines of random frequencies, and the value after the last step."""
    rng = np.random.default_rng(seed)
    phase, frequency = rng.uniform(0, 6, (count, 1)), rng.uniform(0.2, 0.9, (count, 1))
    waves = np.sin(phase + frequency * np.arange(STEPS + 1)).astype(np.float32)
    return waves[:, :STEPS, np.newaxis], waves[:, STEPS:]


WAVES, NEXT = _waves(512, 1)
HELD_OUT, EXPECTED = _waves(128, 2)


def _forecast(keras):
    """Two LSTMs, one of which passes all its states on, trained to forecast."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    first = layers.LSTM(8, return_sequences=True, dropout=0.01, name="first")
    second = layers.LSTM(6, use_bias=False, name="second")
    model = keras.Sequential([keras.Input((STEPS, 1)), first, second, layers.Dense(1, name="head")])
    model.compile(keras.optimizers.Adam(0.02), "mse")
    model.fit(WAVES, NEXT, batch_size=32, epochs=6, verbose=0)
    return model


@pytest.fixture(scope="module", params=KERASES)
def forecast(request):
    """A trained model, and the quantized one after `calibrate` alone."""
    model = _forecast(KERASES[request.param])
    quantized = sat_tf.quantize_model(model, POLICY)
    sat_tf.calibrate(quantized, WAVES[:128], progress=False)
    return KERASES[request.param], model, quantized


@pytest.mark.thorough
def test_a_forecast_is_exported_without_a_difference_and_near_to_float(forecast, tmp_path):
    _, model, quantized = forecast
    float_values = model.predict(HELD_OUT, verbose=0)
    off = quantized.predict(HELD_OUT, verbose=0) - float_values
    # So few states have 8 bits each: 2 to 6 % of the deviation of the forecasts.
    assert np.sqrt(np.mean(off**2)) < 0.08 * np.std(float_values)
    path = tmp_path / "model.tflite"
    file = {"snap_biases": True}
    _, certificate = proved(quantized, path, HELD_OUT[:40], file=file)
    # Kernels round twice what gates sum up, and states pass it on: 2 to 8 %, by one code.
    assert certificate.trained_differing < 0.12
    assert not certificate.unexplained
    graph = read_graph(path.read_bytes(), "model")
    lstms = [one for one in graph.operations if isinstance(one, Lstm)]
    assert [one.units for one in lstms] == [8, 6]
    assert all(one.hidden == one.state == one.made for one in lstms)
    # Every code, with the rules of each runtime.
    found = differing_codes(path.read_bytes(), HELD_OUT[:10])
    assert found == dict.fromkeys(found, 0)
    assert len(found) >= 4 * 3


@pytest.mark.thorough
def test_training_goes_on_and_is_saved(forecast, tmp_path):
    keras, _, calibrated = forecast
    path = tmp_path / "model.keras"
    calibrated.save(path)
    quantized = keras.models.load_model(path, compile=False)
    expected = calibrated.predict(HELD_OUT, verbose=0)
    np.testing.assert_array_equal(quantized.predict(HELD_OUT, verbose=0), expected)
    # A task that it was not trained for: the next value, doubled.
    quantized.compile(keras.optimizers.Adam(0.005), "mse")
    history = quantized.fit(WAVES, 2 * NEXT, batch_size=32, epochs=3, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    proved(quantized, tmp_path / "model.tflite", HELD_OUT[:8])


def _quantized(*layers, policy=POLICY, shape=(STEPS, 3), seed=2):
    tf_keras.utils.set_random_seed(seed)
    model = tf_keras.Sequential([tf_keras.Input(shape), *layers, tf_keras.layers.Dense(2)])
    values = np.random.default_rng(3).normal(size=(64, *shape)).astype(np.float32)
    return sat_tf.calibrate(sat_tf.quantize_model(model, policy), values, progress=False), values


L = tf_keras.layers


def test_what_the_file_makes_of_the_settings_of_a_layer():
    regularized = {"activity_regularizer": "l2", "kernel_regularizer": "l2"}
    quantized, _ = _quantized(L.LSTM(4, name="states", dropout=0.5, **regularized))
    names = [getattr(layer, "layer", layer).name for layer in quantized.layers]
    assert names[2:6] == ["states_dropout", "states", "states_last", "states_regularization"]
    (operation,) = [one for one in deployed(quantized).operations if isinstance(one, Lstm)]
    layer = quantized.get_layer("quant_states")
    assert isinstance(layer, QuantizedLayer)
    assert isinstance(layer.layer, LongShortTermMemory)
    largest = float(layer.largest_cell)
    assert 0.0 < largest <= 2.0**operation.cell_bits
    # Each gate of each matrix has a scale, with which its largest weight is code 127.
    weights = layer.layer.get_weights()
    for of_file, scales, of_keras in zip(
        operation.kernels, operation.scales, weights, strict=False
    ):
        for gate in range(4):
            rows, scale = slice(4 * gate, 4 * gate + 4), scales[4 * gate]
            assert np.max(np.abs(of_file[rows])) == 127
            assert np.max(np.abs(of_keras.T[rows] / scale - of_file[rows])) < 0.501


@pytest.mark.thorough
@pytest.mark.parametrize("keras", KERASES.values(), ids=KERASES)
@pytest.mark.parametrize("bits", [2, 4])
def test_weights_of_fewer_bits_are_trained_on_codes_of_int8(bits, keras, tmp_path):
    keras.utils.set_random_seed(2)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((STEPS, 1)), layers.LSTM(6, name="states"), layers.Dense(1)]
    )
    policy = sat_tf.BitPolicy(weight_bits=bits, activation_bits=8, input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, WAVES[:128], progress=False)
    quantized.compile(keras.optimizers.Adam(0.01), "mse")
    losses = quantized.fit(WAVES, NEXT, batch_size=32, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * losses[0]
    path = tmp_path / "model.keras"
    quantized.save(path)
    loaded = keras.models.load_model(path, compile=False)
    np.testing.assert_array_equal(loaded.predict(HELD_OUT), quantized.predict(HELD_OUT))
    path = tmp_path / "model.tflite"
    _, certificate = proved(loaded, path, HELD_OUT[:20], file={"snap_biases": True})
    assert certificate.trained_differing < 0.12
    graph = read_graph(path.read_bytes(), "model")
    (lstm,) = [one for one in graph.operations if isinstance(one, Lstm)]
    top = 2 ** (bits - 1) - 1
    assert [np.max(np.abs(kernel)) for kernel in lstm.kernels] == [top, top]


@pytest.mark.thorough
def test_a_kit_of_an_lstm_begins_again_with_each_image(tmp_path):
    quantized, values = _quantized(L.LSTM(4))
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(quantized, path)
    kit = write_kit(path, values[:5], tmp_path / "kit.zip", codes=True)
    done = checked_here(unpacked(kit.path, tmp_path / "kit"), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"0 of {len(kit.compared)} tensors differ" in done.stdout


@pytest.mark.parametrize("seed", [2, 4])
def test_gradients_go_through_all_steps(seed):
    quantized, values = _quantized(L.LSTM(4), seed=seed)
    source = tf.Variable(values[:4])
    # `calibrate` leaves the skew at 0 where it gains little, as by seed 4: it has no gradient.
    weights = [weight for weight in quantized.trainable_variables if "skew" not in weight.name]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(quantized(source, training=True)))
    of_source, *of_weights = tape.gradient(loss, [source, *weights])
    assert np.all(np.any(of_source.numpy() != 0.0, axis=(0, 2)))
    for weight, gradient in zip(weights, of_weights, strict=True):
        assert gradient.shape == weight.shape, weight.name
        assert np.any(gradient.numpy() != 0.0), weight.name


def test_an_lstm_of_any_neighbours_has_codes(tmp_path):
    """Behind a rectifier, beside another in a concatenation, and in front of one of fewer bits."""
    tf_keras.utils.set_random_seed(2)
    read = tf_keras.Input((STEPS, 3))
    x = L.Dense(5, activation="relu")(read)
    both = L.Concatenate()([L.LSTM(3, return_sequences=True)(x), x])
    model = tf_keras.Model(read, L.Dense(2)(L.LSTM(4)(both)))
    policy = sat_tf.BitPolicy.mobile(4, input_type="int8")
    values = np.random.default_rng(3).normal(size=(64, STEPS, 3)).astype(np.float32)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), values, progress=False)
    proved(quantized, tmp_path / "model.tflite", values[:4])


def test_an_lstm_that_drops_states_is_refused_by_name():
    read = tf_keras.Input((STEPS, 3))
    states = L.LSTM(4, name="states", recurrent_dropout=0.5)(read)
    with pytest.raises(ValueError, match=r"received an LSTM with recurrent_dropout=0\.5, expected"):
        sat_tf.quantize_model(tf_keras.Model(read, L.Dense(2)(states)), POLICY)


def test_a_plan_says_what_an_lstm_becomes():
    read = tf_keras.Input((STEPS, 3))
    x = L.LSTM(4, return_sequences=True, name="states")(L.Dense(3)(read))
    plan = sat_tf.explain(tf_keras.Model(read, x), 8)
    (layer,) = [layer for layer in plan.layers if layer.name == "states"]
    assert "its states, read by" in layer.activation_reason
    assert layer.activation.bits == layer.weights.bits == 8
    plan = sat_tf.explain(tf_keras.Model(read, x), sat_tf.BitPolicy.mobile(4))
    assert plan["states"].weights.bits == 4


@pytest.mark.thorough
def test_a_model_of_an_lstm_alone_is_quantized_and_its_size_foreseen(tmp_path):
    read = tf_keras.Input((STEPS, 3))
    model = tf_keras.Model(read, L.LSTM(4, name="states")(read))
    values = np.random.default_rng(3).normal(size=(32, STEPS, 3)).astype(np.float32)
    policy = sat_tf.BitPolicy.mobile(4, input_type="int8")
    plan = sat_tf.explain(model, policy)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), values, progress=False)
    path = tmp_path / "model.tflite"
    proved(quantized, path, values[:4])
    assert plan.bytes == pytest.approx(path.stat().st_size, rel=0.1)


def test_sequences_of_open_length_are_refused_by_name():
    read = tf_keras.Input((None, 3))
    model = tf_keras.Model(read, L.Dense(2)(L.LSTM(4)(read)))
    with pytest.raises(ValueError, match="sequences of open length, expected a known number"):
        sat_tf.quantize_model(model, POLICY)


def test_other_forms_are_left_float_on_request():
    quantized, _ = _quantized(L.LSTM(4, recurrent_activation="tanh"), policy=FLOAT)
    assert not any(isinstance(one, Lstm) for one in deployed(quantized).operations)


@pytest.mark.parametrize("keras", [tf_keras, keras3], ids=["keras2", "keras3"])
def test_calls_of_one_lstm_are_operators_of_one_range(keras, tmp_path):
    L = keras.layers
    keras.utils.set_random_seed(0)
    first, second, states = L.Input((4, 3)), L.Input((4, 3)), L.LSTM(4, name="states")
    both = L.Concatenate()([states(first), states(second)])
    model = keras.Model([first, second], L.Dense(2, name="head")(both))
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(32, 4, 3)).astype(np.float32) for _ in range(2)]
    policy = sat_tf.BitPolicy.mobile(8, input_type="int8")
    quantized = calibrated(model, policy, values)
    report, certificate = proved(quantized, tmp_path / "model.tflite", values)
    assert not report.float_layers
    assert certificate.operators["UNIDIRECTIONAL_SEQUENCE_LSTM"] == 2
    off = quantized.predict(values, verbose=0) - model.predict(values, verbose=0)
    assert np.max(np.abs(off)) < 0.05


def test_masks_that_a_caller_of_keras_3_gives_are_not_dropped():
    L = keras3.layers
    read = L.Input((4, 3))
    given = np.tril(np.ones((1, 4, 4), bool))
    outputs = {
        "sm: received a Softmax, whose mask": L.Softmax(name="sm")(L.Dense(4)(read), mask=given),
        "states: received an LSTM, expected calls without a mask": L.LSTM(2, name="states")(
            read, mask=keras3.ops.any(read > 0.0, axis=-1)
        ),
    }
    for text, output in outputs.items():
        model = keras3.Model(read, L.Dense(2)(output))
        with pytest.raises(ValueError, match=text):
            sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, input_type="int8"))
