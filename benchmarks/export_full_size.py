"""Exports every family at 224x224 with 1000 classes under many policies, and verifies the files.

Weights are random, γ may be negative or dead, and clipping levels are calibrated: time, size and
exactness do not depend on what was learnt.

    python benchmarks/export_full_size.py
    python benchmarks/export_full_size.py --models=resnet50,vgg16_bn --policies=w4a4,w2a2
"""

import collections
import gc
import pathlib
import time
from typing import Any

import rich.console
import rich.progress
import tf_keras as keras
from absl import app, flags
from full_size import MODELS, realistic_model, smooth_images
from rows import as_table, write_csv

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models

POLICIES = {
    "w4a4": BitPolicy.mobile(4),
    "w2a2": BitPolicy.mobile(2),
    "w3a3": BitPolicy.mobile(3),
    "w8a8": BitPolicy.mobile(8),
    "w4a4 narrow grid": BitPolicy.mobile(4, weight_grid="narrow"),
    "w4a4 float streams": BitPolicy.paper(4, latent_start="keep_function"),
    "w2a8": BitPolicy.mobile(8, weight_bits=2),
    "w3a8": BitPolicy.mobile(8, weight_bits=3),
    "w4a8": BitPolicy.mobile(8, weight_bits=4),
    "w2 only": BitPolicy(weight_bits=2, activation_bits=None),
    "w3 only": BitPolicy(weight_bits=3, activation_bits=None),
    "w4 only": BitPolicy(weight_bits=4, activation_bits=None),
}

_MODELS = flags.DEFINE_list("models", list(MODELS), f"of {', '.join(models.MODELS)}")
_POLICIES = flags.DEFINE_list("policies", list(POLICIES), f"of {', '.join(POLICIES)}")
_IMAGES = flags.DEFINE_integer("images", 8, "images to verify on", lower_bound=1)
_CALIBRATION = flags.DEFINE_integer("calibration_images", 32, "images to calibrate on", 32)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/export.csv", "where to write rows")
_FOLDER = flags.DEFINE_string("folder", "runs/export", "where to write files and certificates")

# The rest is in the CSV.
_SHOWN = (
    "model",
    "policy",
    "export seconds",
    "codes compared",
    "codes differing",
    "other float operators",
    "bytes",
    "gzip bytes",
)


def _measure(name: str, policy_name: str, folder: pathlib.Path) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    images = smooth_images(_CALIBRATION.value + _IMAGES.value)
    held_out = images[_CALIBRATION.value :]
    quantized = sat_tf.quantize_model(realistic_model(name), POLICIES[policy_name])
    sat_tf.calibrate(quantized, images[: _CALIBRATION.value])
    path = folder / f"{name}_{policy_name.replace(' ', '_')}.tflite"
    report = sat_tf.export_tflite(quantized, path)
    start = time.perf_counter()
    certificate = sat_tf.verify_tflite(
        quantized, path, held_out, certificate_path=path.with_suffix(".json")
    )
    delegation = certificate.runtimes["xnnpack"].delegation
    return {
        "model": name,
        "policy": policy_name,
        "export seconds": f"{report.seconds:.1f}",
        "images": len(held_out),
        "codes compared": certificate.codes_compared,
        "codes differing": certificate.codes_differing,
        "differing, builtin kernels": certificate.runtimes["builtin"].codes_differing,
        # The last one makes float logits of the codes.
        "other float operators": _counts(report.float_operators[:-1]),
        "bytes": report.bytes,
        "gzip bytes": report.gzip_bytes,
        "XNNPACK partitions": delegation.partitions,
        "delegated": f"{delegation.delegated} of {delegation.operators}",
        "verify seconds": f"{time.perf_counter() - start:.1f}",
        "operators": ", ".join(f"{kind} {count}" for kind, count in report.operators.items()),
    }


def _counts(float_operators: list[str]) -> str:
    counts = collections.Counter(operator.split()[0] for operator in float_operators)
    return ", ".join(f"{kind} {count}" for kind, count in counts.items()) or "0"


def main(argv: list[str]) -> None:
    """Measures every model under every policy, writing the CSV after each; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    for flag, known in ((_MODELS, models.MODELS), (_POLICIES, POLICIES)):
        unknown = [name for name in flag.value if name not in known]
        if unknown or not flag.value:
            raise app.UsageError(f"--{flag.name}: received {unknown}, expected {', '.join(known)}.")
    folder = pathlib.Path(_FOLDER.value)
    folder.mkdir(parents=True, exist_ok=True)
    console = rich.console.Console()
    cases = [(name, policy) for name in _MODELS.value for policy in _POLICIES.value]
    rows: list[dict[str, Any]] = []
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("", total=len(cases))
        for name, policy in cases:
            progress.update(task, description=f"{name} {policy}")
            rows.append(_measure(name, policy, folder))
            write_csv(rows, _OUTPUT.value)
            # VGG-16 takes gigabytes: the last model has to be gone before the next one comes.
            keras.backend.clear_session()
            gc.collect()
            progress.advance(task)
    console.print(as_table(rows, "224x224, 1000 classes", _SHOWN))
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
