"""Latency and size of our files beside TFMOT's 8-bit files and float ones of the same models.

All run in LiteRT, with XNNPACK and with its built-in kernels, on one thread and on two, in one
process and one image at a time. Runs of the files are interleaved, and who starts changes from
round to round, so that what else the machine does meets all of them alike; ratios are taken within
a round. Ratios are what counts: milliseconds say something about one machine only.

    python benchmarks/latency.py
    python benchmarks/latency.py --models=resnet18 --bits=4,2 --threads=1 --rounds=100
"""

import gc
import gzip
import itertools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rich.console
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from absl import app, flags, logging
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from full_size import MODELS, realistic_model, smooth_images
from rows import as_table, write_csv

import sat_tf
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.training import models

_MODELS = flags.DEFINE_list("models", list(MODELS), f"of {', '.join(models.MODELS)}")
_BITS = flags.DEFINE_list("bits", ["4"], "bits of our files: 2 to 8, one file each")
_KERNELS = flags.DEFINE_list("kernels", ["XNNPACK", "builtin"], "what runs the operators")
_THREADS = flags.DEFINE_list("threads", ["1", "2"], "threads, one number or more")
_ROUNDS = flags.DEFINE_integer("rounds", 50, "timed runs of each file", lower_bound=2)
_WARM_UP = flags.DEFINE_integer("warm_up", 5, "rounds before them", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/latency.csv", "where to write rows")

# The rest is in the CSV.
_SHOWN = (
    *("model", "kernels", "threads", "file"),
    *("ms", "times TFMOT", "gzip bytes", "gzip, times TFMOT"),
)
_RESOLVERS = {
    "XNNPACK": OpResolverType.AUTO,
    "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
}
_REFERENCE = "TFMOT 8-bit"
_CALIBRATION_IMAGES = 32
# As app stores compress; the strongest level takes minutes for 138 MB and saves a percent.
_GZIP_LEVEL = 6

_Maker = Callable[[keras.Model, np.ndarray], bytes | None]


def _float_file(model: keras.Model, images: np.ndarray) -> bytes:
    del images
    return bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())


def _tfmot_file(model: keras.Model, images: np.ndarray) -> bytes | None:
    try:
        quantized = tfmot.quantization.keras.quantize_model(model)
    except RuntimeError as error:
        # It refuses a normalization that no convolution is in front of: PreResNets.
        rich.console.Console().print(f"TFMOT, {model.name}: {str(error).splitlines()[0]}")
        return None
    # A pass in training mode shows its quantizers the ranges, as training would.
    for start in range(0, len(images), 16):
        quantized(images[start : start + 16].astype(np.float32), training=True)
    converter = tf.lite.TFLiteConverter.from_keras_model(quantized)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.inference_input_type = tf.uint8
    return bytes(converter.convert())


def _our_file(bits: int) -> _Maker:
    def make(model: keras.Model, images: np.ndarray) -> bytes:
        quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(bits))
        sat_tf.calibrate(quantized, images)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.tflite"
            sat_tf.export_tflite(quantized, path)
            return path.read_bytes()

    return make


def _runner(content: bytes, image: np.ndarray, kernels: str, threads: int) -> Callable[[], float]:
    """Loads a file; a call runs it once and returns the seconds that took."""
    interpreter = Interpreter(
        model_content=content,
        num_threads=threads,
        experimental_op_resolver_type=_RESOLVERS[kernels],
    )
    interpreter.allocate_tensors()
    (details,) = interpreter.get_input_details()
    interpreter.set_tensor(details["index"], image[np.newaxis].astype(details["dtype"]))

    def run() -> float:
        start = time.perf_counter()
        interpreter.invoke()
        return time.perf_counter() - start

    return run


