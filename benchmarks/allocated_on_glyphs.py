"""Trains a small net on glyphs with allocated bits, and with others that use no more of anything.

For each seed one float model is trained. At each number of bits, the same bits everywhere set the
budget: `sat_tf.allocate` may use as many bytes of the file, and as many bits in the mean of weights
and of activations, and not one more. So may HAQ's searches, a random and a greedy one, which
measure the loss of the calibrated model equally often, on half of the images of `allocate`. All are
trained alike from the float model, exported and verified.

With --weights_only activations have 8 bits, and the budget is of bytes and mean weight bits.

    python benchmarks/allocated_on_glyphs.py
    python benchmarks/allocated_on_glyphs.py --weights_only
    python benchmarks/allocated_on_glyphs.py --classes=50 --seeds=0 --bits=2 --float_epochs=2
"""

import dataclasses
import functools
import itertools
import pathlib
import time
import types
from collections.abc import Sequence
from typing import Any

import haq_searches
import numpy as np
import rich.console
import tf_keras as keras
from absl import app, flags
from calibrated_loss import CalibratedLoss
from drawn_glyphs import load_glyphs
from hessian import hessian_costs
from rows import as_table, read_csv, write_csv

import sat_tf
from sat_tf import output_folder
from sat_tf.analysis.allocation.allocation import BitProblem
from sat_tf.analysis.allocation.budget import read_budget
from sat_tf.analysis.allocation.choices import ModelChoices
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy
from sat_tf.report.results import Results
from sat_tf.training.config import Config
from sat_tf.training.loop import runner
from sat_tf.training.run_folder import RunFolder

_SEARCHES = ("haq_random", "haq_greedy")
_ALL_WAYS = ("uniform", "sensitivity", "hessian", *_SEARCHES)
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of weights and order of images")
_BITS = flags.DEFINE_list("bits", ["2", "3", "4"], "that set the budgets, 2 or more")
_WAYS = flags.DEFINE_list("ways", list(_ALL_WAYS), f"to choose bits: {', '.join(_ALL_WAYS)}")
_WEIGHTS_ONLY = flags.DEFINE_bool("weights_only", False, "activations have 8 bits")
_EVALUATIONS = flags.DEFINE_integer("evaluations", 100, "of each search", lower_bound=1)
_CLASSES = flags.DEFINE_integer("classes", 200, "how many characters", lower_bound=2)
_FLOAT_EPOCHS = flags.DEFINE_integer("float_epochs", 6, "of the float stage", lower_bound=1)
_QUANTIZED_EPOCHS = flags.DEFINE_integer("quantized_epochs", 3, "of the other", lower_bound=1)
_IMAGES = flags.DEFINE_integer("images", 256, "training images to measure costs on", lower_bound=2)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "where to write rows; default: benchmarks/results/allocated.csv, or allocated_weights.csv",
)
_FOLDER = flags.DEFINE_string("folder", "runs/allocated", "where runs put their files")

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


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """A policy, and what choosing it took."""

    policy: BitPolicy
    seconds: float = 0.0
    evaluations: int | None = None


