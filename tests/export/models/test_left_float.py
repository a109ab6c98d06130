"""Layers that are left float: in the file what they are in Keras, in models of any precision."""

import logging
import os
import re
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.export.lowering.float_layer import run_converter
from sat_tf.export.lowering.layers import in_float32
from sat_tf.graph.network import Network
from tests.export.proofs import calibrated, file_outputs, proved

L = keras.layers
FLOAT = sat_tf.BitPolicy.mobile(8, unsupported="float")
IMAGES = np.random.default_rng(4).integers(0, 256, (64, 5, 5, 3)).astype(np.float32)
_SMALL = keras.initializers.RandomNormal(stddev=0.002, seed=0)
_POSITIVE = {"kernel_initializer": _SMALL, "bias_initializer": "ones"}  # so sums stay
# Nothing has layers for these: weights of single gates, and gates beyond 0 and 1.
_LEFT = {"recurrent_constraint": "max_norm", "name": "left"}
_GATES = {"recurrent_activation": "tanh"}
_ALL = {"padding": "same", "return_sequences": True}


def _frames(x):
    return L.Reshape((2, 4, 4, 3), name="frames")(x)


def _attention(x, **masks):
    return L.MultiHeadAttention(2, 3, name="left")(x, x, **masks)


LEFT_FLOAT = {
    "lstm": lambda x: L.LSTM(3, go_backwards=True, name="left", **_GATES)(x),
    "relu": lambda x: L.LSTM(3, "relu", **_LEFT, **_POSITIVE)(x),
    "gru": lambda x: L.GRU(3, return_sequences=True, **_LEFT)(x),
    "simple": lambda x: L.SimpleRNN(3, go_backwards=True, **_LEFT)(x),
    "drops_states": lambda x: L.GRU(3, recurrent_dropout=0.5, name="left")(x),
    "drops_states_both_ways": lambda x: L.Bidirectional(
        L.LSTM(2, recurrent_dropout=0.5), name="left"
    )(x),
    "cells": lambda x: L.RNN([L.LSTMCell(3), L.GRUCell(2)], name="left")(x),
    "bidirectional": lambda x: L.Bidirectional(L.LSTM(2, "relu", **_LEFT), name="left")(x),
    "images": lambda x: L.ConvLSTM2D(2, 2, name="left")(_frames(x)),
    "images_both_ways": lambda x: L.Bidirectional(L.ConvLSTM2D(2, 2, **_ALL), name="left")(
        _frames(x)
    ),
    "images_each_step": lambda x: L.TimeDistributed(L.ConvLSTM1D(2, 1), name="left")(_frames(x)),
    "images_back": lambda x: L.ConvLSTM2D(2, 2, go_backwards=True, name="left", **_ALL)(_frames(x)),
    "masked": lambda x: _attention(x, attention_mask=(tf.ones_like(x)[:, :, 0] > 0.5)[:, None]),
    "root": tf.sqrt,
    "shares": lambda x: x / (1e-3 + tf.reduce_sum(x, -1, keepdims=True)),
    "empty_for_any_batch": lambda x: tf.math.lgamma(x + 1.0),
    "where": lambda x: tf.where(x > 20.0, x, 0.1 * x),
    "logical": lambda x: x * tf.cast(tf.logical_and(x > 20.0, x < 80.0), tf.float32),
    "one_hot": lambda x: x + tf.one_hot(tf.argmax(x, -1), 6),
}


