"""Recurrent layers of both Kerases as layers of single steps, and in both directions."""

import keras as keras3  # noqa: TID251 -- models of both Kerases
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from ai_edge_litert import schema_py_generated as tfl

import sat_tf
from sat_tf.exact.operations.recurrence import Lstm
from sat_tf.graph.layers.recurrent import MOST_STEPS
from sat_tf.graph.rewrite import rewritten
from tests.export.proofs import calibrated, deployed, differing_codes, proved

L = tf_keras.layers
POLICY = sat_tf.BitPolicy.mobile(8, input_type="int8")
STEPS = 5
_FUNCTIONS = {"activation": "relu", "recurrent_activation": "hard_sigmoid"}
_SEQUENCES = {"return_sequences": True}
RECURRENT = {
    "gru": lambda: L.GRU(4, name="states"),
    "reset_before": lambda: L.GRU(4, reset_after=False, go_backwards=True, name="states"),
    "without_bias": lambda: L.GRU(4, use_bias=False, dropout=0.5, name="states", **_SEQUENCES),
    "functions": lambda: L.GRU(4, name="states", **_FUNCTIONS, **_SEQUENCES),
    "simple": lambda: L.SimpleRNN(4, go_backwards=True, name="states", **_SEQUENCES),
    "linear": lambda: L.SimpleRNN(4, activation=None, name="states"),
    "lstm": lambda: L.LSTM(4, name="states", **_FUNCTIONS, **_SEQUENCES),
    "lstm_back": lambda: L.LSTM(4, go_backwards=True, name="states", **_SEQUENCES),
    "both_ways": lambda: L.Bidirectional(L.LSTM(3, **_SEQUENCES), name="states"),
    "sum": lambda: L.Bidirectional(L.SimpleRNN(3, **_SEQUENCES), "sum", name="states"),
    "product": lambda: L.Bidirectional(L.LSTM(3), "mul", name="states"),
    "mean": lambda: L.Bidirectional(L.GRU(3, **_SEQUENCES), "ave", name="states"),
}


def _values(count, *shape, seed=3):
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)


def _model(*layers, keras=tf_keras, shape=(STEPS, 3)):
    """A model with biases as trained ones have them."""
    keras.utils.set_random_seed(2)
    tensors = keras.layers.Flatten(), keras.layers.Dense(2, name="head")
    model = keras.Sequential([keras.Input(shape), *layers, *tensors])
    rng = np.random.default_rng(4)
    model.set_weights([value + 0.1 * rng.normal(size=value.shape) for value in model.get_weights()])
    return model


@pytest.mark.parametrize("name", RECURRENT)
def test_the_layers_compute_what_the_layer_does(name):
    model, values = _model(RECURRENT[name]()), _values(8, STEPS, 3)
    new = rewritten(model).model
    kinds = {type(layer).__name__ for layer in new.layers}
    assert kinds.isdisjoint(("GRU", "SimpleRNN", "LSTM", "Bidirectional"))
    # Keras multiplies the inputs step by step, and adds up in another order.
    np.testing.assert_allclose(new(values), model(values), atol=2e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "bits"), [*((name, 8) for name in RECURRENT), ("gru", 4)])
def test_no_code_of_the_file_differs(name, bits, tmp_path):
    model, values = _model(RECURRENT[name]()), _values(64, STEPS, 3)
    quantized = calibrated(model, sat_tf.BitPolicy.mobile(bits, input_type="int8"), values)
    path = tmp_path / "model.tflite"
    report, certificate = proved(quantized, path, values[:16])
    assert not report.float_layers
    assert not certificate.unexplained
    found = differing_codes(path.read_bytes(), values[:4])
    assert found == dict.fromkeys(found, 0)
    assert len(found) > 4
    off = quantized.predict(values, verbose=0) - model.predict(values, verbose=0)
    # 2 to 4 % of the deviation at 8 bits.
    assert bits < 8 or np.sqrt(np.mean(off**2)) < 0.06 * np.std(model.predict(values, verbose=0))


