"""A training step of a Keras 3 model in 4 bits, times the float one, on all three backends.

MobileNet-V2 of `keras.applications`, made once; each backend then loads and trains the two files in
a process of its own, by turns (see `gpu_step.py`). Compare with `step_time.py`, which measures
models of tf_keras.

    python benchmarks/keras3_step.py
    python benchmarks/keras3_step.py --backends=jax --image_size=64 --rounds=5
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from absl import app, flags

_BACKENDS = flags.DEFINE_list("backends", ["tensorflow", "jax", "torch"], "which of them")
_MODEL = flags.DEFINE_string("model", "mobilenet_v2", "as --make of gpu_step.py")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 96, "rows and columns of the images")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "images a step")
_STEPS = flags.DEFINE_integer("steps", 3, "in a round")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "of each model")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/keras3_step.csv", "where to add rows")

_SCRIPT = str(pathlib.Path(__file__).with_name("gpu_step.py"))


def main(argv: list[str]) -> None:
    """Makes the files and measures each backend."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    with tempfile.TemporaryDirectory() as folder:
        size = f"--image_size={_IMAGE_SIZE.value}"
        _run("tensorflow", f"--make={_MODEL.value}", size, f"--folder={folder}")
        for backend in _BACKENDS.value:
            _run(
                backend,
                f"--folder={folder}",
                f"--batch_size={_BATCH_SIZE.value}",
                f"--steps={_STEPS.value}",
                f"--rounds={_ROUNDS.value}",
                f"--output={_OUTPUT.value}",
            )


def _run(backend: str, *arguments: str) -> None:
    environment = {**os.environ, "KERAS_BACKEND": backend}
    subprocess.run([sys.executable, _SCRIPT, *arguments], env=environment, check=True)


if __name__ == "__main__":
    app.run(main)
