"""Files with packed kernels beside the int8 file of the same model: bytes, time, memory, codes.

Weights: w4 on the narrow grid, whose codes fit into 4 bits; "w4 inner", the same with 8 bits in the
first and the last layer, as policies have it by themselves; w2 on the narrow grid, for 2 bits.
Each is exported with every choice of `pack`, verified, and run in LiteRT on one thread. Beside them
is TensorFlow's own way to 4 bits: TFMOT's experimental scheme and the converter. Runs of a model's
files alternate, and who starts changes from round to round; a ratio is the median of those within
a round, to the int8 file (pack="none") of the same weights; processor time does not count what a
run waits for others on the machine. Memory is what a process with LiteRT
alone takes at most for loading and running a file, the median of several processes.

    python benchmarks/packed_files.py
    python benchmarks/packed_files.py --models=mobilenet_v2 --policies=w4
"""

import gc
import importlib
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import rich.console
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from absl import app, flags, logging
from full_size import IMAGE_SIZE, realistic_model, smooth_images
from rows import as_table, write_csv

import sat_tf
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.tflite.contents import gzip_size, read_contents
from sat_tf.qat.policy import BitPolicy

_KNOWN = ("mobilenet_v1", "mobilenet_v2", "resnet50", "efficientnet_b0")
POLICIES = {
    "w4": BitPolicy.mobile(4, weight_grid="narrow", first_last_weight_bits=None),
    "w4 inner": BitPolicy.mobile(4, weight_grid="narrow"),
    "w2": BitPolicy.mobile(2, weight_grid="narrow", first_last_weight_bits=None),
}
# The choices of `pack`, with bits that make another file of it.
_NEW_BITS = {"none": 8, "auto": 4, "int4": 4, "int2": 2}
_REFERENCE = "none"
_TENSORFLOW = "TFMOT 4-bit"

