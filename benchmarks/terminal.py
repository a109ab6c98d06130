"""Draws what `sat-tf quantize` prints: docs/images/quantize.svg, the first picture of the README.

    python -m benchmarks.terminal

A small network learns handwritten digits in float; the command then quantizes it to 4 bits on a
folder of pictures that it has not seen.
"""

import io
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import tf_keras as keras
from PIL import Image
from rich.console import Console
from rich.text import Text

from sat_tf.training.data import load_digits

_PICTURE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "images" / "quantize.svg"
_COMMAND = ["quantize", "model.keras", "--images", "photos/", "--bits", "4"]
_COLUMNS = 100


def _write_model(path: pathlib.Path, images: np.ndarray, labels: np.ndarray) -> None:
    layers = keras.layers
    model = keras.Sequential([keras.Input(images.shape[1:])], name="digits")
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        model.add(layers.Conv2D(filters, 3, strides, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, 40 * -(-len(images) // 32))
    model.compile(keras.optimizers.Adam(rate), loss)
    model.fit(images.astype(np.float32), labels, epochs=40, batch_size=32, verbose=0)
    model.save(path)


def main() -> None:
    """Draws the picture."""
    keras.utils.set_random_seed(0)
    digits = load_digits(32)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _write_model(folder / "model.keras", digits.train_images, digits.train_labels)
        for place, (image, label) in enumerate(
            zip(digits.test_images, digits.test_labels, strict=True)
        ):
            path = folder / "photos" / str(label) / f"{place:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.astype(np.uint8)).save(path)
        run = [sys.executable, "-m", "sat_tf", *_COMMAND]
        printed = subprocess.run(
            run, cwd=folder, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    console.print(Text("$ sat-tf " + " ".join(_COMMAND), style="bold"))
    console.print(Text.from_ansi(printed))
    _PICTURE.write_text(console.export_svg(title="sat-tf"), encoding="utf-8")


if __name__ == "__main__":
    main()
