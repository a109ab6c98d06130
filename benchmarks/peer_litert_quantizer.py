"""The part of litert-quantizer in `benchmarks/reconstruction.py`.

It quantizes a float file after training: activations to 8 bits or 16; weights to 8, and those of
convolutions and of dense layers, but of no depthwise ones, to 4. The first and the last layer keep
8 here, as they have in sat-tf.
"""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
import tf_keras as keras

# GPTQ and OSCAR, which it has too, refuse convolutions.
ALGORITHMS = ("min_max_uniform_quantize", "OCTAV", "MSE")
_SIGNATURE = "serving_default"
_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D)


def files(model: keras.Model, images: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """Integer files of a float model with 4-bit weights, one by each algorithm that finds them.

    Args:
        model: of tf_keras.
        images: to calibrate on, as the model is fed.
    """
    from litert_quantizer import quantizer, recipe_manager

    first = next(layer for layer in model.layers if isinstance(layer, _CONVOLUTIONS))
    (name,) = (one.name.split(":")[0] for one in model.inputs)
    values = {_SIGNATURE: [{name: image[None].astype(np.float32)} for image in images]}
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/float.tflite"
        converted = tf.lite.TFLiteConverter.from_keras_model(model).convert()
        pathlib.Path(source).write_bytes(converted)
        for algorithm in ALGORITHMS:
            recipe = recipe_manager.RecipeManager()
            recipe.add_static_config(".*", "*", 8, 8)
            recipe.add_static_config(
                f"^(?!.*/{first.name}/)", "CONV_2D", 8, 4, algorithm_key=algorithm
            )
            found = quantizer.Quantizer(source, recipe.get_quantization_recipe())
            with contextlib.redirect_stdout(None):
                content = found.quantize(found.calibrate(values)).quantized_model
            yield algorithm, bytes(content)


def answers(content: bytes, images: np.ndarray) -> np.ndarray:
    """The codes that LiteRT computes of images by such a file."""
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_content=content).get_signature_runner(_SIGNATURE)
    ((name, details),) = run.get_input_details().items()
    values, kind = images.astype(np.float32), np.iinfo(details["dtype"])
    of_input = details["quantization_parameters"]
    codes = np.rint(values / of_input["scales"]) + of_input["zero_points"]
    codes = np.clip(codes, kind.min, kind.max).astype(details["dtype"])
    return np.concatenate([next(iter(run(**{name: one[None]}).values())) for one in codes])
