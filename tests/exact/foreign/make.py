"""Makes the files here, which other tools write: `python -m tests.exact.foreign.make`.

They were made once, with TensorFlow 2.21 and TFMOT 0.8.1; that of ai-edge-quantizer 0.10.0, which
is installed in an environment of its own, by

    python tests/exact/foreign/make.py float.tflite tests/exact/foreign/quantizer.tflite
"""

import pathlib
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).parent
IMAGE = (12, 12, 3)


def images(count: int = 16) -> np.ndarray:
    """Values such as the network takes."""
    return np.random.default_rng(0).uniform(-1.0, 1.0, (count, *IMAGE)).astype(np.float32)


def network():
    """Forms that sat-tf does not write: ReLU6, constants, grids that differ, products of none."""
    import tf_keras as keras

    layers = keras.layers
    keras.utils.set_random_seed(0)
    image = keras.Input(IMAGE)
    one = layers.ZeroPadding2D(1)(image)
    one = layers.Conv2D(8, 3, strides=2, use_bias=False)(one)
    one = layers.ReLU(6.0)(layers.BatchNormalization()(one))
    other = layers.DepthwiseConv2D(3, padding="same")(one)
    both = layers.Add()([one, layers.Conv2D(8, 1)(other)])
    joined = layers.Concatenate()([both, other])
    joined = layers.AveragePooling2D()(joined)
    raised = layers.ReLU()(layers.Conv2DTranspose(8, 3, strides=2, padding="same")(joined))
    means = layers.GlobalAveragePooling2D()(raised)
    return keras.Model(image, layers.Dense(4, activation="softmax", use_bias=False)(means))


def _converted(model, kind=None) -> bytes:
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind is not None:
        converter.representative_dataset = lambda: ([value[None]] for value in images())
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = kind
    return converter.convert()


def main() -> None:
    """Writes the files of TensorFlow's converter and of TFMOT, and a float file."""
    import tensorflow as tf
    import tensorflow_model_optimization as tfmot

    model = network()
    (FOLDER / "converter_int8.tflite").write_bytes(_converted(model, tf.int8))
    (FOLDER / "converter_uint8.tflite").write_bytes(_converted(model, tf.uint8))
    (FOLDER / "dynamic_range.tflite").write_bytes(_converted(model))
    plain = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    pathlib.Path("float.tflite").write_bytes(plain)
    quantized = tfmot.quantization.keras.quantize_model(model)
    for _ in range(3):
        quantized(images(), training=True)
    (FOLDER / "tfmot.tflite").write_bytes(_converted(quantized))


def quantize(source: str, path: str) -> None:
    """Writes the file that litert-quantizer makes of a float one."""
    from ai_edge_litert.interpreter import Interpreter
    from litert_quantizer import quantizer, recipe

    found = quantizer.Quantizer(source)
    found.load_quantization_recipe(recipe.static_wi8_ai8())
    (name,) = Interpreter(source).get_signature_list()["serving_default"]["inputs"]
    values = [{name: value[None]} for value in images()]
    calibrated = found.calibrate({"serving_default": values})
    pathlib.Path(path).write_bytes(found.quantize(calibrated).quantized_model)


if __name__ == "__main__":
    quantize(*sys.argv[1:]) if len(sys.argv) > 1 else main()