@dataclasses.dataclass(frozen=True)
class _Task:
    """A model whose bits are chosen within a budget: what the same bits everywhere use."""

    model: keras.Model
    images: np.ndarray
    labels: np.ndarray
    bits: int
    seed: int

    @functools.cached_property
    def uniform(self) -> BitPolicy:
        """The same bits everywhere."""
        fields = {"activation_bits": 8} if _WEIGHTS_ONLY.value else {}
        return BitPolicy.mobile(self.bits, **fields)

    @functools.cached_property
    def budget(self) -> dict[str, float]:
        """What may be used: no more than by the same bits everywhere."""
        plan = sat_tf.explain(self.model, self.uniform)
        rounded = [row for row in plan.layers if row.weights is not None]
        sizes = [np.prod(self.model.get_layer(row.name).weights[0].shape) for row in rounded]
        mean = np.average([row.weights.bits for row in rounded], weights=sizes)
        budget = {"bytes": file_bytes(self.model, self.uniform), "average_weight_bits": float(mean)}
        if not _WEIGHTS_ONLY.value:
            budget["average_activation_bits"] = self.bits
        return budget

    @property
    def choices(self) -> dict[str, Sequence[int]]:
        """The numbers of bits to choose from."""
        # The fewest bits there are to choose from, everywhere, would leave no choice.
        numbers = range(min(2, self.bits - 1), 9)
        return {
            "weight_bits": numbers,
            "activation_bits": (8,) if _WEIGHTS_ONLY.value else numbers,
        }

    def chosen(self, way: str) -> _Chosen:
        """The policy that one way chooses."""
        if way == "uniform":
            return _Chosen(self.uniform)
        start = time.perf_counter()
        if way in _SEARCHES:
            policy, evaluations = self._searched(way)
            return _Chosen(policy, time.perf_counter() - start, evaluations)
        images, cost = (self.images, self.labels), way
        if way == "hessian":
            choices = ModelChoices(self.model, self.uniform, **self.choices)
            fewest = choices.policy_at(*(min(bits) for bits in self.choices.values()))
            cost = hessian_costs(self.model, images, choices, fewest, num_images=_IMAGES.value)
        found = sat_tf.allocate(
            self.model,
            images,
            self.uniform,
            budget=self.budget,
            cost=cost,
            **self.choices,
            num_images=_IMAGES.value,
        )
        return _Chosen(found.policy, time.perf_counter() - start)

    def _searched(self, way: str) -> tuple[BitPolicy, int]:
        choices = ModelChoices(self.model, self.uniform, **self.choices)
        problem = BitProblem(choices, read_budget(self.budget))
        bits = np.array(
            [[one.weight_bits or 0, one.activation_bits or 0] for one in problem.options]
        )
        half = len(self.images) // 2
        loss = CalibratedLoss(self.model, choices, self.images[:half], self.labels[:half])

        def evaluate(chosen: np.ndarray) -> float:
            options = [problem.options[option] for option in chosen]
            return loss({one.name: (one.weight_bits, one.activation_bits) for one in options})

        given = problem.knapsack, bits, evaluate
        times = {"evaluations": _EVALUATIONS.value}
        if way == "haq_random":
            found = haq_searches.random_search(*given, **times, seed=self.seed)
        else:
            found = haq_searches.greedy_search(*given, **times)
        if found is None:
            raise RuntimeError(f"{way}: received a budget that no choice of bits keeps.")
        return problem.policy_of(found.chosen), len(found.history)


def _float_model(
    seed: int, folder: pathlib.Path, console: rich.console.Console
) -> tuple[pathlib.Path, Results]:
    """The float model of a seed, trained where it is not there yet."""
    run = RunFolder(folder)
    if run.is_finished:
        results = Results.read(run)
    else:
        config = _config("allocated_float", seed, BitPolicy.mobile(4), None)
        results = _trained(config, folder, console)
    return folder / output_folder.FLOAT_MODEL, results


def main(argv: list[str]) -> None:
    """Runs what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    if unknown := [way for way in _WAYS.value if way not in _ALL_WAYS]:
        raise app.UsageError(f"--ways: received {unknown}, expected {', '.join(_ALL_WAYS)}.")
    console = rich.console.Console()
    pixels = load_glyphs(num_classes=_CLASSES.value)
    table = "allocated_weights" if _WEIGHTS_ONLY.value else "allocated"
    output = _OUTPUT.value or f"benchmarks/results/{table}.csv"
    rows = read_csv(output)
    size = f"{_CLASSES.value} classes, {_FLOAT_EPOCHS.value} + {_QUANTIZED_EPOCHS.value} epochs"
    for seed, bits, way in itertools.product(
        map(int, _SEEDS.value), map(int, _BITS.value), _WAYS.value
    ):
        if (str(seed), str(bits), way) in {
            (str(row["seed"]), str(row["bits"]), row["chosen by"]) for row in rows
        }:
            continue
        folder = (
            pathlib.Path(_FOLDER.value) / size.replace(", ", "_").replace(" ", "_") / f"seed_{seed}"
        )
        path, floats = _float_model(seed, folder / "float", console)
        first = np.random.default_rng(seed).permutation(len(pixels.train_labels))[: _IMAGES.value]
        images = pixels.train_images[first].astype(np.float32), pixels.train_labels[first]
        keras.backend.clear_session()
        model = keras.models.load_model(path, compile=False)
        found = _Task(model, *images, bits, seed).chosen(way)
        name = f"{table}_{bits}_{way}"
        console.rule(f"seed {seed}, {name}")
        config = _config(name, seed, found.policy, path)
        results = _trained(config, folder / name, console)
        rows.append(
            {
                "seed": seed,
                "bits": bits,
                "chosen by": way,
                "top-1 %, float": f"{100 * floats.float_top1:.2f}",
                "top-1 %": f"{100 * (results.quantized_top1 or 0.0):.2f}",
                "bytes": results.file_bytes,
                "bit operations": sat_tf.explain(model, found.policy).bit_operations,
                "codes differing": results.codes_differing,
                "seconds to choose": f"{found.seconds:.0f}",
                "evaluations": found.evaluations,
            }
        )
        write_csv(rows, output)
    console.print(as_table(rows, f"glyphs, {size}", _SHOWN))
    console.print(f"wrote {output}")


if __name__ == "__main__":
    app.run(main)
