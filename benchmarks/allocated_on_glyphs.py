"""Trains a small net on glyphs with allocated bits, and with the same bits everywhere.

For each seed one float model is trained. At each number of bits, the same bits everywhere set the
budget: `sat_tf.allocate` may use as many bytes of the file, as many ideal bytes and as many bit
operations, and not one more. Both are trained alike from the float model, exported and verified.

    python benchmarks/allocated_on_glyphs.py
    python benchmarks/allocated_on_glyphs.py --classes=50 --seeds=0 --bits=2 --float_epochs=2
"""

import pathlib
import time
import types
from typing import Any

import numpy as np
import rich.console
import tf_keras as keras
from absl import app, flags
from rows import as_table, write_csv

import sat_tf
from sat_tf import data
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.config.config import Config
from sat_tf.training.loop import runner
from sat_tf.training.report.results import Results
from sat_tf.training.state import run_folder
from sat_tf.training.state.run_folder import RunFolder

_COSTS = ("sensitivity", "hessian")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of weights and order of images")
_BITS = flags.DEFINE_list("bits", ["2", "3", "4"], "that set the budgets, 2 or more")
_WAYS = flags.DEFINE_list("costs", list(_COSTS), f"what is minimized: {', '.join(_COSTS)}")
_CLASSES = flags.DEFINE_integer("classes", 200, "how many characters", lower_bound=2)
_FLOAT_EPOCHS = flags.DEFINE_integer("float_epochs", 6, "of the float stage", lower_bound=1)
_QUANTIZED_EPOCHS = flags.DEFINE_integer("quantized_epochs", 3, "of the other", lower_bound=1)
_IMAGES = flags.DEFINE_integer("images", 256, "training images to measure costs on", lower_bound=2)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/allocated.csv", "where to write rows")
_FOLDER = flags.DEFINE_string("folder", "runs/allocated", "where the runs put their files")

_MODEL = types.MappingProxyType({"width_multiplier": 0.5, "stem_stride": 1})
_BATCH_SIZE = 64
_LEARNING_RATE = 0.4
# The rest is in the CSV.
_SHOWN = ("seed", "bits", "chosen by", "top-1 %", "bytes", "bit operations", "codes differing")


def _config(name: str, seed: int, policy: BitPolicy, float_model: pathlib.Path | None) -> Config:
    # From a trained model, smaller steps.
    quantized = {"epochs": _QUANTIZED_EPOCHS.value, "base_learning_rate": _LEARNING_RATE / 4}
    training: dict[str, Any] = {"start": "vanilla"}
    if float_model is not None:
        training["float_model"] = str(float_model)
    return Config.model_validate(
        {
            "name": name,
            "seed": seed,
            "data": {"name": "glyphs", "options": {"num_classes": _CLASSES.value}},
            "model": {"name": "mobilenet_v2", "options": dict(_MODEL)},
            "policy": policy.to_dict(),
            "stages": {
                "float": {
                    "epochs": _FLOAT_EPOCHS.value,
                    "batch_size": _BATCH_SIZE,
                    "base_learning_rate": _LEARNING_RATE,
                    "warmup_learning_rate": 0.0,
                    "warmup_epochs": 0.5,
                },
                "quantized": None if float_model is None else quantized,
            },
            "training": training,
            "calibration": {"num_images": 1024, "final_statistics": True},
        }
    )


def _trained(config: Config, folder: pathlib.Path, console: rich.console.Console) -> Results:
    results = runner.train(config, RunFolder(folder), console)
    if results is None:
        raise RuntimeError("received no results, expected those of a run on one machine.")
    return results


def _policies(model: keras.Model, bits: int, images: tuple[np.ndarray, np.ndarray]) -> Any:
    """The policy with the same bits everywhere, and one for each cost with no more of anything."""
    uniform = BitPolicy.mobile(bits)
    yield "uniform", uniform, 0.0
    plan = sat_tf.explain(model, uniform)
    ideal = sum(
        row.weights.bits / 8 * np.prod(model.get_layer(row.name).weights[0].shape)
        for row in plan.layers
        if row.weights is not None
    )
    budget = {
        "bytes": file_bytes(model, uniform),
        "ideal_bytes": float(ideal),
        "bit_operations": plan.bit_operations,
    }
    # The fewest bits there are to choose from, everywhere, would leave no choice.
    choices = range(min(2, bits - 1), 9)
    for cost in _WAYS.value:
        start = time.perf_counter()
        found = sat_tf.allocate(
            model,
            images,
            uniform,
            budget=budget,
            cost=cost,
            weight_bits=choices,
            activation_bits=choices,
            num_images=_IMAGES.value,
        )
        yield cost, found.policy, time.perf_counter() - start


def main(argv: list[str]) -> None:
    """Trains and measures all of them, writing the CSV after each; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    if unknown := [cost for cost in _WAYS.value if cost not in _COSTS]:
        raise app.UsageError(f"--costs: received {unknown}, expected {', '.join(_COSTS)}.")
    console = rich.console.Console()
    pixels = data.load("glyphs", num_classes=_CLASSES.value)
    rows: list[dict[str, Any]] = []
    for seed in map(int, _SEEDS.value):
        folder = pathlib.Path(_FOLDER.value) / f"seed_{seed}"
        first = np.random.default_rng(seed).permutation(len(pixels.train_labels))[: _IMAGES.value]
        images = pixels.train_images[first].astype(np.float32), pixels.train_labels[first]
        floats = _trained(
            _config("allocated_float", seed, BitPolicy.mobile(4), None), folder / "float", console
        )
        path = folder / "float" / run_folder.FLOAT_MODEL
        for bits in map(int, _BITS.value):
            model = keras.models.load_model(path, compile=False)
            for way, policy, seconds in list(_policies(model, bits, images)):
                name = f"w{bits}a{bits}_{way}"
                console.rule(f"seed {seed}, {name}")
                config = _config(f"allocated_{name}", seed, policy, path)
                results = _trained(config, folder / name, console)
                rows.append(
                    {
                        "seed": seed,
                        "bits": bits,
                        "chosen by": way,
                        "top-1 %, float": f"{100 * floats.float_top1:.2f}",
                        "top-1 %": f"{100 * (results.quantized_top1 or 0.0):.2f}",
                        "bytes": results.file_bytes,
                        "bit operations": sat_tf.explain(model, policy).bit_operations,
                        "codes differing": results.codes_differing,
                        "seconds to choose": f"{seconds:.0f}",
                    }
                )
                write_csv(rows, _OUTPUT.value)
                keras.backend.clear_session()
                model = keras.models.load_model(path, compile=False)
    title = f"glyphs, {_CLASSES.value} classes, {_FLOAT_EPOCHS.value} + "
    console.print(as_table(rows, f"{title}{_QUANTIZED_EPOCHS.value} epochs", _SHOWN))
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