def _model(operation):
    keras.utils.set_random_seed(3)
    image = keras.Input((5, 5, 3), name="image")
    tensor = L.Conv2D(6, 2, activation="relu", name="conv")(image)
    tensor = operation(L.Reshape((16, 6), name="tokens")(tensor))
    return keras.Model(image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(tensor)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", LEFT_FLOAT)
def test_it_is_saved_and_in_the_file_what_it_is_in_keras_and_keeps_no_state(name, tmp_path, capfd):
    float_model = _model(LEFT_FLOAT[name])
    quantized = calibrated(float_model, FLOAT, IMAGES)
    expected = quantized(IMAGES).numpy()
    is_layer = "left" in [layer.name for layer in float_model.layers]
    if is_layer and isinstance(float_model.get_layer("left"), L.MultiHeadAttention):
        # In the mean: a softmax over large scores turns on which of two is the larger one.
        assert np.mean(np.abs(float_model(IMAGES) - expected)) < 0.02 * np.ptp(expected)
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IMAGES), quantized(IMAGES))
    path, pixels = tmp_path / "model.tflite", IMAGES[:8].astype(np.uint8)
    capfd.readouterr()
    if name == "gru":
        plan = sat_tf.explain(float_model, FLOAT)
        assert plan["left"].kind == "GRU"
        assert "does not convert" not in str(plan)
    report, _ = proved(quantized, path, pixels)
    assert not is_layer or "left" in " ".join(report.float_layers).split()
    assert "loc(" not in capfd.readouterr().err
    # Codes behind what is left float depend on it: the whole file is held against Keras. In the
    # mean, because a code that differs may be on the other side of a threshold.
    runtime = Runtime(path.read_bytes(), keep_tensors=False)
    found = runtime.run(pixels)
    assert np.mean(np.abs(found - expected[:8])) < 0.02 * np.ptp(expected)
    np.testing.assert_array_equal(runtime.run(pixels), found)
    if is_layer:
        layer = quantized.get_layer("quant_left").layer
        assert not any(getattr(part, "unroll", False) for part in layer._flatten_layers())
    if name == "attention":
        before = layer.get_weights()
        quantized.compile("sgd", "mse")
        quantized.fit(IMAGES, np.zeros((64, 3)), verbose=0)
        pairs = zip(before, layer.get_weights(), strict=True)
        assert any(np.any(one != other) for one, other in pairs)


