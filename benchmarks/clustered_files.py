"""Whether the clusters of TFMOT's weights survive TensorFlow's converter to 8 bits.

A network with random weights, all kernels of its convolutions and dense layers in 2^b clusters but
those of depthwise ones, which TFMOT leaves as they are; stripped, and converted to int8 throughout.
The rows of `compressed_files.py` are the same network by sat-tf.

    python benchmarks/clustered_files.py
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import peer_tfmot
import rich.console
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter
from full_size import realistic_model, smooth_images
from rows import as_table, write_csv

from sat_tf.exact.tflite.contents import gzip_size

_MODEL = flags.DEFINE_string("model", "mobilenet_v2", "name of `sat_tf.training.models`")
_BITS = flags.DEFINE_list("bits", [2, 3, 4], "of the clusters")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/clustered_files.csv", "where to write")

_IMAGES = 16
_CLUSTERED = ("CONV_2D", "FULLY_CONNECTED")
_WITH_KERNELS = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.Dense)


def _converted(model: keras.Model, images: np.ndarray) -> bytes:
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[np.newaxis]] for image in images)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return bytes(converter.convert())


def _kernels(interpreter: Interpreter) -> Iterator[np.ndarray]:
    for operator in interpreter._get_ops_details():
        if operator["op_name"] in _CLUSTERED:
            yield interpreter.get_tensor(operator["inputs"][1])


def _outputs(
    interpreter: Interpreter, model: keras.Model, images: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The codes of the file, and those nearest to what the model says."""
    (entry,), (end,) = interpreter.get_input_details(), interpreter.get_output_details()
    found = []
    for image in images:
        scale, zero_point = entry["quantization"]
        codes = np.clip(np.rint(image / scale + zero_point), -128, 127).astype(np.int8)
        interpreter.set_tensor(entry["index"], codes[np.newaxis])
        interpreter.invoke()
        found.append(interpreter.get_tensor(end["index"])[0])
    scale, zero_point = end["quantization"]
    wanted = np.clip(np.rint(model(images).numpy() / scale + zero_point), -128, 127)
    return np.array(found), wanted


def _row(bits: int) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    images = smooth_images(2 * _IMAGES).astype(np.float32)
    model = realistic_model(_MODEL.value, dead_channels=False)
    model = peer_tfmot.clusters(model, bits, first_last_bits=bits)
    model = tfmot.clustering.keras.strip_clustering(model)
    content = _converted(model, images[:_IMAGES])
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    distinct = [len(np.unique(kernel)) for kernel in _kernels(interpreter)]
    found, wanted = _outputs(interpreter, model, images[_IMAGES:])
    weights = sum(
        int(np.prod(layer.get_weights()[0].shape))
        for layer in model.layers
        if isinstance(layer, _WITH_KERNELS)
    )
    return {
        "model": _MODEL.value,
        "bits": bits,
        "values a layer": 2**bits,
        "codes a layer, median": int(np.median(distinct)),
        "codes a layer, most": max(distinct),
        "bytes": len(content),
        "gzip bytes": gzip_size(content),
        "gzip bits a weight": f"{8 * gzip_size(content) / weights:.2f}",
        "output codes compared": wanted.size,
        "output codes differing": int(np.sum(found != wanted)),
    }


def main(argv: list[str]) -> None:
    """Converts the network at each number of bits, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console, rows = rich.console.Console(), []
    for bits in map(int, _BITS.value):
        with console.status(f"{bits} bits"):
            rows.append(_row(bits))
        write_csv(rows, _OUTPUT.value)
        keras.backend.clear_session()
    console.print(as_table(rows, "TFMOT's clusters in TensorFlow's int8 file", tuple(rows[0])))


if __name__ == "__main__":
    app.run(main)
