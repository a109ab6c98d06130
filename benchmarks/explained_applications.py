"""Says of every image model of `keras.applications` which layers sat-tf would leave float.

    python benchmarks/explained_applications.py
    python benchmarks/explained_applications.py --models ResNet50 VGG16
    python benchmarks/explained_applications.py --write docs/measurements/applications.md

`sat_tf.explain` on each, built for images of the usual size: nothing is quantized. Models that have
a row already are left out. `--write` puts the counts, and the models that are not taken whole, into
a Markdown file.
"""

import collections
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import each_application

_RESULTS = pathlib.Path(__file__).parent / "results" / "explained_applications.csv"


def explain_one(name: str) -> dict[str, Any]:
    """Builds and explains one model; a row of the table."""
    import tf_keras as keras

    import sat_tf
    from sat_tf.planning.preview import by_layer

    model = getattr(keras.applications, name)(weights=None)
    kinds = {layer.name: type(layer).__name__ for layer in model.layers}
    start = time.perf_counter()
    plan = sat_tf.explain(model, sat_tf.BitPolicy.mobile(8))
    seconds = time.perf_counter() - start
    left = collections.Counter(kinds[layer] for layer in by_layer(plan.problems, kinds))
    return {
        "model": name,
        "layers": len(model.layers),
        "left_float": len(plan.problems),
        "kinds": ", ".join(f"{kind} ({count})" for kind, count in left.most_common()),
        "seconds": round(seconds, 1),
    }


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The counts, and a table of what is left float where."""
    others = [row for row in rows if int(row["left_float"])]
    lines = [
        f"Of all {len(rows)} models, {len(rows) - len(others)} are quantized without a layer left "
        "float. The others:",
        "",
        "| model | layers | left float |",
        "| --- | ---: | --- |",
        *(f"| {row['model']} | {row['layers']} | {row['kinds']} |" for row in others),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    each_application.main(
        __file__, __doc__, results=_RESULTS, make_row=explain_one, markdown=markdown
    )
