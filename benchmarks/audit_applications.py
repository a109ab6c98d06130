"""Audits every image model of `keras.applications`, with random weights and random images.

    python benchmarks/audit_applications.py
    python benchmarks/audit_applications.py --models ResNet50 VGG16

Each model is looked at in a process of its own: its weights, and with them rule I, as it is built
for images of the usual size; its gradients, and with them rule II, as it is built for small images,
so that the largest fit into memory. A row says how long each took, and which rule is broken. Models
that have a row already are left out.
"""

import collections
import pathlib
import time
from typing import Any

import each_application

_RESULTS = pathlib.Path(__file__).parent / "results" / "audit_applications.csv"
_IMAGE_SIZE = 96
_NUM_IMAGES = 8


def audit_one(name: str, image_size: int, num_images: int) -> dict[str, Any]:
    """Builds and audits one model; a row of the table."""
    import numpy as np
    import tf_keras as keras

    import sat_tf
    from sat_tf.training.audit.audited_model import Verdict

    build = getattr(keras.applications, name)
    keras.utils.set_random_seed(0)
    model = build(weights=None)
    usual_size = model.input_shape[1]
    start = time.perf_counter()
    weights = sat_tf.audit(model)
    weights_seconds = time.perf_counter() - start

    keras.utils.set_random_seed(0)
    start = time.perf_counter()
    model = build(weights=None, input_shape=(image_size, image_size, 3))
    build_seconds = time.perf_counter() - start
    generator = np.random.RandomState(0)
    images = generator.randint(0, 256, (num_images, image_size, image_size, 3)).astype(np.float32)
    start = time.perf_counter()
    found = sat_tf.audit(model, (images, np.arange(num_images)), num_images=num_images)
    seconds = time.perf_counter() - start
    broken = collections.Counter(
        finding.rule for _, finding in found.findings() if finding.verdict is Verdict.BROKEN
    )
    kappas = [layer.kappa for layer in found.layers if layer.kappa and not layer.reads_image]
    logarithms = np.log(kappas) if kappas else np.array([np.nan])
    return {
        "model": name,
        "parameters": model.count_params(),
        "linear_layers": len(found.layers),
        "without_normalization": sum(layer.normalization is None for layer in found.layers),
        "usual_size": usual_size,
        "pooled_area": weights.layers[-1].pooled_area,
        "kappa_0": _short(weights.kappa_0),
        "rule_1": _worst(weights, "rule I"),
        "rule_2_of_weights": _worst(weights, "rule II"),
        "kappa_median": _short(float(np.exp(np.median(logarithms)))),
        "kappa_lowest": _short(float(np.exp(logarithms.min()))),
        "kappa_highest": _short(float(np.exp(logarithms.max()))),
        "without_kappa": sum(layer.kappa is None for layer in found.layers),
        "rule_2": _worst(found, "rule II"),
        "rule_2_broken": broken["rule II"],
        "no_gradient": broken["gradient"],
        "loss": _short(found.loss),
        "build_seconds": round(build_seconds, 2),
        "weights_seconds": round(weights_seconds, 2),
        "gradients_seconds": round(seconds, 2),
        "notes": " ".join(found.notes),
    }


def _worst(audit: Any, rule: str) -> str:
    """The worst verdict by one rule."""
    found = {finding.verdict.value for _, finding in audit.findings() if finding.rule == rule}
    return next((verdict for verdict in ("broken", "watch") if verdict in found), "ok")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def main() -> None:
    """Audits the models, and writes the rows after each."""
    each_application.main(
        __file__,
        __doc__,
        results=_RESULTS,
        make_row=lambda name: audit_one(name, _IMAGE_SIZE, _NUM_IMAGES),
    )


if __name__ == "__main__":
    main()
