"""The part of litert-quantizer in `benchmarks/peers.py` and `benchmarks/reconstruction.py`.

It quantizes a float file after training: activations to 8 bits or 16; weights to 8, and those of
convolutions and of dense layers, but of no depthwise ones, to 4. The first and the last layer keep
8 here, as they have in sat-tf. 2 bits are for dynamic files alone, and LiteRT 2.3.0 computes their
convolutions wrong, up to NaN. 0.11 does what ai-edge-quantizer 0.10 did, under another name.
"""

import contextlib
import functools
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import peer_task
import tensorflow as tf
import tf_keras as keras
import tool_files

# GPTQ and OSCAR, which it has too, refuse convolutions.
ALGORITHMS = ("min_max_uniform_quantize", "OCTAV", "MSE")
_CALIBRATION_IMAGES = 512
_SIGNATURE = "serving_default"
_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D)


def _integer(recipe: Any, convolutions: str, algorithm: str) -> None:
    recipe.add_static_config(".*", "*", 8, 8)
    recipe.add_static_config(convolutions, "CONV_2D", 8, 4, algorithm_key=algorithm)


def _float_answers(recipe: Any, convolutions: str, algorithm: str) -> None:
    _integer(recipe, convolutions, algorithm)
    recipe.add_dynamic_config(".*", "FULLY_CONNECTED", 8)
    recipe.add_quantization_config(".*", "OUTPUT", algorithm_key="no_quantize")


def _dynamic(recipe: Any, convolutions: str, algorithm: str) -> None:
    recipe.add_dynamic_config(".*", "*", 8)
    recipe.add_dynamic_config(convolutions, "CONV_2D", 4, algorithm_key=algorithm)


# Files compute in integers: everything; all but the answers, of which then no two are equal; or
# what layers with weights multiply, between float tensors.
RECIPES: Mapping[str, Callable[[Any, str, str], None]] = {
    "integer": _integer,
    "float answers": _float_answers,
    "dynamic": _dynamic,
}


def files(
    model: keras.Model, images: np.ndarray, computes: str = "integer"
) -> Iterator[tuple[str, bytes]]:
    """Files of a float model with 4-bit weights, one by each algorithm that finds them.

    Args:
        model: of tf_keras.
        images: to calibrate on, as the model is fed.
        computes: one of `RECIPES`.
    """
    from litert_quantizer import quantizer, recipe_manager

    first = next(layer for layer in model.layers if isinstance(layer, _CONVOLUTIONS))
    (name,) = (tensor.name.split(":")[0] for tensor in model.inputs)
    values = {_SIGNATURE: [{name: image[None].astype(np.float32)} for image in images]}
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/float.tflite"
        converted = tf.lite.TFLiteConverter.from_keras_model(model).convert()
        pathlib.Path(source).write_bytes(converted)
        for algorithm in ALGORITHMS:
            recipe = recipe_manager.RecipeManager()
            RECIPES[computes](recipe, f"^(?!.*/{first.name}/)", algorithm)
            tool = quantizer.Quantizer(source, recipe.get_quantization_recipe())
            with contextlib.redirect_stdout(None):
                content = tool.quantize(tool.calibrate(values, num_threads=1)).quantized_model
            yield algorithm, bytes(content)


def run(
    model: keras.Model,
    train: peer_task.Images,
    test: peer_task.Images,
    *,
    seed: int,
    computes: str,
) -> dict[str, float]:
    """Measures what LiteRT answers by the best file of a float model, trained no further.

    Args:
        model: of tf_keras.
        train: images, of which a seed draws those to calibrate on.
        test: held-out images and labels; the algorithm is chosen on their first half.
        seed: of the images to calibrate on.
        computes: one of `RECIPES` whose files answer in float.
    """
    start = time.perf_counter()
    drawn = np.random.RandomState(seed).permutation(len(train[0]))[:_CALIBRATION_IMAGES]
    results = []
    for _, content in files(model, train[0][drawn], computes):
        answers = functools.partial(tool_files.answers, content)
        results.append(peer_task.measure(_as_model(answers), test))
    best = max(results, key=lambda result: result["chosen_on"])
    return {**best, "seconds": time.perf_counter() - start}


def _as_model(answers: Callable[[np.ndarray], np.ndarray]) -> Callable[..., tf.Tensor]:
    return lambda pixels, training: tf.numpy_function(answers, [pixels], tf.float32)
