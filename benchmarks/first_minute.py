"""The first minute with a model: quantize, calibrate, export and verify it, in either Keras.

MobileNet-V2 of keras.applications at 224x224, with random weights and statistics as trained ones
have them, is quantized to 4 bits, calibrated on 64 images, exported, and verified on 8 of them.
What counts is how many float predictions of these 64 images each step takes, in the same process.
A row is a median over processes, of all checkouts by turns; its quartiles are those of the ratios.
Beside the ratio of seconds is that of processor seconds, which other work moves less, where all
threads are one: those that wait for each other take processor seconds, too.

    git worktree add /tmp/before v0.1.0
    python benchmarks/first_minute.py --checkouts=before=/tmp/before,now=.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import rich.console
from absl import app, flags
from rows import as_table, write_csv

_CHECKOUTS = flags.DEFINE_list("checkouts", ["now=."], "names of folders that hold sat_tf/")
_LIBRARIES = flags.DEFINE_list("libraries", ["tf_keras", "keras"], "tf_keras, keras")
_TURNS = flags.DEFINE_integer("turns", 5, "processes of each kind", lower_bound=2)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/first_minute.csv", "rows")
_IN_HERE = flags.DEFINE_string("in_here", "", "the library to measure in this process")

_IMAGES, _VERIFIED, _PREDICTIONS = 64, 8, 3
_STEPS = ("quantize", "calibrate", "export", "verify")


def main(argv: list[str]) -> None:
    """Runs the processes by turns, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    if _IN_HERE.value:
        print(json.dumps(_measured(_IN_HERE.value)))
        return
    folders = dict(entry.split("=", 1) for entry in _CHECKOUTS.value)
    cases = [(library, name) for library in _LIBRARIES.value for name in folders]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(_TURNS.value):
        for library, name in cases:
            runs[library, name].append(_in_checkout(folders[name], library))
            write_csv([_row(*case, some) for case, some in runs.items() if some], _OUTPUT.value)
    results = [_row(*case, some) for case, some in runs.items()]
    title = f"MobileNet-V2, 224x224, w4a4, in float predictions of {_IMAGES} images"
    rich.console.Console().print(as_table(results, title))


def _in_checkout(folder: str, library: str) -> dict[str, Any]:
    path = os.pathsep.join(
        [str(pathlib.Path(folder).resolve()), str(pathlib.Path(__file__).parent)]
    )
    command = [sys.executable, __file__, f"--in_here={library}"]
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _row(library: str, name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [_ratio(run, _STEPS, "seconds") for run in runs]
    low, _, high = statistics.quantiles(whole, n=4) if len(whole) > 1 else whole * 3
    row = {"keras": library, "checkout": name, "processes": len(runs)}
    for step in _STEPS:
        row[step] = round(statistics.median(_ratio(run, (step,), "seconds") for run in runs), 1)
    processor = statistics.median(_ratio(run, _STEPS, "processor seconds") for run in runs)
    return {
        **row,
        "predictions": round(statistics.median(whole), 1),
        "quartiles": f"{low:.1f} to {high:.1f}",
        "by processor seconds": round(processor, 1),
        "codes differing": max(run["codes differing"] for run in runs),
        "file": runs[-1]["file"],
    }


def _ratio(run: dict[str, Any], steps: tuple[str, ...], unit: str) -> float:
    return float(sum(run[unit][step] for step in steps) / run[unit]["predict"])


def _measured(library: str) -> dict[str, Any]:
    """Seconds of each step, and processor seconds, in this process."""
    warnings.simplefilter("ignore")
    import importlib
    import tempfile

    import numpy as np
    from full_size import smooth_images

    import sat_tf

    keras = importlib.import_module(library)
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2(weights=None)
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            count = layer.gamma.shape[0]
            layer.gamma.assign(rng.normal(1.0, 0.4, count))
            layer.beta.assign(rng.normal(0.0, 0.3, count))
            layer.moving_mean.assign(rng.normal(0.0, 0.3, count))
            layer.moving_variance.assign(rng.uniform(0.3, 2.0, count))
    images = smooth_images(_IMAGES)
    fed = images.astype(np.float32) / 127.5 - 1.0
    policy = sat_tf.BitPolicy.mobile(4, input_range=(-1.0, 1.0))
    taken: dict[str, list[tuple[float, float]]] = {}

    def timed(step: str, call: Callable[[], Any]) -> Any:
        start, processor = time.perf_counter(), _processor_seconds()
        result = call()
        seconds = time.perf_counter() - start, _processor_seconds() - processor
        taken.setdefault(step, []).append(seconds)
        return result

    def predict() -> None:
        for _ in range(_PREDICTIONS):
            timed("predict", lambda: model.predict(fed, batch_size=32, verbose=0))

    model.predict(fed, batch_size=32, verbose=0)
    predict()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.tflite"
        quantized = timed("quantize", lambda: sat_tf.quantize_model(model, policy))
        timed("calibrate", lambda: sat_tf.calibrate(quantized, images, progress=False))
        timed("export", lambda: sat_tf.export_tflite(quantized, path))
        some = images[:_VERIFIED]
        certificate = timed(
            "verify", lambda: sat_tf.verify_tflite(quantized, path, some, progress=False)
        )
    predict()
    medians = {
        step: [statistics.median(values) for values in zip(*pairs, strict=True)]
        for step, pairs in taken.items()
    }
    return {
        "seconds": {step: seconds for step, (seconds, _) in medians.items()},
        "processor seconds": {step: seconds for step, (_, seconds) in medians.items()},
        "codes differing": certificate.codes_differing,
        "file": certificate.sha256[:12],
    }


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    app.run(main)