def test_what_the_converter_refuses_is_said_in_one_line_and_nothing_else(tmp_path, capfd):
    quantized = calibrated(_model(tf.math.special.bessel_j0), FLOAT, IMAGES)
    capfd.readouterr()
    with pytest.raises(ValueError, match=r"'tf\.BesselJ0' op is neither") as caught:
        sat_tf.export_tflite(quantized, tmp_path / "m.tflite")
    assert len(str(caught.value).splitlines()) == 1
    assert not re.search(r"loc\(|error:", capfd.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_output_of_native_code_is_kept_for_the_error_and_that_of_python_is_not_lost(
    capfd, monkeypatch
):
    class Loud:
        """A converter that prints as C++ code does, and as Python does."""

        def convert(self):
            os.write(2, b"loc(\"here\"): error: 'tf.X' op has no form\n")
            warnings.warn("a warning of Python", stacklevel=1)
            print("progress", file=sys.stderr)
            logging.getLogger("first").addHandler(logging.StreamHandler())
            logging.getLogger().addHandler(logging.StreamHandler())
            raise RuntimeError("\n")

    before, handlers = os.fstat(2), list(logging.getLogger().handlers)
    with open(2, "w", closefd=False) as standard, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", standard)
        with (
            pytest.warns(UserWarning, match="a warning of Python"),
            pytest.raises(ValueError, match=r"^'tf\.X' op has no form$"),
        ):
            run_converter(Loud())
        assert sys.stderr is standard
    assert os.path.samestat(before, os.fstat(2))
    assert logging.getLogger().handlers == handlers
    os.write(2, b"after\n")
    # A handler that was made meanwhile writes where Python writes then.
    (handler,) = logging.getLogger("first").handlers
    logging.getLogger("first").removeHandler(handler)
    with open(2, "w", closefd=False) as standard, monkeypatch.context() as patch:
        patch.setattr(handler.stream, "lender", standard)
        handler.emit(logging.makeLogRecord({"msg": "logged"}))
    assert capfd.readouterr().err == "progress\nafter\nlogged\n"


@pytest.mark.thorough
@pytest.mark.parametrize("layer", [L.LSTM(3, name="left"), L.Bidirectional(L.GRU(2), name="left")])
def test_sequences_of_any_length_get_one_in_the_file(layer, path):
    keras.utils.set_random_seed(4)
    steps = keras.Input((None, 5), name="steps")
    x = layer(L.Conv1D(4, 2, activation="relu", name="conv")(0.01 * steps))
    model = keras.Model(steps, L.Dense(3, name="classifier")(x))
    data = np.random.default_rng(4).integers(0, 256, (32, 6, 5)).astype(np.float32)
    quantized = calibrated(model, FLOAT, data)
    with pytest.raises(ValueError, match=r"fixed sizes; .*image_size=\(length,\)\)"):
        sat_tf.export_tflite(quantized, path)
    with pytest.raises(ValueError, match=r"image_size=\(6, 5\) .*, expected \(length, channels\)"):
        sat_tf.export_tflite(quantized, path, image_size=(6, 5))
    assert sat_tf.export_tflite(quantized, path, image_size=(6,)).float_layers == ["left"]
    codes = data[:8].astype(np.uint8)
    assert sat_tf.verify_tflite(quantized, path, codes).codes_differing == 0
    found = file_outputs(path, codes)
    expected = quantized(data[:8]).numpy()
    assert np.mean(np.abs(found - expected)) < 0.03 * np.ptp(expected)
    plan = sat_tf.explain(model, FLOAT, image_size=(6,))
    assert plan["conv"].multiply_adds == 5 * 2 * 5 * 4
    assert plan.export_problems == ()


@pytest.mark.parametrize(("shift", "axis"), [(1, 1), (-3, -1), (20, 1)])
def test_a_roll_moves_codes(shift, axis, path):
    float_model = _model(lambda x: tf.roll(x, shift, axis))
    report, _ = proved(calibrated(float_model, 4, IMAGES), path, IMAGES[:8].astype(np.uint8))
    assert report.float_layers == []
    wide = calibrated(float_model, 8, IMAGES)
    expected = float_model(IMAGES).numpy()
    assert np.max(np.abs(wide(IMAGES) - expected)) < 0.1 * np.ptp(expected)


def _sparse_attention(x):
    x = L.Reshape((16, 6))(x)
    return L.MultiHeadAttention(2, 3)(x, value=x[:, ::2])


ISLANDS = {
    "normalization": lambda x: L.LayerNormalization()(x),
    "resizing": lambda x: L.UpSampling2D(2, interpolation="bilinear")(x),
    "attention": _sparse_attention,
    "recurrent": lambda x: L.Bidirectional(L.LSTM(3, **_GATES))(L.Reshape((16, 6))(x)),
    "operation": lambda x: x / (0.5 + tf.reduce_sum(x, -1, keepdims=True)),
}
# The converter takes seconds for each of the others.
QUICK = ("operation", "mixed_bfloat16")


def _of_precision(island, policy):
    keras.utils.set_random_seed(3)
    image = keras.Input((8, 8, 3), name="image")
    try:
        keras.mixed_precision.set_global_policy(policy)
        x = L.Conv2D(6, 3, strides=2, padding="same", activation="relu")(image)
        x = L.Flatten()(ISLANDS[island](x))
        return keras.Model(image, L.Dense(3, dtype="float32")(x))
    finally:
        keras.mixed_precision.set_global_policy(None)


@pytest.mark.parametrize(
    ("island", "precision"),
    [
        pytest.param(island, name, marks=() if (island, name) == QUICK else pytest.mark.thorough)
        for island in ISLANDS
        for name in ("mixed_bfloat16", "mixed_float16")
    ],
)
def test_they_are_exported_with_the_weights_of_the_model(island, precision, path):
    images = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3)).astype(np.uint8)
    quantized = sat_tf.quantize_model(_of_precision(island, precision), FLOAT)
    for variable in quantized.trainable_variables:
        variable.assign_add(0.01 * tf.ones_like(variable))  # as if it were trained
    sat_tf.calibrate(quantized, images.astype(np.float32))
    proved(quantized, path, images)
    # In the mean: in lower precision sums are rounded to the codes next to them.
    expected = quantized(images.astype(np.float32)).numpy()
    found = file_outputs(path, images)
    assert np.mean(np.abs(found - expected)) < 0.02 * np.ptp(expected)


def test_a_layer_in_float32_is_the_layer_itself():
    network = Network(_of_precision("normalization", "float32"))
    node = next(node for node in network if isinstance(node.layer, L.LayerNormalization))
    assert in_float32(node, [(4, 4, 6)]) is node.layer


def test_a_copy_in_float32_has_layers_inside_in_float32_too():
    network = Network(_of_precision("recurrent", "mixed_float16"))
    node = next(node for node in network if isinstance(node.layer, L.Bidirectional))
    copy = in_float32(node, [(16, 6)])
    parts = [part for part in copy.submodules if isinstance(part, L.Layer)]
    assert {part.compute_dtype for part in (copy, *parts)} == {"float32"}
    np.testing.assert_equal(node.layer.get_weights(), copy.get_weights())
