"""Draws the proof: the codes that Keras computes in training beside those that LiteRT computes.

A small network learns scikit-learn's digits in 4 bits, and is exported, with the biases of its
file, and verified; then the same images go through Keras and through the file, and every code of
every activation is compared. Half a minute on two cores, nothing to download.

python examples/plot_proof.py --output=docs/images/proof.png
"""

import pathlib

import matplotlib
import numpy as np
import tensorflow as tf
import tf_keras as keras
from absl import app, flags
from matplotlib import pyplot as plt

import sat_tf
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.verify import TrainedModel
from sat_tf.files import written_whole
from sat_tf.graph.network import Network
from sat_tf.training import data

matplotlib.use("Agg")

_OUTPUT = flags.DEFINE_string("output", "proof.png", "Where to write the picture.")

_BITS = 4
_SEED = 0
_NUM_IMAGES = 64
_CODES = 2**_BITS
_SHOWN, _CHANNEL = "relu_2", 1  # the layer and the channel whose codes are drawn
_INK, _MUTED, _COLORS = "#1f2d3a", "#5b6b79", "Blues"


def main(argv: list[str]) -> None:
    """Trains, exports, verifies, and draws the picture."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    keras.utils.set_random_seed(_SEED)
    digits = data.load_digits(32)
    images = digits.test_images[:_NUM_IMAGES]
    path = pathlib.Path(_OUTPUT.value).with_suffix(".tflite")
    trained, certificate = _train(digits, path, images)
    in_keras, _ = trained.run(images)
    in_litert = _codes_of_file(path, images, list(in_keras))
    path.unlink()
    codes_differing = sum(
        int(np.count_nonzero(in_keras[name] != in_litert[name])) for name in in_keras
    )
    figure = _draw(images[0], in_keras[_SHOWN], in_litert[_SHOWN])
    figure.text(
        0.5,
        0.025,
        f"The whole network on {_NUM_IMAGES} images, {certificate.codes_compared:,} codes in "
        f"{len(in_keras)} tensors: {certificate.codes_differing} of LiteRT differ from the file's "
        f"integer model, {codes_differing} from Keras.",
        ha="center",
        fontsize=12,
        fontweight="bold",
        color=_INK,
    )
    with written_whole(pathlib.Path(_OUTPUT.value)) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    print(
        f"wrote {_OUTPUT.value} (sat-tf {sat_tf.__version__}): {certificate.codes_differing} codes "
        f"differ from the integer model, {codes_differing} from Keras"
    )


def _model() -> keras.Model:
    layers = keras.layers
    image = value = layers.Input((32, 32, 3), name="image")
    for number, channels in enumerate((8, 16, 24), start=1):
        value = layers.Conv2D(
            channels, 3, strides=2, padding="same", use_bias=False, name=f"conv_{number}"
        )(value)
        value = layers.BatchNormalization(momentum=0.9, name=f"norm_{number}")(value)
        value = layers.ReLU(name=f"relu_{number}")(value)
    value = layers.GlobalAveragePooling2D(name="pool")(value)
    return keras.Model(image, layers.Dense(10, name="logits")(value))


def _train(
    digits: data.ImageSet, path: pathlib.Path, images: np.ndarray
) -> tuple[TrainedModel, Certificate]:
    batches = tf.data.Dataset.from_tensor_slices((digits.train_images, digits.train_labels))
    batches = batches.shuffle(2000, seed=_SEED).batch(32, drop_remainder=True)
    batches = batches.map(lambda pixels, label: (tf.cast(pixels, tf.float32), label))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = _model()
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    model.fit(batches, epochs=4, verbose=2)
    policy = sat_tf.BitPolicy(weight_bits=_BITS, activation_bits=_BITS)
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, digits.train_images[:512])
    quantized.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    quantized.fit(batches, epochs=4, verbose=2)
    sat_tf.export_tflite(quantized, path, snap_biases=True)
    certificate = sat_tf.verify_tflite(quantized, path, images, digits.test_labels[:_NUM_IMAGES])
    network = Network(quantized)
    return TrainedModel(network, deployed_graph(network)), certificate


def _codes_of_file(
    path: pathlib.Path, images: np.ndarray, names: list[str]
) -> dict[str, np.ndarray]:
    """The stored integers of the named tensors, as LiteRT with XNNPACK computes them."""
    runtime = Runtime(path.read_bytes(), keep_tensors=True)
    runtime.run(images)
    # The output has the name of its layer; its codes are in front of it.
    stored = {name: "logits_codes" if name == "logits" else name for name in names}
    codes = runtime.tensors(stored.values())
    return {name: codes[stored[name]].astype(np.int32) for name in names}


def _draw(image: np.ndarray, in_keras: np.ndarray, in_litert: np.ndarray) -> plt.Figure:
    """One image, one channel of its codes from either side, and all codes against each other."""
    lowest = 2**7 - _CODES  # where 4-bit codes lie in int8: what is above them saturates
    in_keras, in_litert = in_keras - lowest, in_litert - lowest
    figure = plt.figure(figsize=(12, 4.3))
    areas = figure.add_gridspec(
        1, 4, width_ratios=(0.62, 1, 1, 1.12), left=0.015, right=0.985, top=0.8, bottom=0.17
    )
    picture, trained, deployed, both = (figure.add_subplot(area) for area in areas)
    picture.imshow(image)
    picture.set_axis_off()
    picture.set_anchor("N")
    _title(picture, "one image", "uint8 pixels")
    for axes, codes, title, subtitle in (
        (trained, in_keras, "Keras, in training", f"4-bit codes of {_SHOWN}, one channel"),
        (deployed, in_litert, "LiteRT, from the file", "the same codes, read out of XNNPACK"),
    ):
        _draw_codes(axes, codes[0, :, :, _CHANNEL])
        _title(axes, title, subtitle)
    counts = np.zeros((_CODES, _CODES), np.int64)
    np.add.at(counts, (in_litert.ravel(), in_keras.ravel()), 1)
    both.imshow(
        np.where(counts, np.log10(np.maximum(counts, 1)) + 2, np.nan),
        origin="lower",
        cmap=_COLORS,
        vmin=0,
        vmax=7,
    )
    both.set_xticks(range(0, _CODES, 5))
    both.set_yticks(range(0, _CODES, 5))
    both.set_xlabel("code in Keras", color=_MUTED)
    both.set_ylabel("code in LiteRT", color=_MUTED)
    both.tick_params(colors=_MUTED)
    off_diagonal = counts.sum() - np.trace(counts)
    _title(both, "all images, all channels", f"{counts.sum():,} codes, {off_diagonal} off the line")
    return figure


def _draw_codes(axes: plt.Axes, codes: np.ndarray) -> None:
    axes.imshow(codes, cmap=_COLORS, vmin=0, vmax=_CODES + 3)
    for (row, column), code in np.ndenumerate(codes):
        color = "white" if code > _CODES // 2 + 1 else _INK
        axes.text(column, row, code, ha="center", va="center", fontsize=10, color=color)
    axes.set_axis_off()


def _title(axes: plt.Axes, title: str, subtitle: str) -> None:
    axes.set_title(title, fontsize=12, fontweight="bold", color=_INK, pad=22)
    axes.text(
        0.5, 1.03, subtitle, transform=axes.transAxes, ha="center", fontsize=9.5, color=_MUTED
    )


if __name__ == "__main__":
    app.run(main)
