"""What recipes are worth to `sat-tf quantize --epochs`.

Float models of small tasks are quantized and trained for a few epochs by `sat-tf train`. They start
from calibration alone: with the labels and the float model in equal parts, as the command has it,
with the labels alone, and the float model alone; then with one recipe more each. The last way is
the command's own, which starts from a reconstruction. Top-1 is on held-out pictures, which no float
model has seen.

    python benchmarks/recipes_of_quantize.py
    python benchmarks/recipes_of_quantize.py --tasks=digits --bits=4 --epochs=3 --seeds=0

Runs train at --rate, the command at the rate that its trial chooses. Rows that the CSV file has are
not made again. Some there are of a time when runs had a trial of their own, and compared epochs
with moving averages of their statistics.
"""

import dataclasses
import functools
import json
import pathlib
import shutil
from typing import Any

import pretrained_tasks
import rich.console
from absl import app, flags
from rows import as_table, read_csv, with_spread, write_csv

from sat_tf.commands import main as command
from sat_tf.qat.policy import BitPolicy

TASKS = {
    "digits": pretrained_tasks.TASKS["digits"],
    "textures": pretrained_tasks.TASKS["textures"],
    "glyphs_50": dataclasses.replace(
        pretrained_tasks.TASKS["glyphs"],
        kind="glyphs, 50 characters",
        draw=functools.partial(pretrained_tasks.glyphs, classes=50),
        train=2000,
        classes=50,
    ),
}
_AVERAGE = "recipes.weight_average={decay: 0.98}"
WAYS: dict[str, tuple[str, ...] | None] = {
    "labels and teacher": (),
    "labels alone": ("recipes.distillation=null",),
    "teacher alone": ("recipes.distillation.weight=1",),
    "weight average": (_AVERAGE,),
    "oscillation": ("recipes.oscillation={start: 0.4}",),
    "progressive bits": ("recipes.progressive_bits={}",),
    "reconstructed": None,  # the command itself
}

_TASKS = flags.DEFINE_list("tasks", list(TASKS), "which ones")
_BITS = flags.DEFINE_list("bits", ["4", "2"], "of weights and activations")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1"], "of the training")
_WAYS = flags.DEFINE_list("ways", list(WAYS), "of training")
_EPOCHS = flags.DEFINE_string("epochs", "3", "of training")
_RATE = flags.DEFINE_float("rate", 0.003, "peak of the runs, for batches of 256", lower_bound=0)
_TASK_FOLDER = flags.DEFINE_string("folder", "runs/recipes", "for pictures, models and files")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/recipes_of_quantize.csv", "rows")


def main(argv: list[str]) -> None:
    """Measures what is missing."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    rows: list[dict[str, Any]] = [*read_csv(_OUTPUT.value)]
    keys = ("task", "bits", "epochs", "seed", "way")
    done = {tuple(row[key] for key in keys) for row in rows}
    for seed in _SEEDS.value:
        for name in _TASKS.value:
            folder = pathlib.Path(_TASK_FOLDER.value) / name
            file = pretrained_tasks.prepare(TASKS[name], folder)
            for bits in _BITS.value:
                for way in _WAYS.value:
                    case = (name, bits, _EPOCHS.value, seed, way)
                    if case in done:
                        continue
                    found = _trained(file, bits, seed, WAYS[way])
                    rows.append({**dict(zip(keys, case, strict=True)), **found})
                    write_csv(rows, _OUTPUT.value)
                    print(*rows[-1].values(), flush=True)
    print_table(rows)


def _trained(
    file: pathlib.Path, bits: str, seed: str, settings: tuple[str, ...] | None
) -> dict[str, Any]:
    """Runs a command, and returns what it has measured; files are removed."""
    out, photos = file.parent / "out", file.parent / "photos"
    shutil.rmtree(out, ignore_errors=True)
    words = ["quantize", str(file), "--images", str(photos), "--bits", bits, "--seed", seed]
    words += ["--epochs", _EPOCHS.value, "--input_range=0,255"]
    if settings is not None:
        config = file.parent / "config.yaml"
        config.write_text(json.dumps(_config(file, photos, int(bits), int(seed))), "utf-8")
        words = ["train", "--config", str(config)]
        words += [word for setting in settings for word in ("--set", setting)]
    if command.main([*words, "--out", str(out)]):
        raise SystemExit(f"{file}: the command has failed.")
    results = json.loads((out / "results.json").read_text())
    shutil.rmtree(out)
    return {
        "float": f"{100 * results['float_top1']:.2f}",
        "calibrated": f"{100 * results['start_top1']:.2f}",
        "trained": f"{100 * results['quantized_top1']:.2f}",
        "rate": f"{results['learning_rate']:g}",
        "codes_differing": results["codes_differing"],
        "epochs_measured_with": "own statistics",
    }


def data_of(photos: pathlib.Path) -> dict[str, Any]:
    """The data set of a run: pictures in a folder, in crops of their own."""
    crops = {"resize_ratio": 1.0, "smallest_area": 0.6, "mirrored": False}
    options = {"data_dir": str(photos), "image_size": pretrained_tasks.SIDE, **crops}
    return {"name": "folder", "options": options}


def _config(file: pathlib.Path, photos: pathlib.Path, bits: int, seed: int) -> dict[str, Any]:
    """The training of `sat-tf quantize --epochs` from calibration, as a configuration of a run."""
    epochs = int(_EPOCHS.value)
    rates = {"warmup_learning_rate": 0.0, "base_learning_rate": _RATE.value}
    return {
        "name": "recipes",
        "seed": seed,
        "data": data_of(photos),
        "policy": BitPolicy.mobile(bits, input_range=(0, 255)).to_dict(),
        "stages": {
            "float": {"batch_size": 32, **rates},
            "quantized": {"epochs": epochs, "warmup_epochs": epochs / 10},
        },
        "calibration": {"num_images": 512, "final_statistics": True},
        "training": {"start": "vanilla", "float_model": str(file)},
        "recipes": {"distillation": {}},
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints the mean over the seeds, with the lowest and the highest."""
    lines = []
    for name, bits in dict.fromkeys((row["task"], row["bits"]) for row in rows):
        of_case = [row for row in rows if (row["task"], row["bits"]) == (name, bits)]
        line = {"task": name, "bits": bits, "float": of_case[0]["float"]}
        line["calibrated"] = with_spread([float(row["calibrated"]) for row in of_case])
        for way in WAYS:
            found = [float(row["trained"]) for row in of_case if row["way"] == way]
            line[way] = with_spread(found) if found else ""
        lines.append(line)
    rich.console.Console(width=160).print(as_table(lines, "Top-1 in percent, trained"))


if __name__ == "__main__":
    app.run(main)
