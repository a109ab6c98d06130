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
_FOREIGN = _ROOT / "tests" / "export" / "foreign"
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
    paths = [*pathlib.Path(os.environ[_VARIABLE]).glob("*.tflite"), *_FOREIGN.glob("*.tflite")]
    return {path.name: path.read_bytes() for path in sorted(paths)}


def write_one_of_each(folder: pathlib.Path) -> None:
    """Writes one good file of each kind into a folder."""
    import sat_tf
    from sat_tf.commands import main
    from tests.export.device.kits import certificate_in, checked
    from tests.loading.hostile import small

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (64, 6, 6, 3)).astype(np.uint8)
    model = small()
    for name in ("float.keras", "float.h5", "saved"):
        model.save(folder / name)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    quantized = sat_tf.calibrate(quantized, images)
    quantized.save(folder / "quantized.keras")
    sat_tf.export_tflite(quantized, folder / "model.tflite")
    np.save(folder / "images.npy", images[:4])
    (folder / "policy.yaml").write_text("weight_bits: 4\nactivation_bits: 4\n")
    (folder / "pictures").mkdir()
    for name in ("a.png", "b.png", "c.jpg"):
        Image.fromarray(images[0]).save(folder / "pictures" / name)
    words = ["verify", str(folder / "model.tflite"), "--images", str(folder / "images.npy")]
    words += ["--kit", str(folder / "kit.zip")]
    assert main.main([*words, "--out", str(folder / "proof"), "--runtime", "xnnpack"]) == 0
    assert checked(folder / "kit.zip", folder).returncode == 0
    certificate_in(folder).rename(folder / "device.json")


def _write_specimens(folder: pathlib.Path) -> None:
    import sat_tf
    from tests.export.zoo import ZOO

    for name, settings in _SPECIMENS.items():
        sat_tf.export_tflite(ZOO[name].quantized(), folder / f"{name}.tflite", **settings)


def _write_run(folder: pathlib.Path) -> None:
    """Writes the configuration of a run of two steps, with every key, and its float model."""
    import tf_keras as keras

    from sat_tf.training.config import config_text, parse_config

    layers = keras.layers
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, strides=2, use_bias=False, name="conv")(image)
    x = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm")(x))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    keras.Model(image, layers.Dense(10, name="head")(x)).save(folder / "digits.keras")
    config = parse_config(_RUN)
    (folder / "run.yaml").write_text(config_text(config))


_RUN = """
name: tiny
data: {name: digits, options: {image_size: 8}}
training: {float_model: digits.keras}
policy: {weight_bits: 4, activation_bits: 4}
stages:
  float: {epochs: 1, batch_size: 32, base_learning_rate: 0.05, warmup_epochs: 0}
  quantized: {steps: 2}
calibration: {num_images: 64}
export: {verify_images: 4}
"""


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
    for write in (write_one_of_each, _write_specimens, _write_run, _write_keras3):
        write(made)
    (made / "whole").touch()
