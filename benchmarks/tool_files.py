"""Files of TensorFlow's converter and of litert-quantizer, and what any file answers."""

import contextlib
import math
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

_SIGNATURE = "serving_default"


def by_converter(model: keras.Model, inputs: np.ndarray | None) -> bytes:
    """The converter's integer file, or its float one where there are no inputs."""
    if any(isinstance(layer, keras.layers.RNN) for layer in model.layers):
        # It takes loops over the steps of one example alone.
        one = keras.Input(model.input_shape[1:], batch_size=1, dtype=model.input.dtype)
        weights, model = model.get_weights(), keras.models.clone_model(model, one)
        model.set_weights(weights)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if inputs is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([one[None]] for one in inputs)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return bytes(converter.convert())


def by_litert(file: bytes, inputs: np.ndarray, eights: Sequence[str] | None) -> bytes:
    """litert-quantizer's file, of a float file.

    Args:
        file: the float file.
        inputs: what it is calibrated on.
        eights: layers that keep 8 bits, beside 4 where the tool has them; None for 8 everywhere.
    """
    from litert_quantizer import quantizer, recipe_manager

    recipe = recipe_manager.RecipeManager()
    recipe.add_static_config(".*", "*", 8, 8)
    if eights is not None:
        names = "|".join(f"/{name}/" for name in eights)
        for operation in ("CONV_2D", "FULLY_CONNECTED"):
            recipe.add_static_config(f"^(?!.*({names}))", operation, 8, 4)
    ((name, _),) = _interpreter(file).get_signature_runner(_SIGNATURE).get_input_details().items()
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "float.tflite"
        source.write_bytes(file)
        tool = quantizer.Quantizer(str(source), recipe.get_quantization_recipe())
        values = {_SIGNATURE: [{name: one[None]} for one in inputs]}
        with contextlib.redirect_stdout(None):
            return bytes(tool.quantize(tool.calibrate(values)).quantized_model)


def _interpreter(content: bytes) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_content=content, num_threads=1)


def answers(content: bytes, inputs: np.ndarray) -> np.ndarray:
    """What LiteRT computes by a file, real numbers; inputs and outputs may be integers in it."""
    interpreter = _interpreter(content)
    interpreter.allocate_tensors()
    run = interpreter.get_signature_runner(_SIGNATURE)
    (of_output,) = run.get_output_details().values()
    ((name, details),) = run.get_input_details().items()
    if details["dtype"] != np.float32:
        of_input, kind = details["quantization_parameters"], np.iinfo(details["dtype"])
        codes = np.rint(inputs / of_input["scales"]) + of_input["zero_points"]
        inputs = np.clip(codes, kind.min, kind.max)
    rows = []
    for one in inputs.astype(details["dtype"]):
        interpreter.reset_all_variables()  # an LSTM would go on from the states of the last row
        rows.append(next(iter(run(**{name: one[None]}).values())))
    found = np.concatenate(rows)
    if of_output["dtype"] == np.float32:
        return found
    of_output = of_output["quantization_parameters"]
    return (np.float32(found) - of_output["zero_points"]) * of_output["scales"]


def kept(quantized: np.ndarray, of_float: np.ndarray, *, of_values: bool) -> float:
    """Answers that are those of the float model, or the variance of them explained, in percent."""
    if not of_values:
        return 100 * float(np.mean(quantized.argmax(axis=-1) == of_float.argmax(axis=-1)))
    error = np.mean((quantized - of_float) ** 2)
    return 100 * max(0.0, 1 - float(error / np.var(of_float)))


def decibels(quantized: np.ndarray, of_float: np.ndarray) -> float:
    """Signal over noise of the outputs."""
    noise = np.mean((np.float64(quantized) - of_float) ** 2)
    return 10 * math.log10(np.mean(np.float64(of_float) ** 2) / max(noise, 1e-30))
