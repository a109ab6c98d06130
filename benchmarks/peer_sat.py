"""sat-tf's part of `benchmarks/peers.py`: a run of the trainer by a configuration file."""

import pathlib
import shutil
import time
from collections.abc import Iterable

import drawn_glyphs  # noqa: F401 -- the data set of the configuration
import peer_task
import rich.console
import tf_keras as keras

from sat_tf import output_folder
from sat_tf.training.config import read_config
from sat_tf.training.loop import runner
from sat_tf.training.run_folder import RunFolder

CONFIG = pathlib.Path(__file__).with_name("glyphs_w4a4.yaml")


def run(
    start: pathlib.Path,
    folder: pathlib.Path,
    test: peer_task.Images,
    *,
    bits: int,
    seed: int,
    overrides: Iterable[str] = (),
) -> dict[str, float]:
    """Runs the quantized stage of the configuration from a float model, and measures its model.

    Args:
        start: file of the float model.
        folder: where the run puts its files; what is there is deleted.
        test: held-out images and labels.
        bits: of weights and activations.
        seed: of the run.
        overrides: of the configuration, as on the command line.
    """
    fixed = [
        f"policy.weight_bits={bits}",
        f"policy.activation_bits={bits}",
        f"training.float_model={start}",
        "export.verify_images=64",
    ]
    config = read_config(CONFIG, [*fixed, *overrides, f"seed={seed}"])
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    runner.train(config, RunFolder(folder), rich.console.Console(quiet=True))
    seconds = time.perf_counter() - began  # with the export and its verification
    model = keras.models.load_model(folder / output_folder.QUANTIZED_MODEL, compile=False)
    return {**peer_task.measure(model, test), "seconds": seconds}
