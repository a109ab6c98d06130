"""Seconds of calibration, and how many float predictions of the same images that is.

A model at 224x224 with 1000 classes and random weights, at 4 bits, is calibrated on 64 images, in
turns with a float prediction of them in batches of 32. A ratio is that of two medians; its
quartiles are those of the ratios turn by turn, and where they lie beside it the machine had more
to do.

    python benchmarks/calibration_time.py
    python benchmarks/calibration_time.py --models=resnet50 --turns=3
"""

import statistics
import warnings
from typing import Any

import rich.console
from absl import app, flags
from new_process import in_new_process
from rows import as_table, read_csv, write_csv
from turns import seconds_by_turns

_MODELS = flags.DEFINE_list("models", ["mobilenet_v2"], "mobilenet_v2, resnet50")
_TURNS = flags.DEFINE_integer("turns", 5, "calibrations of each model", lower_bound=2)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/calibration_time.csv", "rows")

_IMAGES, _BATCH_SIZE = 64, 32


def main(argv: list[str]) -> None:
    """Measures every model in a process of its own, writing the CSV after each."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    rows = read_csv(_OUTPUT.value)
    for name in _MODELS.value:
        measured = in_new_process(_measure, name, _TURNS.value)
        rows = [row for row in rows if row["model"] != name] + [measured]
        write_csv(rows, _OUTPUT.value)
    rich.console.Console().print(as_table(rows, f"224x224, w4a4, {_IMAGES} images"))


def _measure(name: str, turns: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    import numpy as np
    from full_size import realistic_model, smooth_images

    import sat_tf

    model, images = realistic_model(name), smooth_images(_IMAGES).astype(np.float32)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    start = quantized.get_weights()

    def calibrate() -> None:
        quantized.set_weights(start)
        sat_tf.calibrate(quantized, images, progress=False)

    calls = {
        "predict": lambda: model.predict(images, batch_size=_BATCH_SIZE, verbose=0),
        "calibrate": calibrate,
    }
    seconds = seconds_by_turns(calls, range(turns), warm_up=1)
    medians = {step: statistics.median(found) for step, found in seconds.items()}
    pairs = zip(seconds["calibrate"], seconds["predict"], strict=True)
    low, _, high = statistics.quantiles((own / of for own, of in pairs), n=4)
    return {
        "model": name,
        "images": _IMAGES,
        "turns": turns,
        **{f"{step}, s": round(median, 2) for step, median in medians.items()},
        "predictions": round(medians["calibrate"] / medians["predict"], 1),
        "lower quartile": round(low, 1),
        "upper quartile": round(high, 1),
    }


if __name__ == "__main__":
    app.run(main)
