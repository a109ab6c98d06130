"""Peak memory and seconds of each step from a float model to a verified file, by images.

Models at 224x224 with 1000 classes and random weights, at 4 bits: those of
`sat_tf.training.models`, and with `--keras3` those of `keras.applications` in Keras 3. Each number
of images has a process of its own, in which Linux tells the largest resident set of each step, and
starts anew: what a step leaves behind counts for the next ones. Calibration gets batches of 32
images as float32, as a data set gives them; verification gets a few images, one after the other as
ever. A float prediction of 64 images, the second one, is what the seconds of calibration are to be
compared with.

With `--command`, what is measured is `sat-tf quantize MODEL --images FOLDER --bits 4 --epochs 0` on
as many pictures, in which calibration takes 512 at most.

    python benchmarks/memory_by_images.py
    python benchmarks/memory_by_images.py --keras3 --images=64,256
    python benchmarks/memory_by_images.py --models=resnet50 --images=64 --steps=1
    python benchmarks/memory_by_images.py --command --images=64,256
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import rich.console
from absl import app, flags
from new_process import in_new_process
from rows import as_table, read_csv, write_csv

_MODELS = flags.DEFINE_list("models", ["mobilenet_v2"], "mobilenet_v2, resnet50")
_IMAGES = flags.DEFINE_list("images", ["64", "256", "1024"], "images to calibrate on")
_VERIFIED = flags.DEFINE_integer("verified", 8, "images to verify on", lower_bound=1)
_KERAS3 = flags.DEFINE_bool("keras3", False, "models of Keras 3, on TensorFlow")
_STEPS = flags.DEFINE_integer("steps", 0, "of reconstruction for a block; 0 leaves it out", 0)
_COMMAND = flags.DEFINE_bool("command", False, "the command instead of functions")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/memory_by_images.csv", "rows")

_OF_KERAS = {"mobilenet_v2": "MobileNetV2", "resnet50": "ResNet50"}
_PREDICTED = 64
_BATCH_SIZE = 32
_MEASURED = ("quantize", "calibrate", "reconstruct", "export", "verify", "predict", "command")


def main(argv: list[str]) -> None:
    """Measures every model with every number of images, writing the CSV after each."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    if unknown := [name for name in _MODELS.value if name not in _OF_KERAS]:
        raise app.UsageError(f"--models: received {unknown}, expected {', '.join(_OF_KERAS)}.")
    if sys.platform != "linux":
        raise app.UsageError(f"received {sys.platform}, expected Linux, which tells the peaks.")
    rows = read_csv(_OUTPUT.value)
    for name in _MODELS.value:
        for count in _IMAGES.value:
            row = {
                "model": name,
                "Keras": "3" if _KERAS3.value else "2",
                "images": count,
                "by": "command" if _COMMAND.value else "functions",
                "steps": str(_STEPS.value),
            }
            measure = _of_command if _COMMAND.value else _of_functions
            found = in_new_process(
                measure, name, _KERAS3.value, int(count), _VERIFIED.value, _STEPS.value
            )
            columns = [f"{step}, {unit}" for step in _MEASURED for unit in ("s", "MiB")]
            rows = [one for one in rows if not row.items() <= one.items()]
            rows.append(
                row | {column: found.get(column, "") for column in ["before, MiB", *columns]}
            )
            write_csv(rows, _OUTPUT.value)
    rich.console.Console().print(as_table(rows, "224x224, 1000 classes, w4a4"))


def _memory(line: str) -> int:
    """A line of what Linux knows of this process, in MiB."""
    lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (found,) = (one.split()[1] for one in lines if one.startswith(f"{line}:"))
    return int(found) // 1024


def _float_model(name: str, keras3: bool) -> Any:
    if not keras3:
        from full_size import realistic_model

        return realistic_model(name)
    import keras  # noqa: TID251

    keras.utils.set_random_seed(0)
    return getattr(keras.applications, _OF_KERAS[name])(weights=None)


def _of_functions(
    name: str, keras3: bool, num_images: int, verified: int, steps: int
) -> dict[str, Any]:
    """Peaks and seconds of each step on one model, in this process."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    warnings.simplefilter("ignore")
    import numpy as np
    from full_size import smooth_images

    import sat_tf

    row: dict[str, Any] = {}

    def measured(step: str, function: Callable[[], Any]) -> Any:
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        start = time.perf_counter()
        made = function()
        row[f"{step}, s"] = round(time.perf_counter() - start, 1)
        row[f"{step}, MiB"] = _memory("VmHWM")
        print(name, num_images, step, row[f"{step}, s"], row[f"{step}, MiB"], flush=True)
        return made

    def batches() -> Iterator[np.ndarray]:
        for start in range(0, num_images, _BATCH_SIZE):
            yield smooth_images(_BATCH_SIZE, seed=start).astype(np.float32)

    model = _float_model(name, keras3)
    row["before, MiB"] = _memory("VmRSS")
    quantized = measured(
        "quantize", lambda: sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    )
    options = {"num_images": num_images, "progress": False}
    measured("calibrate", lambda: sat_tf.calibrate(quantized, batches(), **options))
    if steps:
        measured(
            "reconstruct",
            lambda: sat_tf.reconstruct(quantized, model, batches(), steps=steps, **options),
        )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        measured("export", lambda: sat_tf.export_tflite(quantized, path))
        images = smooth_images(verified, seed=1)
        measured("verify", lambda: sat_tf.verify_tflite(quantized, path, images, progress=False))
    images = smooth_images(_PREDICTED).astype(np.float32)
    for _ in range(2):
        measured("predict", lambda: model.predict(images, batch_size=_BATCH_SIZE, verbose=0))
    return row


def _of_command(
    name: str, keras3: bool, num_images: int, verified: int, steps: int
) -> dict[str, Any]:
    """Peak and seconds of the command, whose process is a child of this one."""
    import resource

    import numpy as np
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        path, pictures = pathlib.Path(folder) / "model.keras", pathlib.Path(folder) / "pictures"
        in_new_process(_save, name, keras3, path)
        pictures.mkdir()
        draw = np.random.default_rng(0)
        for number in range(num_images):
            # A JPEG of noise would be larger than that of any photograph.
            coarse = Image.fromarray(draw.integers(0, 256, (14, 14, 3), np.uint8))
            coarse.resize((256, 256)).save(pictures / f"{number:04}.jpg")
        command = [sys.executable, "-m", "sat_tf", "quantize", str(path), "--bits=4"]
        command += [f"--images={pictures}", "--input_range=0,255", "--epochs=0"]
        command += [f"--out={folder}/out"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        start = time.perf_counter()
        run = subprocess.run(command, check=False)
        seconds = round(time.perf_counter() - start, 1)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # Random weights lose their classes, which the status says.
    if run.returncode not in (0, 1) or peak <= before:
        raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}, at {peak} KiB.")
    return {"command, s": seconds, "command, MiB": peak // 1024}


def _save(name: str, keras3: bool, path: pathlib.Path) -> None:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    _float_model(name, keras3).save(path)


if __name__ == "__main__":
    app.run(main)