def _time(runners: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    names = list(runners)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(_WARM_UP.value + _ROUNDS.value):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            elapsed = runners[name]()
            if turn >= _WARM_UP.value:
                seconds[name].append(elapsed)
    return seconds


def _measure(name: str, console: rich.console.Console) -> list[dict[str, Any]]:
    images = smooth_images(_CALIBRATION_IMAGES)
    makers: dict[str, _Maker] = {
        f"sat-tf w{bits}a{bits}": _our_file(int(bits)) for bits in _BITS.value
    }
    makers |= {_REFERENCE: _tfmot_file, "float": _float_file}
    files = {}
    for maker_name, make in makers.items():
        with console.status(f"{name}: {maker_name}"):
            # The ordinary converter leaves layers with dead channels float, without a word.
            content = make(realistic_model(name, dead_channels=False), images)
            if content is not None:
                files[maker_name] = content
            keras.backend.clear_session()
            gc.collect()
    zipped = {key: len(gzip.compress(content, _GZIP_LEVEL)) for key, content in files.items()}
    sizes = {
        key: {
            "bytes": len(content),
            "gzip bytes": zipped[key],
            "gzip, times TFMOT": "",
            "operators": len(read_contents(content, key).operators),
            "float operators": len(read_contents(content, key).float_operators()),
        }
        for key, content in files.items()
    }
    if _REFERENCE in zipped:
        for key, size in sizes.items():
            size["gzip, times TFMOT"] = f"{zipped[key] / zipped[_REFERENCE]:.3f}"
    rows = []
    for kernels, threads in itertools.product(_KERNELS.value, map(int, _THREADS.value)):
        with console.status(f"{name}: timing with {kernels}, threads: {threads}"):
            runners = {
                key: _runner(content, images[0], kernels, threads) for key, content in files.items()
            }
            seconds = _time(runners)
        case = {"model": name, "kernels": kernels, "threads": threads}
        rows += [{**case, "file": key, **_times(key, seconds), **sizes[key]} for key in files]
    return rows


def _times(key: str, seconds: dict[str, list[float]]) -> dict[str, str]:
    times = {
        "ms": f"{1000 * statistics.median(seconds[key]):.2f}",
        "ms, quartiles": _quartiles([1000 * each for each in seconds[key]], 2),
        "times TFMOT": "",
        "times TFMOT, quartiles": "",
    }
    if _REFERENCE in seconds:
        # Round by round: neighbours in time share what else the machine does.
        pairs = zip(seconds[key], seconds[_REFERENCE], strict=True)
        ratios = [own / other for own, other in pairs]
        times["times TFMOT"] = f"{statistics.median(ratios):.3f}"
        times["times TFMOT, quartiles"] = _quartiles(ratios, 3)
    return times


def _quartiles(values: list[float], decimals: int) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.{decimals}f} to {high:.{decimals}f}"


def main(argv: list[str]) -> None:
    """Measures every model, writing the CSV after each; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    unknown = [name for name in _MODELS.value if name not in models.MODELS]
    if unknown or not _MODELS.value:
        raise app.UsageError(f"--models: received {unknown}, expected {', '.join(models.MODELS)}.")
    strange = [bits for bits in _BITS.value if bits not in "2345678" or len(bits) != 1]
    if strange or not _BITS.value:
        raise app.UsageError(f"--bits: received {strange}, expected some of 2 to 8.")
    unknown = [name for name in _KERNELS.value if name not in _RESOLVERS]
    if unknown or not _KERNELS.value:
        raise app.UsageError(f"--kernels: received {unknown}, expected {', '.join(_RESOLVERS)}.")
    strange = [number for number in _THREADS.value if not number.isdigit() or number == "0"]
    if strange or not _THREADS.value:
        raise app.UsageError(f"--threads: received {strange}, expected numbers above 0.")
    logging.set_verbosity(logging.ERROR)  # the converter says a lot
    console = rich.console.Console()
    rows: list[dict[str, Any]] = []
    for name in _MODELS.value:
        rows += _measure(name, console)
        write_csv(rows, _OUTPUT.value)
    title = f"224x224, {_ROUNDS.value} interleaved runs"
    console.print(as_table(rows, title, _SHOWN))
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
