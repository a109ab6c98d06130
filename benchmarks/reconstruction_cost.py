"""Seconds and peak memory of calibration and of reconstruction, of networks at 96x96.

Weights are random, with normalizations as trained ones have them: neither depends on what was
learnt. Each network has a new process of one thread, whose largest resident set is what is
measured. Seconds are of the processor, and grow with the steps by the same for each; of two small
numbers of steps they tell those of 100:

    python benchmarks/reconstruction_cost.py --steps=100
    python benchmarks/reconstruction_cost.py --steps=1,3 --models=resnet18
"""

import resource
import time
from typing import Any

import rich.console
from absl import app, flags
from new_process import in_new_process
from rows import as_table, read_csv, write_csv

_MODELS = flags.DEFINE_list("models", ["mobilenet_v2", "resnet18"], "float models, by name")
_IMAGES = flags.DEFINE_integer("images", 512, "to calibrate and to fit on", lower_bound=1)
_STEPS = flags.DEFINE_list("steps", ["1", "3"], "of a block, one number after the other")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/reconstruction_cost.csv", "rows")

_IMAGE_SIZE = 96


def main(argv: list[str]) -> None:
    """Measures each network, and writes the CSV after it."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    rows = [row for row in read_csv(_OUTPUT.value) if row["model"] not in _MODELS.value]
    for name in _MODELS.value:
        rows += in_new_process(_measured, name, _IMAGES.value, [int(n) for n in _STEPS.value])
        write_csv(rows, _OUTPUT.value)
    title = f"w4a4, {_IMAGE_SIZE}x{_IMAGE_SIZE}, {_IMAGES.value} images"
    rich.console.Console().print(as_table(rows, title))


def _measured(name: str, count: int, several_steps: list[int]) -> list[dict[str, Any]]:
    """Seconds of both, and the mebibytes up to each; a row for each number of steps."""
    import peer_task
    from full_size import make_realistic, smooth_images

    import sat_tf

    peer_task.one_thread()
    model = sat_tf.training.models.build(name, image_size=_IMAGE_SIZE, num_classes=1000, seed=0)
    make_realistic(model, dead_channels=False)
    images = smooth_images(count, _IMAGE_SIZE)
    row: dict[str, Any] = {"model": name, "images": count, "mebibytes before": _peak()}
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4, input_range=(0, 255)))
    start = time.process_time()
    sat_tf.calibrate(quantized, images, progress=False)
    row["seconds, calibrate"] = f"{time.process_time() - start:.1f}"
    row["mebibytes, calibrate"] = _peak()
    calibrated, rows = quantized.get_weights(), []
    for steps in several_steps:
        quantized.set_weights(calibrated)
        start = time.process_time()
        sat_tf.reconstruct(quantized, model, images, steps=steps, progress=False)
        seconds = f"{time.process_time() - start:.1f}"
        found = {"seconds, reconstruct": seconds, "mebibytes, reconstruct": _peak()}
        rows.append({**row, "steps": steps, **found})
        print(*rows[-1].values(), flush=True)
    return rows


def _peak() -> str:
    """The largest resident set of the process so far."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"


if __name__ == "__main__":
    app.run(main)