STARTED = {
    "gru": lambda L: (L.GRU(4, dropout=0.1, name="states"), 1),
    "sequence": lambda L: (L.GRU(4, go_backwards=True, name="states", **_SEQUENCES), 1),
    "simple": lambda L: (L.SimpleRNN(4, name="states"), 1),
    "lstm": lambda L: (L.LSTM(4, name="states", **_SEQUENCES), 2),
}


def _started(layer, count, keras=tf_keras, steps=3):
    """A model whose states begin with inputs, and values for all inputs."""
    keras.utils.set_random_seed(2)
    read, states = keras.Input((steps, 3)), [keras.Input((4,)) for _ in range(count)]
    out = layer(read, initial_state=states if count > 1 else states[0])
    model = keras.Model([read, *states], keras.layers.Dense(2, name="head")(out))
    return model, [_values(32, steps, 3), *(_values(32, 4, seed=i) for i in range(count))]


@pytest.mark.parametrize("name", STARTED)
def test_states_that_a_call_begins_with_are_tensors_of_the_model(name):
    model, values = _started(*STARTED[name](L))
    np.testing.assert_allclose(rewritten(model).model(values), model(values), atol=2e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("keras", [tf_keras, keras3], ids=["keras2", "keras3"])
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_no_code_differs_of_layers_with_states_from_outside(keras, name, tmp_path):
    model, values = _started(*STARTED[name](keras.layers), keras)
    quantized = calibrated(model, POLICY, values)
    proved(quantized, tmp_path / "model.tflite", values)
    off = quantized.predict(values, verbose=0) - model.predict(values, verbose=0)
    assert np.max(np.abs(off)) < 0.06


def test_constant_states_of_zeros_are_none_and_others_are_refused():
    read = tf_keras.Input((3, 3))
    for first in (tf.zeros((1, 2)), tf.ones((1, 2))):
        layer = L.GRU(2, name="states")
        model = tf_keras.Model(read, L.Dense(2)(layer(read, initial_state=[first])))
        if not np.any(first):
            values = _values(1, 3, 3)
            np.testing.assert_allclose(rewritten(model).model(values), model(values), atol=2e-6)
            continue
        with pytest.raises(ValueError, match=r"states: received a GRU, .* initial_state of zeros"):
            sat_tf.quantize_model(model, POLICY)
    both = L.Bidirectional(L.GRU(2), name="both")
    first = [tf_keras.Input((2,)), tf_keras.Input((2,))]
    model = tf_keras.Model([read, *first], L.Dense(2)(both(read, initial_state=first)))
    with pytest.raises(ValueError, match=r"both: .* outside of a Bidirectional"):
        sat_tf.quantize_model(model, POLICY)


def test_a_state_of_zeros_is_not_added():
    # Where a sum is far smaller than the grid of zeros, no kernel adds the two.
    new = rewritten(_model(L.GRU(4, name="states"))).model
    readers = {node.layer.name for node in new.get_layer("states_zeros_0").outbound_nodes}
    assert readers == {"states_gates_state", "states_candidate_state"}


def _waves(count, seed):
    """Noisy sines of random frequencies, and the value after the last step."""
    rng = np.random.default_rng(seed)
    phase, frequency = rng.uniform(0, 6, (count, 1)), rng.uniform(0.2, 0.9, (count, 1))
    waves = np.sin(phase + frequency * np.arange(STEPS + 1)).astype(np.float32)
    return waves[:, :STEPS, np.newaxis], waves[:, STEPS:]


WAVES, NEXT = _waves(512, 1)
HELD_OUT, _ = _waves(128, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("keras", [tf_keras, keras3], ids=["keras2", "keras3"])
def test_a_forecast_is_near_to_float_saved_and_trained_on(keras, tmp_path):
    layers = keras.layers
    model = _model(layers.GRU(8, name="states", dropout=0.01), keras=keras, shape=(STEPS, 1))
    model = keras.Sequential([*model.layers[:-1], layers.Dense(1, name="value")])
    model.build((None, STEPS, 1))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    model.fit(WAVES, NEXT, batch_size=32, epochs=6, verbose=0)
    calibrated_model = calibrated(model, POLICY, WAVES[:128])
    expected = calibrated_model.predict(HELD_OUT, verbose=0)
    float_values = model.predict(HELD_OUT, verbose=0)
    assert np.sqrt(np.mean((expected - float_values) ** 2)) < 0.08 * np.std(float_values)
    calibrated_model.save(tmp_path / "model.keras")
    quantized = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_array_equal(quantized.predict(HELD_OUT, verbose=0), expected)
    # A task that it was not trained for: the next value, doubled.
    quantized.compile(keras.optimizers.Adam(0.005), "mse")
    history = quantized.fit(WAVES, 2 * NEXT, batch_size=32, epochs=3, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    proved(quantized, tmp_path / "model.tflite", HELD_OUT[:8])


def test_steps_share_their_weights_in_training_and_in_the_file(tmp_path):
    quantized = calibrated(_model(L.GRU(4, name="states")), POLICY, _values(64, STEPS, 3))
    kernels = [weight.name for weight in quantized.trainable_weights if "kernel" in weight.name]
    assert len(kernels) == 5  # inputs and states of the gates and of the candidate, and the head
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    content = (tmp_path / "model.tflite").read_bytes()
    tensors = tfl.ModelT.InitFromObj(tfl.Model.GetRootAs(content, 0)).subgraphs[0].tensors
    buffers = [tensor.buffer for tensor in tensors if tensor.name.endswith(b"kernel")]
    assert (len(buffers), len({*buffers})) == (3 + 2 * STEPS, 5)
    source = tf.Variable(_values(4, STEPS, 3))
    weights = [weight for weight in quantized.trainable_weights if "kernel" in weight.name]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(quantized(source, training=True)))
    of_source, *of_weights = tape.gradient(loss, [source, *weights])
    assert np.all(np.any(of_source.numpy() != 0.0, axis=(0, 2)))
    assert all(np.any(gradient.numpy() != 0.0) for gradient in of_weights)


def test_each_direction_of_an_lstm_is_one_operator():
    model = _model(L.Bidirectional(L.LSTM(3, **_SEQUENCES), name="states"))
    graph = deployed(calibrated(model, POLICY, _values(64, STEPS, 3)))
    assert [one.units for one in graph.operations if isinstance(one, Lstm)] == [3, 3]


REFUSED = {
    "received a GRU with time_major=True, expected": (L.GRU(2, time_major=True), STEPS),
    "received a SimpleRNN with recurrent_dropout=0.5": (L.SimpleRNN(2, recurrent_dropout=0.5), 5),
    "received a GRU with activation='softmax', expected one of": (L.GRU(2, "softmax"), STEPS),
    "received a GRU with recurrent_activation='tanh'": (L.GRU(2, recurrent_activation="tanh"), 5),
    "received a GRU with a bias_constraint, expected": (L.GRU(2, bias_constraint="non_neg"), 5),
    "received a SimpleRNN for sequences of open length": (L.SimpleRNN(2), None),
    "received a GRU of 65 steps, expected at most 64": (L.GRU(2), MOST_STEPS + 1),
    "received an LSTM with recurrent_dropout=0.5": (
        L.Bidirectional(L.LSTM(2, recurrent_dropout=0.5)),
        STEPS,
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_other_forms_are_refused_by_name(text):
    layer, steps = REFUSED[text]
    read = tf_keras.Input((steps, 3))
    model = tf_keras.Model(read, L.Dense(2)(layer(read)))
    with pytest.raises(ValueError, match=text):
        sat_tf.quantize_model(model, POLICY)


def test_calls_of_one_layer_on_other_lengths_are_refused():
    one, other = tf_keras.Input((4, 3)), tf_keras.Input((5, 3))
    states = L.GRU(2, name="states")
    model = tf_keras.Model([one, other], L.Dense(2)(L.Add()([states(one), states(other)])))
    with pytest.raises(ValueError, match=r"states: received a GRU, .* on tensors of one shape"):
        sat_tf.quantize_model(model, POLICY)
    # Calls that are alike share the layers.
    model = tf_keras.Model([one], L.Dense(2)(L.Add()([states(one), states(one + 1.0)])))
    names = {layer.name for layer in rewritten(model).model.layers}
    assert "states_gates_state" in names
