"""Time and memory of a training step of a quantized Keras 3 model, times those of the float one.

It needs two `.keras` files, Keras 3 with JAX, PyTorch or TensorFlow, NumPy and this checkout, so
that it runs on machines with an accelerator where nothing else is installed. Elsewhere, where
TensorFlow and all else of sat-tf are, the files are made:

    python benchmarks/gpu_step.py --make=mobilenet_v2 --folder=runs/gpu
    KERAS_BACKEND=jax python benchmarks/gpu_step.py --folder=runs/gpu --batch_size=64

Each round trains one epoch of a few steps with `fit`, compiled as Keras compiles on the backend,
the float model and the quantized one in turn; a ratio is that of the medians of the rounds, and its
quartiles are those of the ratios round by round. Images are random and lie in memory. Memory is the
peak of the device in a process of its own; CPUs have none to tell.
"""

import argparse
import csv
import gc
import os
import pathlib
import statistics
import subprocess
import sys
import time

_HERE = pathlib.Path(__file__).resolve()
_FLOAT, _QUANTIZED = "float.keras", "w4a4.keras"
_COLUMNS = (
    "backend",
    "device",
    "model",
    "image size",
    "batch size",
    "float, seconds",
    "w4a4, seconds",
    "times float",
    "quartiles",
    "float, mebibytes",
    "w4a4, mebibytes",
)
_MODELS = {"mobilenet_v2": "MobileNetV2", "resnet50": "ResNet50"}


def main() -> None:
    """Makes the files, or measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", default="runs/gpu_step", help="of the .keras files")
    parser.add_argument("--make", choices=list(_MODELS), help="make the files of this model")
    parser.add_argument("--image_size", type=int, default=224, help="with --make")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10, help="in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jit_compile", choices=["auto", "true", "false"], default="auto")
    parser.add_argument("--precision", default="float32", help="a policy such as mixed_bfloat16")
    parser.add_argument("--output", help="CSV file to append the row to")
    parser.add_argument("--memory_of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = pathlib.Path(options.folder)
    if options.make:
        _make(options.make, options.image_size, folder, options.precision)
        return
    missing = [name for name in (_FLOAT, _QUANTIZED) if not (folder / name).is_file()]
    if missing:
        parser.error(
            f"--folder={folder}: received a folder without {' and '.join(missing)}; make them with "
            "--make=mobilenet_v2 where sat-tf and TensorFlow are."
        )
    sys.path.insert(0, str(_HERE.parents[1]))  # this checkout need not be installed
    if options.memory_of:
        print(_memory(folder / options.memory_of, options))
        return
    row = _measured(folder, options)
    for column in _COLUMNS:
        print(f"{column}: {row[column]}")
    if options.output:
        path = pathlib.Path(options.output)
        is_new = not path.is_file()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)


def _make(name: str, size: int, folder: pathlib.Path, precision: str) -> None:
    import keras

    import sat_tf

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(precision)
    build = getattr(keras.applications, _MODELS[name])
    model = build(input_shape=(size, size, 3), weights=None, classifier_activation=None)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / _FLOAT)
    policy = sat_tf.BitPolicy.mobile(4, input_range=(-1, 1))
    sat_tf.quantize_model(model, policy).save(folder / _QUANTIZED)
    print(f"wrote {folder / _FLOAT} and {folder / _QUANTIZED}")


def _measured(folder: pathlib.Path, options: argparse.Namespace) -> dict[str, object]:
    import keras

    loaded = {name: _Rounds(folder / name, options) for name in (_FLOAT, _QUANTIZED)}
    for rounds in loaded.values():
        rounds.run()  # compiles
        rounds.run()
    # A collection of all of Python's objects takes as long as several steps, and would be of one.
    gc.collect()
    gc.disable()
    seconds: dict[str, list[float]] = {name: [] for name in loaded}
    for _ in range(options.rounds):
        for name, rounds in loaded.items():
            start = time.perf_counter()
            rounds.run()
            seconds[name].append((time.perf_counter() - start) / options.steps)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratios = [w / f for f, w in zip(seconds[_FLOAT], seconds[_QUANTIZED], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    model = loaded[_FLOAT].model
    return {
        "backend": keras.backend.backend(),
        "device": _device(),
        "model": model.name,
        "image size": model.input_shape[1],
        "batch size": options.batch_size,
        "float, seconds": f"{medians[_FLOAT]:.4f}",
        "w4a4, seconds": f"{medians[_QUANTIZED]:.4f}",
        "times float": f"{medians[_QUANTIZED] / medians[_FLOAT]:.3f}",
        "quartiles": f"{low:.3f} to {high:.3f}",
        "float, mebibytes": _in_new_process(_FLOAT),
        "w4a4, mebibytes": _in_new_process(_QUANTIZED),
    }


class _Rounds:
    """A model of a file, compiled, and a few batches to train on."""

    def __init__(self, path: pathlib.Path, options: argparse.Namespace) -> None:
        import keras
        import numpy as np

        import sat_tf  # noqa: F401  # registers the layers

        self.model = keras.saving.load_model(path, compile=False)
        jit = {"auto": "auto", "true": True, "false": False}[options.jit_compile]
        self.model.compile(
            keras.optimizers.SGD(1e-3, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=jit,
        )
        rng = np.random.default_rng(0)
        count = options.batch_size * options.steps
        shape = (count, *self.model.input_shape[1:])
        self._images = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        self._labels = rng.integers(0, self.model.output_shape[-1], count)
        self._batch_size = options.batch_size

    def run(self) -> None:
        """One round; the loss that `fit` returns waits for the last step."""
        self.model.fit(
            self._images, self._labels, batch_size=self._batch_size, shuffle=False, verbose=0
        )


def _in_new_process(name: str) -> str:
    # The peak of a process is that of all models it has trained.
    command = [sys.executable, str(_HERE), *sys.argv[1:], f"--memory_of={name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1].strip("-")


def _memory(path: pathlib.Path, options: argparse.Namespace) -> str:
    """MiB of the device at its peak while a model trains; "-" on a CPU."""
    import keras

    backend = keras.backend.backend()
    if _device() == "cpu":
        return "-"
    _Rounds(path, options).run()
    if backend == "torch":
        import torch

        return f"{torch.cuda.max_memory_allocated() / 2**20:.0f}"
    if backend == "jax":
        import jax

        return f"{jax.local_devices()[0].memory_stats()['peak_bytes_in_use'] / 2**20:.0f}"
    import tensorflow as tf

    return f"{tf.config.experimental.get_memory_info('GPU:0')['peak'] / 2**20:.0f}"


def _device() -> str:
    import keras

    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        device = jax.local_devices()[0]
        return device.device_kind if device.platform != "cpu" else "cpu"
    if backend == "torch":
        import torch

        return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    import tensorflow as tf

    found = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(found[0])["device_name"] if found else "cpu"


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the peak would be all of it
    main()
