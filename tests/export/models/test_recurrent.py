"""Layers of sequences that are left float: in the file what they are in Keras, without noise."""

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
from sat_tf.export.litert.converter import run_converter
from sat_tf.export.litert.runtime import Runtime
from tests.export.proofs import calibrated, proved

L = keras.layers
POLICY = sat_tf.BitPolicy(unsupported="float")
_SMALL = keras.initializers.RandomNormal(stddev=0.002, seed=0)  # sums that stay positive


def _frames(x):
    return L.Reshape((2, 2, 2, 3), name="frames")(x)


LEFT_FLOAT = {
    "lstm": lambda x: L.LSTM(3, name="left")(x),
    "relu": lambda x: L.LSTM(
        3, activation="relu", kernel_initializer=_SMALL, bias_initializer="ones", name="left"
    )(x),
    "gru": lambda x: L.GRU(3, return_sequences=True, name="left")(x),
    "simple": lambda x: L.SimpleRNN(3, go_backwards=True, name="left")(x),
    "cells": lambda x: L.RNN([L.LSTMCell(3), L.GRUCell(2)], name="left")(x),
    "bidirectional": lambda x: L.Bidirectional(L.LSTM(2, activation="relu"), name="left")(x),
    "images": lambda x: L.ConvLSTM2D(2, 2, name="left")(_frames(x)),
    "images_both_ways": lambda x: L.Bidirectional(
        L.ConvLSTM2D(2, 2, padding="same", return_sequences=True), name="left"
    )(_frames(x)),
    "images_each_step": lambda x: L.TimeDistributed(L.ConvLSTM1D(2, 1), name="left")(_frames(x)),
    "images_back": lambda x: L.ConvLSTM2D(
        2, 2, padding="same", go_backwards=True, return_sequences=True, name="left"
    )(_frames(x)),
}


def _model(operation):
    keras.utils.set_random_seed(3)
    image = keras.Input((3, 3, 3), name="image")
    x = L.Conv2D(6, 2, activation="relu", name="conv")(image)
    x = operation(L.Reshape((4, 6), name="steps")(x))
    return keras.Model(image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(x)))


def _images(count=32):
    return np.random.default_rng(4).integers(0, 256, (count, 3, 3, 3)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LEFT_FLOAT)
def test_a_file_has_what_keras_computes_and_keeps_no_state(name, path, capfd):
    quantized = calibrated(_model(LEFT_FLOAT[name]), POLICY, _images())
    expected, pixels = quantized(_images(8)).numpy(), _images(8).astype(np.uint8)
    capfd.readouterr()
    assert proved(quantized, path, pixels)[0].islands == ["left"]
    assert "loc(" not in capfd.readouterr().err
    runtime = Runtime(path.read_bytes(), keep_tensors=False)
    found = runtime.run(pixels)
    assert np.mean(np.abs(found - expected)) < 0.03 * np.ptp(expected)
    np.testing.assert_array_equal(runtime.run(pixels), found)
    layer = quantized.get_layer("quant_left").layer
    parts = [layer, *layer.submodules]
    assert not any(getattr(part, "unroll", False) for part in parts)


@pytest.mark.thorough
def test_the_plan_has_the_bytes_of_a_recurrent_layer(capfd):
    plan = sat_tf.explain(_model(LEFT_FLOAT["gru"]), POLICY)
    assert plan["left"].kind == "GRU"
    assert "does not convert" not in str(plan)
    assert "loc(" not in capfd.readouterr().err


def test_what_the_converter_refuses_is_said_in_one_line_and_nothing_else(tmp_path, capfd):
    quantized = calibrated(_model(tf.math.special.bessel_j0), POLICY, _images())
    capfd.readouterr()
    with pytest.raises(ValueError, match=r"'tf\.BesselJ0' op is neither") as caught:
        sat_tf.export_tflite(quantized, tmp_path / "m.tflite")
    assert len(str(caught.value).splitlines()) == 1
    assert not re.search(r"loc\(|error:", capfd.readouterr().err)
    assert not list(tmp_path.iterdir())


class _Loud:
    """A converter that prints as C++ code does, and as Python does."""

    def convert(self):
        os.write(2, b"loc(\"here\"): error: 'tf.X' op has no form\n")
        warnings.warn("a warning of Python", stacklevel=1)
        print("progress", file=sys.stderr)
        logging.getLogger("first").addHandler(logging.StreamHandler())
        logging.getLogger().addHandler(logging.StreamHandler())
        raise RuntimeError("\n")


def test_output_of_native_code_is_kept_for_the_error_and_that_of_python_is_not_lost(
    capfd, monkeypatch
):
    before, handlers = os.fstat(2), list(logging.getLogger().handlers)
    with open(2, "w", closefd=False) as standard, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", standard)
        with (
            pytest.warns(UserWarning, match="a warning of Python"),
            pytest.raises(ValueError, match=r"^'tf\.X' op has no form$"),
        ):
            run_converter(_Loud())
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
def test_sequences_of_any_length_get_one_in_the_file(layer, tmp_path):
    keras.utils.set_random_seed(4)
    steps, path = keras.Input((None, 5), name="steps"), tmp_path / "m.tflite"
    x = layer(L.Conv1D(4, 2, activation="relu", name="conv")(0.01 * steps))
    model = keras.Model(steps, L.Dense(3, name="classifier")(x))
    data = np.random.default_rng(4).integers(0, 256, (32, 6, 5)).astype(np.float32)
    quantized = calibrated(model, POLICY, data)
    with pytest.raises(ValueError, match=r"fixed sizes; .*image_size=\(length,\)\)"):
        sat_tf.export_tflite(quantized, path)
    with pytest.raises(ValueError, match=r"image_size=\(6, 5\) .*, expected \(length, channels\)"):
        sat_tf.export_tflite(quantized, path, image_size=(6, 5))
    assert sat_tf.export_tflite(quantized, path, image_size=(6,)).islands == ["left"]
    codes = data[:8].astype(np.uint8)
    assert sat_tf.verify_tflite(quantized, path, codes).codes_differing == 0
    found = Runtime(path.read_bytes(), keep_tensors=False).run(codes)
    expected = quantized(data[:8]).numpy()
    assert np.mean(np.abs(found - expected)) < 0.03 * np.ptp(expected)
    plan = sat_tf.explain(model, POLICY, image_size=(6,))
    assert plan["conv"].multiply_adds == 5 * 2 * 5 * 4
    assert plan.export_problems == ()
