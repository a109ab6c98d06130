"""Audits every image model of `keras.applications`, with random weights and random images.

    python benchmarks/audit_applications.py
    python benchmarks/audit_applications.py --models ResNet50 VGG16

Each model is built in a process of its own for small images, so that the large ones fit into
memory; a row says how long building and auditing took, and how many layers break which rule. The
map that is averaged before the classifier is smaller than with the usual images, and kappa_0 larger
by as much. Models that have a row already are left out.
"""

import argparse
import collections
import csv
import inspect
import json
import pathlib
import subprocess
import sys
import time
from typing import Any

from rows import write_csv

_RESULTS = pathlib.Path(__file__).parent / "results" / "audit_applications.csv"
_IMAGE_SIZE = 96
_NUM_IMAGES = 8
_SECONDS_AT_MOST = 1800


def application_names() -> list[str]:
    """The names of the functions in `keras.applications` that build image models."""
    import tf_keras as keras

    return sorted(
        name
        for name, build in vars(keras.applications).items()
        if inspect.isfunction(build) and "classes" in inspect.signature(build).parameters
    )


def audit_one(name: str, image_size: int, num_images: int) -> dict[str, Any]:
    """Builds and audits one model; a row of the table."""
    import numpy as np
    import tf_keras as keras

    import sat_tf
    from sat_tf.analysis.findings import Verdict

    keras.utils.set_random_seed(0)
    start = time.perf_counter()
    build = getattr(keras.applications, name)
    options: dict[str, Any] = {"weights": None, "input_shape": (image_size, image_size, 3)}
    model = build(**options)
    built = time.perf_counter()
    generator = np.random.RandomState(0)
    images = generator.randint(0, 256, (num_images, image_size, image_size, 3)).astype(np.float32)
    labels = np.arange(num_images)
    weights_only = sat_tf.audit(model)
    looked = time.perf_counter()
    found = sat_tf.audit(model, (images, labels), num_images=num_images)
    done = time.perf_counter()
    findings = [finding for _, finding in found.findings()]
    counted = collections.Counter(f.rule for f in findings if f.verdict is Verdict.BROKEN)
    kappas = [layer.kappa for layer in found.layers if layer.kappa and not layer.reads_image]
    logarithms = np.log(kappas) if kappas else np.array([np.nan])
    return {
        "model": name,
        "parameters": model.count_params(),
        "linear_layers": len(found.layers),
        "without_normalization": sum(layer.normalization is None for layer in found.layers),
        "build_seconds": round(built - start, 2),
        "weights_seconds": round(looked - built, 2),
        "gradients_seconds": round(done - looked, 2),
        "verdict": found.verdict.value,
        "verdict_of_weights": weights_only.verdict.value,
        "pooled_area": found.layers[-1].pooled_area,
        "kappa_0": _short(found.kappa_0),
        "kappa_median": _short(float(np.exp(np.median(logarithms)))),
        "kappa_lowest": _short(float(np.exp(logarithms.min()))),
        "kappa_highest": _short(float(np.exp(logarithms.max()))),
        "without_kappa": sum(layer.kappa is None for layer in found.layers),
        "loss": _short(found.loss),
        "rule_1_broken": counted["rule I"],
        "rule_2_broken": counted["rule II"],
        "no_gradient": counted["gradient"],
        "notes": " ".join(found.notes),
    }


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def main() -> None:
    """Audits the models, and rewrites the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--again", action="store_true", help="leave out none that has a row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(audit_one(arguments.one, _IMAGE_SIZE, _NUM_IMAGES)))
        return
    rows: list[dict[str, Any]] = []
    if _RESULTS.exists() and not arguments.again:
        with _RESULTS.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {row["model"] for row in rows}
    for name in arguments.models or application_names():
        if name in done:
            continue
        run = subprocess.run(
            [sys.executable, __file__, "--one", name],
            capture_output=True,
            text=True,
            timeout=_SECONDS_AT_MOST,
        )
        if run.returncode:
            print(f"{name}: {run.stderr[-1500:]}")
            continue
        rows.append(json.loads(run.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
        write_csv(rows, _RESULTS)


if __name__ == "__main__":
    main()
