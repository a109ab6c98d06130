"""Says of every image model of `keras.applications` which layers sat-tf would leave float.

    python benchmarks/explained_applications.py
    python benchmarks/explained_applications.py --models ResNet50 VGG16

`sat_tf.explain` on each, built for images of the usual size: nothing is quantized. Models that have
a row already are left out.
"""

import collections
import pathlib
import time
from typing import Any

import each_application

_RESULTS = pathlib.Path(__file__).parent / "results" / "explained_applications.csv"


def explain_one(name: str) -> dict[str, Any]:
    """Builds and explains one model; a row of the table."""
    import tf_keras as keras

    import sat_tf
    from sat_tf.planning.deployment import by_layer

    model = getattr(keras.applications, name)(weights=None)
    kinds = {layer.name: type(layer).__name__ for layer in model.layers}
    start = time.perf_counter()
    plan = sat_tf.explain(model, sat_tf.BitPolicy.mobile(8))
    seconds = time.perf_counter() - start
    left = collections.Counter(kinds[layer] for layer in by_layer(plan.problems))
    return {
        "model": name,
        "layers": len(model.layers),
        "left_float": len(plan.problems),
        "kinds": ", ".join(f"{kind} ({count})" for kind, count in left.most_common()),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    each_application.main(__file__, __doc__, results=_RESULTS, make_row=explain_one)
