"""Good files, from which hostile ones are made: one of each kind that sat-tf opens."""

import functools
import os
import pathlib
import subprocess
import sys

import numpy as np
from PIL import Image

# The processes of a campaign find their folder in this variable.
_VARIABLE = "SAT_TF_ORIGINALS"
_ROOT = pathlib.Path(__file__).parents[2]
# Files that other tools wrote.
FOREIGN = _ROOT / "tests" / "exact" / "foreign"
# These models of the tests' zoo make other operators, and their files are written otherwise.
_SPECIMENS = {
    "bottleneck": {"pack": "int2"},
    "sums_of_many": {"target": "ethos-u55"},
    "inception": {"resizable": True},
    "softmax": {"softmax": True, "output_type": "int8"},
    "float_head": {"float_head": True},
    "preactivation_float_streams": {},
    "padded_average_pooling": {"labels": ["cat", "dog", "cow"]},
}


def prepare(folder: pathlib.Path) -> pathlib.Path:
    """Makes the originals for all servers that start later, in a folder, or finds them.

    They are found where the environment names the folder of earlier ones.
    """
    folder = pathlib.Path(os.environ.get(_VARIABLE, folder))
    if not (folder / "whole").exists():
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "tests.campaign.originals", str(folder)]
        done = subprocess.run(words, check=False, cwd=_ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
    os.environ[_VARIABLE] = str(folder)
    return folder


def original(name: str) -> pathlib.Path:
    """The path of one of them."""
    return pathlib.Path(os.environ[_VARIABLE]) / name


@functools.cache
def tflite_files() -> dict[str, bytes]:
    """Files of ours and of other tools, by name."""
    own, foreign = pathlib.Path(os.environ[_VARIABLE]).glob("*.tflite"), FOREIGN.glob("*.tflite")
    found = {path.name: path.read_bytes() for path in sorted([*own, *foreign])}
    assert {"model.tflite", "converter_uint8.tflite"} <= found.keys()
    return found


def write_one_of_each(folder: pathlib.Path) -> None:
    """Writes one good file of each kind into a folder."""
    import sat_tf
    from sat_tf.commands import main
    from sat_tf.training.config import config_text, parse_config
    from tests.exact.device.kits import certificate_in, checked
    from tests.loading.hostile import small
    from tests.training.small import small_images, write_pictures

    images = np.random.default_rng(0).integers(0, 256, (64, 6, 6, 3)).astype(np.uint8)
    model = small()
    for name in ("float.keras", "float.h5", "saved"):
        model.save(folder / name)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    quantized = sat_tf.calibrate(quantized, images)
    quantized.save(folder / "quantized.keras")
    sat_tf.export_tflite(quantized, folder / "model.tflite")
    np.save(folder / "images.npy", images[:4])
    (folder / "policy.yaml").write_text(_POLICY)
    (folder / "run.yaml").write_text(config_text(parse_config(_RUN)))
    (folder / "pictures").mkdir()
    for name in ("a.png", "b.png", "c.jpg", *(f"{number}.png" for number in range(9))):
        Image.fromarray(images[0]).save(folder / "pictures" / name)
    bright = small_images(train=36)
    write_pictures(folder / "classes", bright.train_images, bright.train_labels)
    words = ["verify", str(folder / "model.tflite"), "--images", str(folder / "images.npy")]
    words += ["--kit", str(folder / "kit.zip")]
    assert main.main([*words, "--out", str(folder / "proof"), "--runtime", "xnnpack"]) == 0
    assert checked(folder / "kit.zip", folder).returncode == 0
    certificate_in(folder).rename(folder / "device.json")


_POLICY = """
weight_bits: 4
activation_bits: 4
input_range: [0, 255]
weight_grid: packed
overrides: {head: {weight_bits: 8}}
"""
_RUN = """
name: tiny
data: {name: folder, options: {data_dir: classes, image_size: 8, resize_ratio: 1.0}}
model:
  name: resnet18
  options: {width_multiplier: 0.1, stage_blocks: [1], stem_kernel_size: 3, stem_stride: 1}
stages:
  float: {epochs: 2, batch_size: 8, base_learning_rate: 0.1, warmup_epochs: 0}
  quantized: {epochs: 2, warmup_epochs: 0}
calibration: {num_images: 64}
export: {verify_images: 4}
"""


def _write_specimens(folder: pathlib.Path) -> None:
    import sat_tf
    from tests.export.zoo import ZOO

    for name, settings in _SPECIMENS.items():
        sat_tf.export_tflite(ZOO[name].quantized(), folder / f"{name}.tflite", **settings)


def _write_keras3(folder: pathlib.Path) -> None:
    """Writes the file of a model of Keras 3."""
    import keras  # noqa: TID251 -- the file is one of Keras 3

    keras.utils.set_random_seed(0)
    layers = keras.layers
    image = keras.Input((6, 6, 3), name="image")
    x = layers.Conv2D(4, 3, use_bias=False, name="conv")(image)
    x = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm")(x))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    keras.Model(image, layers.Dense(3, name="head")(x)).save(folder / "keras3.keras")


if __name__ == "__main__":
    made = pathlib.Path(sys.argv[1])
    for write in (write_one_of_each, _write_specimens, _write_keras3):
        write(made)
    (made / "whole").touch()
