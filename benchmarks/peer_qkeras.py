"""QKeras's part of `benchmarks/peers.py`, to run in an environment of its own.

    python -m venv ~/qkeras
    ~/qkeras/bin/pip install "tensorflow==2.21.*" "tf_keras==2.21.*" "qkeras==0.9.*" \
        pyparsing networkx keras-tuner
    TF_USE_LEGACY_KERAS=1 ~/qkeras/bin/python benchmarks/peer_qkeras.py --help

QKeras for Keras 3 is another package, with the same names, in another environment:

    python -m venv ~/qkeras_v3
    ~/qkeras_v3/bin/pip install "tensorflow==2.21.*" "tf_keras==2.21.*" "qkeras-v3==1.2.*"
    TF_USE_LEGACY_KERAS=0 ~/qkeras_v3/bin/python benchmarks/peer_qkeras.py --help

`peers.py` calls it; it reads a float model and the data from files, and prints one line of JSON.
"""

import argparse
import json
import sys
from typing import Any

import numpy as np
import peer_task
import qkeras
import tf_keras
from peer_task import keras

_LINEAR = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.Dense)


def quantized(
    model: keras.Model,
    images: peer_task.Images,
    *,
    bits: int,
    integer_bits: str,
    alpha: str,
    ternary: bool,
) -> keras.Model:
    """The model with QKeras's layers: weights and outputs of rectifiers are quantized.

    It is what `qkeras.utils.model_quantize` makes, which cannot read the models of today's
    tf_keras.

    Args:
        model: the float one.
        images: training images, to measure activations on.
        bits: of weights and activations; first and last layer have weights of 8 bits.
        integer_bits: of all rectifiers alike, or "measured": for each of them those with the
            smallest mean square error.
        alpha: "auto" or "auto_po2", how the scale of a channel is found.
        ternary: weights by QKeras's `ternary` instead of `quantized_bits`, at 2 bits; depthwise
            ones not, for which it would have one scale a layer.
    """
    linear = [layer for layer in model.layers if isinstance(layer, _LINEAR)]
    rectifiers = [layer for layer in model.layers if isinstance(layer, keras.layers.ReLU)]
    if integer_bits == "measured":
        chosen = _best_integer_bits(model, rectifiers, images, bits)
    else:
        chosen = [int(integer_bits)] * len(rectifiers)
    integers = dict(zip((layer.name for layer in rectifiers), chosen, strict=True))

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if layer.name in integers:
            relu = qkeras.quantized_relu(bits, integers[layer.name])
            return qkeras.QActivation(relu, name=layer.name)
        if layer not in linear:
            return type(layer).from_config(config)
        layer_bits = 8 if layer in (linear[0], linear[-1]) else bits
        depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
        # A scale for each channel of the last axis, where depthwise kernels have none.
        axis = {"scale_axis": 2} if depthwise else {}
        if ternary and layer_bits == 2 and not depthwise:
            kernel = qkeras.ternary(alpha=alpha)
        else:
            kernel = qkeras.quantized_bits(layer_bits, 0, 1, alpha=alpha, **axis)
        if depthwise:
            return qkeras.QDepthwiseConv2D(depthwise_quantizer=kernel, **config)
        made = qkeras.QConv2D if isinstance(layer, keras.layers.Conv2D) else qkeras.QDense
        return made(kernel_quantizer=kernel, **config)

    copy = keras.models.clone_model(model, clone_function=clone)
    copy.set_weights(model.get_weights())
    return copy


def float_model(path: str) -> keras.Model:
    """The float model of a file of tf_keras, in the layers of the Keras that trains."""
    model = tf_keras.models.load_model(path, compile=False)
    if keras is tf_keras:
        return model
    config = model.get_config()
    for layer in config["layers"]:  # what Keras 3 writes differently
        settings = layer["config"]
        if layer["class_name"] == "BatchNormalization":
            [settings["axis"]] = settings["axis"]
        elif layer["class_name"] == "DepthwiseConv2D":
            del settings["groups"]
    copy = keras.Model.from_config(config)
    copy.set_weights(model.get_weights())
    return copy


def _best_integer_bits(
    model: keras.Model, rectifiers: list[Any], images: peer_task.Images, bits: int
) -> list[int]:
    """For each rectifier, the power of two with the smallest mean square error."""
    outputs = keras.Model(model.input, [layer.output for layer in rectifiers])
    pixels, _ = next(peer_task.batches(images, 1, seed=0))
    chosen = []
    for values in outputs(pixels, training=True):
        errors = {}
        for integer in range(-4, 7):
            step = 2.0 ** (integer - bits)
            codes = np.clip(np.round(values / step), 0, 2**bits - 1)
            errors[integer] = float(np.mean(np.square(codes * step - values)))
        chosen.append(min(errors, key=errors.__getitem__))
    return chosen


def main() -> None:
    """Trains one QKeras model and prints its top-1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help=".npz with the images and labels")
    parser.add_argument("--start", required=True, help=".keras file of the float model")
    parser.add_argument("--bits", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--integer_bits", default="measured")
    parser.add_argument("--alpha", default="auto", choices=("auto", "auto_po2"))
    parser.add_argument("--ternary", action="store_true")
    parser.add_argument("--recipe", default="{}", help="fields of peer_task.Recipe as JSON")
    arguments = parser.parse_args()
    peer_task.one_thread()
    train, test = peer_task.read(arguments.data)
    start = float_model(arguments.start)
    recipe = peer_task.Recipe(**json.loads(arguments.recipe))
    model = quantized(
        start,
        train,
        bits=arguments.bits,
        integer_bits=arguments.integer_bits,
        alpha=arguments.alpha,
        ternary=arguments.ternary,
    )
    teacher = start if recipe.distillation else None
    result = peer_task.train_and_measure(
        model, train, test, recipe, seed=arguments.seed, teacher=teacher
    )
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
