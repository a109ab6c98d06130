"""Streams whose range is not symmetric: grids of files, states of streaming models, exactness."""

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.qat.policy import BitPolicy

layers = keras.layers


def _streaming_model() -> keras.Model:
    """Two states, the second one rectified; each leaves as a slice of what it enters."""
    frame = layers.Input((1, 8), name="frame")
    first, second = layers.Input((2, 8), name="first"), layers.Input((5, 6), name="second")
    window = layers.Concatenate(axis=1)([first, frame])
    hidden = layers.Conv1D(6, 3, activation="relu")(window)
    memory = layers.Concatenate(axis=1)([second, hidden])
    logits = layers.Dense(3)(layers.GlobalAveragePooling1D()(memory))
    return keras.Model([frame, first, second], [logits, window[:, 1:], memory[:, 1:]])


def _streaming_data(count: int) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    data = [draw.normal(0.5, 1, (count, *shape)) for shape in [(1, 8), (2, 8), (5, 6)]]
    return [np.float32(part) for part in (*data[:2], np.maximum(data[2], 0))]


def test_states_leave_on_the_grids_that_they_enter_on():
    keras.utils.set_random_seed(0)
    q = sat_tf.quantize_model(_streaming_model(), BitPolicy.mobile(8, input_type="int8"))
    sat_tf.calibrate(q, _streaming_data(64))
    graph = deployed_graph(q)
    entering = {image.name: image.codes for image in graph.images}
    leaving = [
        graph.codes(op.inputs[0]) for op in graph.operations if op.output in graph.more_outputs
    ]
    grids = [(codes.scale, codes.zero_point) for codes in leaving]
    assert grids == [(entering[n].scale, entering[n].zero_point) for n in ("first", "second")]
    assert grids[1][1] == -128  # no code is spent on values below 0
    joined = [op for op in graph.operations if op.operators[0] == "CONCATENATION"]
    assert {"first_codes", "second_codes"} < {name for op in joined for name in op.inputs}


@pytest.mark.thorough
def test_codes_of_skewed_streams_are_those_of_keras_and_of_the_file(tmp_path):
    keras.utils.set_random_seed(1)
    image, state = layers.Input((8, 8, 3), name="image"), layers.Input((8, 8, 4), name="state")
    features = layers.Conv2D(8, 3, padding="same", activation="elu")(image)
    features = layers.BatchNormalization(beta_initializer="ones")(features)
    features = layers.Concatenate()(
        [features, layers.Conv2D(4, 3, padding="same")(features), state]
    )
    gate = layers.Conv2D(16, 3, padding="same", activation="softplus")(features)
    features = layers.Multiply()([gate, features])
    features = layers.Add()([features, layers.DepthwiseConv2D(3, padding="same")(features)])
    kept = features[..., -4:]
    features = layers.AveragePooling2D(2)(layers.ZeroPadding2D(1)(features))
    features = layers.Conv2D(8, 3, activation="swish")(-features * features)
    scores = layers.Dense(5)(layers.GlobalAveragePooling2D()(features))
    draw = np.random.default_rng(0)
    data = [
        draw.normal(0.7, 1, (96, *shape)).astype(np.float32) for shape in [(8, 8, 3), (8, 8, 4)]
    ]
    q = sat_tf.quantize_model(
        keras.Model([image, state], [scores, kept]), BitPolicy.mobile(8, input_type="int8")
    )
    sat_tf.calibrate(q, data)
    skews = {
        layer.name: float(layer.output_variables["skew"])
        for layer in q.layers
        if "skew" in getattr(layer, "output_variables", {})
    }
    assert sum(abs(skew) > 0.1 for skew in skews.values()) >= 3, skews
    path = tmp_path / "skewed.tflite"
    sat_tf.export_tflite(q, path, output_type="int8", snap_biases=True)
    certificate = sat_tf.verify_tflite(q, path, [part[:40] for part in data], progress=False)
    found = certificate.runtimes["xnnpack"]
    assert found.codes_compared > 0
    assert {t.name: t.codes_differing for t in found.tensors if t.codes_differing} == {}
    assert found.outputs_differing == 0
    assert certificate.trained_differing < 0.01


@pytest.mark.parametrize(("bits", "skew"), [(2, 0.7), (3, -0.4), (4, 1.0), (5, -1.0), (7, 0.02)])
def test_int8_and_an_activation_clip_the_two_ends_of_a_stream_of_few_bits(bits, skew, tmp_path):
    image = layers.Input((6, 6, 3))
    stream = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", name="stream")(image))
    read = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.ZeroPadding2D(1)(stream))
    model = keras.Model(image, layers.Dense(3)(layers.GlobalAveragePooling2D()(read)))
    policy = BitPolicy(weight_bits=8, activation_bits=4, stream_bits=bits, requantize_streams=False)
    q = sat_tf.quantize_model(model, policy)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 6, 6, 3), dtype=np.uint8)
    sat_tf.calibrate(q, pixels)
    (holder,) = [one for one in q.layers if "skew" in getattr(one, "output_variables", {})]
    holder.output_variables["skew"].assign(skew)
    level = holder.output_variables["clipping_level"]
    level.assign(0.5 * level)  # so that many values are clipped, on both sides
    sat_tf.calibrate(q, pixels, clipping_levels=False)
    path = tmp_path / "few_bits.tflite"
    sat_tf.export_tflite(q, path, snap_biases=True)
    certificate = sat_tf.verify_tflite(q, path, pixels[:30], progress=False)
    compared = certificate.runtimes["xnnpack"]
    assert compared.codes_compared > 0
    assert compared.codes_differing == 0
    assert certificate.trained_differing == 0.0