_MODELS = flags.DEFINE_list("models", list(_KNOWN), f"of {', '.join(_KNOWN)}")
_POLICIES = flags.DEFINE_list("policies", list(POLICIES), f"of {', '.join(POLICIES)}")
_ROUNDS = flags.DEFINE_integer("rounds", 200, "timed runs of each file", lower_bound=2)
_WARM_UP = flags.DEFINE_integer("warm_up", 5, "rounds before them", lower_bound=1)
_PROCESSES = flags.DEFINE_integer("processes", 5, "that load and run each file", lower_bound=1)
_IMAGES = flags.DEFINE_integer("images", 2, "images to verify on", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/packed_files.csv", "where to write")
_FOLDER = flags.DEFINE_string("folder", "runs/packed_files", "where to write files")

_CALIBRATION_IMAGES = 32
# The rest is in the CSV.
_SHOWN = (
    *("model", "weights", "file", "bytes", "of int8", "ms", "times int8", "peak MiB"),
    *("codes compared", "codes differing", "XNNPACK", "partitions"),
)
_MEMORY = """
import sys
from ai_edge_litert.interpreter import Interpreter
import numpy

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = peak()
interpreter = Interpreter(sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
for _ in range(3):
    interpreter.invoke()
print(peak() - before)
"""


def _float_model(name: str) -> keras.Model:
    if name == "efficientnet_b0":
        return keras.applications.EfficientNetB0(weights=None, classifier_activation=None)
    # TensorFlow's converter leaves layers with dead channels float, without a word.
    return realistic_model(name, dead_channels=False)


def _our_files(name: str, policy: BitPolicy, folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """What is known of each choice's file, by the choice; files without packed kernels once."""
    keras.utils.set_random_seed(0)
    images = smooth_images(_CALIBRATION_IMAGES + _IMAGES.value)
    quantized = sat_tf.quantize_model(_float_model(name), policy)
    sat_tf.calibrate(quantized, images[:_CALIBRATION_IMAGES])
    found = {}
    for pack in _NEW_BITS:
        path = folder / f"{pack}.tflite"
        try:
            report = sat_tf.export_tflite(quantized, path, pack=pack)
        except ValueError:  # nothing to pack
            continue
        bits = [kernel.bits for kernel in report.kernels]
        if _NEW_BITS[pack] not in bits:  # the file of another choice
            continue
        certificate = sat_tf.verify_tflite(
            quantized, path, images[_CALIBRATION_IMAGES:], runtimes=["xnnpack"]
        )
        weights = dict.fromkeys((8, 4, 2), 0)
        for kernel in report.kernels:
            weights[kernel.bits] += kernel.weights
        found[pack] = {
            "path": path,
            "codes compared": certificate.codes_compared,
            "codes differing": certificate.codes_differing,
            "Keras codes differing": f"{certificate.trained_differing:.5f}",
            **{f"weights of {bits} bits": count for bits, count in weights.items()},
            "runs from": report.runs_from,
        }
    return found


def _tensorflow_file(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """The 4-bit file of TFMOT's experimental scheme, as TensorFlow's converter writes it."""
    annotated = tfmot.quantization.keras.quantize_annotate_model(_float_model(name))
    # TFMOT has no public name for it.
    schemes = importlib.import_module(
        "tensorflow_model_optimization.python.core.quantization.keras.experimental."
        "default_n_bit.default_n_bit_quantize_scheme"
    )
    scheme = schemes.DefaultNBitQuantizeScheme(num_bits_weight=4, num_bits_activation=8)
    with tfmot.quantization.keras.quantize_scope():
        quantized = tfmot.quantization.keras.quantize_apply(annotated, scheme=scheme)
    images = smooth_images(_CALIBRATION_IMAGES)
    # A pass in training mode shows its quantizers the ranges, as training would.
    for start in range(0, len(images), 16):
        quantized(images[start : start + 16].astype(np.float32), training=True)
    converter = tf.lite.TFLiteConverter.from_keras_model(quantized)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.inference_input_type = tf.uint8
    path = folder / "tensorflow.tflite"
    path.write_bytes(converter.convert())
    unknown = ("codes compared", "codes differing", "Keras codes differing", "runs from")
    counts = {f"weights of {bits} bits": "" for bits in (8, 4, 2)}
    return {"path": path, **dict.fromkeys(unknown, ""), **counts}


def _peak_mebibytes(path: pathlib.Path) -> float:
    words = [sys.executable, "-c", _MEMORY, str(path)]
    found = [
        int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        for _ in range(_PROCESSES.value)
    ]
    return statistics.median(found) / 1024


def _measured(files: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    runtimes = {
        key: Runtime(row["path"].read_bytes(), keep_tensors=False) for key, row in files.items()
    }
    image = smooth_images(1)
    seconds, of_processor = _seconds(runtimes, image)
    reference = files[_REFERENCE]["path"].stat().st_size
    rows = []
    for key, row in files.items():
        content = row["path"].read_bytes()
        ratios = _ratios(seconds, key)
        low, _, high = statistics.quantiles(ratios, n=4)
        delegation = runtimes[key].delegation()
        operators = read_contents(content, key).operator_counts()
        rows.append(
            {
                "file": key,
                "bytes": len(content),
                "of int8": f"{len(content) / reference:.3f}",
                "gzip bytes": gzip_size(content),
                "ms": f"{1000 * statistics.median(seconds[key]):.2f}",
                "times int8": f"{statistics.median(ratios):.3f}",
                "times int8, quartiles": f"{low:.3f} to {high:.3f}",
                "times int8, CPU": f"{statistics.median(_ratios(of_processor, key)):.3f}",
                "peak MiB": f"{_peak_mebibytes(row['path']):.1f}",
                "XNNPACK": f"{delegation.delegated} of {delegation.operators}",
                "partitions": delegation.partitions,
                **{name: value for name, value in row.items() if name != "path"},
                "operators": ", ".join(f"{kind} {count}" for kind, count in operators.items()),
            }
        )
    return rows


def _ratios(seconds: dict[str, list[float]], key: str) -> list[float]:
    """Round by round: neighbours in time share what else the machine does."""
    return [own / other for own, other in zip(seconds[key], seconds[_REFERENCE], strict=True)]


def _seconds(
    runtimes: dict[str, Runtime], image: np.ndarray
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Of every run of each file: seconds, and those of the processor, without what it waits."""
    names = list(runtimes)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    of_processor: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(_WARM_UP.value + _ROUNDS.value):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start, start_of_processor = time.perf_counter(), time.thread_time()
            runtimes[name].run(image)
            taken = time.perf_counter() - start, time.thread_time() - start_of_processor
            if turn >= _WARM_UP.value:
                seconds[name].append(taken[0])
                of_processor[name].append(taken[1])
    return seconds, of_processor


def main(argv: list[str]) -> None:
    """Measures every model under every policy, writing the CSV after each; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    for flag, known in ((_MODELS, _KNOWN), (_POLICIES, POLICIES)):
        unknown = [name for name in flag.value if name not in known]
        if unknown or not flag.value:
            raise app.UsageError(f"--{flag.name}: received {unknown}, expected {', '.join(known)}.")
    logging.set_verbosity(logging.ERROR)  # the converter says a lot
    console = rich.console.Console()
    rows: list[dict[str, Any]] = []
    for name in _MODELS.value:
        for policy_name in _POLICIES.value:
            folder = pathlib.Path(_FOLDER.value) / name / policy_name.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            with console.status(f"{name}, {policy_name}"):
                files = _our_files(name, POLICIES[policy_name], folder)
                keras.backend.clear_session()
                gc.collect()
                if policy_name == "w4":
                    try:
                        files[_TENSORFLOW] = _tensorflow_file(name, folder)
                    except Exception as error:  # whatever it does not take, it says in its own way
                        console.print(f"{_TENSORFLOW}, {name}: {str(error).splitlines()[0]}")
                case = {"model": name, "weights": policy_name}
                rows += [{**case, **row} for row in _measured(files)]
            write_csv(rows, _OUTPUT.value)
    title = f"{IMAGE_SIZE}x{IMAGE_SIZE}, {_ROUNDS.value} alternating runs, one thread"
    console.print(as_table(rows, title, _SHOWN))
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
