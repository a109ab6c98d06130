"""Draws what one layer of a trained model computes with: its weights and its codes.

python examples/plot_codes.py --model=runs/digits_mobilenet_v2_w4a4/quantized.keras
python examples/plot_codes.py --model=... --layer=block_5_depthwise --output=codes.png
"""

import difflib
import pathlib

import matplotlib
import numpy as np
import tf_keras as keras
from absl import app, flags
from matplotlib import pyplot as plt

import sat_tf
from sat_tf.export.lowering.layers import integer_kernel
from sat_tf.files import written_whole
from sat_tf.loading.load import load_model
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import ActivationQuantizer
from sat_tf.training import data

matplotlib.use("Agg")

_MODEL = flags.DEFINE_string("model", None, "A saved model quantized by sat-tf.", required=True)
_LAYER = flags.DEFINE_string("layer", "block_5_expand_conv", "A linear layer of it.")
_READER = flags.DEFINE_string("rectifier", "block_5_expand_relu", "A rectifier of it.")
_DATA = flags.DEFINE_string("data", "digits", "Images by name.")
_OUTPUT = flags.DEFINE_string("output", "codes.png", "Where to write the picture.")

_REAL_COLOR, _CODE_COLOR = "#9db7d5", "#c1440e"


def _find(model: keras.Model, name: str) -> QuantizedLayer:
    names = [layer.layer.name for layer in model.layers if isinstance(layer, QuantizedLayer)]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1) or names[:1]
        raise app.UsageError(f"received the layer {name!r}, expected one of the model: {near[0]}?")
    return model.get_layer(f"quant_{name}")


def main(argv: list[str]) -> None:
    """Draws the picture."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    model = load_model(_MODEL.value)
    linear, rectifier = _find(model, _LAYER.value), _find(model, _READER.value)
    images = data.load(_DATA.value, image_size=model.input_shape[1]).test_images[:128]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    _draw_weights(left, linear)
    _draw_activations(right, model, rectifier, images)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    with written_whole(pathlib.Path(_OUTPUT.value)) as temporary:
        figure.savefig(temporary, dpi=120)
    print(f"wrote {_OUTPUT.value} (sat-tf {sat_tf.__version__})")


def _draw_weights(axes: plt.Axes, layer: QuantizedLayer) -> None:
    quantizer = layer.quantize_config.weights
    if quantizer is None:
        raise app.UsageError(f"received {layer.layer.name}, expected a linear layer.")
    clamped = np.ravel(quantizer.stages(layer.layer.kernel)["clamped"])
    codes = np.ravel(integer_kernel(layer)[0])
    values, counts = np.unique(codes, return_counts=True)
    axes.hist(clamped, bins=120, range=(-1, 1), color=_REAL_COLOR, label="before quantization")
    axes.set_xlabel("clamped weight")
    axes.set_ylabel("weights in a bin")
    twin = axes.twinx()
    top = np.max(np.abs(codes))
    twin.vlines(values / top, 0, counts, color=_CODE_COLOR, linewidth=3, label="codes")
    twin.set_ylabel("weights with a code")
    twin.set_ylim(bottom=0)
    axes.set_title(f"{layer.layer.name}: {values.size} codes of {quantizer.num_bits} bits")


def _draw_activations(
    axes: plt.Axes, model: keras.Model, layer: QuantizedLayer, images: np.ndarray
) -> None:
    before = keras.Model(model.input, layer.input)(images.astype(np.float32), training=False)
    real = np.ravel(layer.before_quantization(before))
    level = float(layer.output_variables["clipping_level"].numpy())
    quantizer = layer.quantize_config.output
    if not (isinstance(quantizer, ActivationQuantizer) and quantizer.rectifies):
        raise app.UsageError(f"received {layer.layer.name}, expected a quantized rectifier.")
    codes = np.ravel(keras.Model(model.input, layer.output)(images.astype(np.float32)))
    levels = quantizer.code_range(layer.output_variables).intervals
    values, counts = np.unique(np.rint(codes * levels / level), return_counts=True)
    axes.hist(real, bins=160, range=(-level, 1.6 * level), color=_REAL_COLOR)
    axes.axvline(level, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f" clipping\n level {level:.2f}", (level, 0.6), xycoords=("data", "axes fraction"), va="top"
    )
    axes.set_xlabel("activation before its quantizer")
    axes.set_ylabel("values in a bin")
    twin = axes.twinx()
    shown = values > 0  # code 0 holds all that the rectifier cuts off, and would hide the rest
    twin.vlines(values[shown] * level / levels, 0, counts[shown], color=_CODE_COLOR, linewidth=3)
    twin.set_ylim(bottom=0)
    twin.set_ylabel("values with a code above 0")
    share = counts[values == 0].sum() / counts.sum()
    axes.set_title(f"{layer.layer.name}: {values.size} codes, {share:.0%} of them 0")


if __name__ == "__main__":
    app.run(main)
