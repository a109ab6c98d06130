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


def make_originals(folder: pathlib.Path) -> None:
    """Makes one good file of each kind in a folder."""
    import sat_tf
    from sat_tf.commands import main
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
    from tests.export.device.kits import certificate_in, checked

    assert checked(folder / "kit.zip", folder).returncode == 0
    certificate_in(folder).rename(folder / "device.json")
    _write_specimens(folder)
    (folder / "whole").touch()


def _write_specimens(folder: pathlib.Path) -> None:
    import sat_tf
    from tests.export.zoo import ZOO

    for name, settings in _SPECIMENS.items():
        sat_tf.export_tflite(ZOO[name].quantized(), folder / f"{name}.tflite", **settings)


if __name__ == "__main__":
    make_originals(pathlib.Path(sys.argv[1]))
