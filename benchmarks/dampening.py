"""Dampening of oscillating weights beside their freezing, in the comparison with peers.

The task, float models and 400 steps of `peers.py`, distilled. The ways are the configuration as it
is; with weights frozen that oscillate (`recipes.oscillation`); and with the regularizer of Nagel et
al., "Overcoming Oscillations in Quantization-Aware Training", ICML 2022:

    L = λ Σ (ŵ - clip(w))²,

with latent weights w, clipped to the outermost values of their grid, and their quantized values ŵ,
which carry no gradient, like the size of the grid. λ rises from 0 on half a cosine.

    python benchmarks/dampening.py
    python benchmarks/dampening.py --bits=3 --seeds=0 --ways="dampening, 0.1"

At 2 bits nothing freezes, as L1's weights do not. Rows that the CSV file has are not made again.
"""

import contextlib
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import peer_sat
import peer_start
import peer_task
import rich.console
import tensorflow as tf
import tf_keras as keras
from absl import app, flags
from rows import as_table, read_csv, with_spread, write_csv

from sat_tf.core import dorefa
from sat_tf.core.grid import axes_within
from sat_tf.graph import layer_kinds
from sat_tf.qat.wrapper import weight_quantizer
from sat_tf.quantizers import l1
from sat_tf.quantizers.protocol import WeightQuantizer
from sat_tf.training.config_sections import OscillationConfig
from sat_tf.training.loop import stage
from sat_tf.training.recipes import OscillationCount, StageRecipes, stage_recipes
from sat_tf.training.run_folder import RunFolder

_COUNTED = "recipes.oscillation={freeze: false, start: 0.4}"
# Overrides of the configuration, and the last λ.
WAYS: dict[str, tuple[str, float]] = {
    "default": (_COUNTED, 0.0),
    "freezing": ("recipes.oscillation={start: 0.4}", 0.0),
    "dampening, 0.001": (_COUNTED, 0.001),
    "dampening, 0.01": (_COUNTED, 0.01),
    "dampening, 0.1": (_COUNTED, 0.1),
    "dampening, 1": (_COUNTED, 1.0),
}
# Dampening acts up to as many bits as freezing.
_MOST_BITS = OscillationConfig().most_bits

_BITS = flags.DEFINE_list("bits", ["4", "3", "2"], "of weights and activations")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of float models and of the order of images")
_WAYS = flags.DEFINE_list("ways", [], "which ones, with ; for commas in names; all by default")
_WORK = flags.DEFINE_string("work", "runs/peers", "folder for data, float models and runs")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/dampening.csv", "rows")


def off_centre(quantizer: WeightQuantizer, latent: Any) -> tf.Tensor:
    """How far latent weights are from the values that they are rounded to, in their own size."""
    latent = tf.convert_to_tensor(latent)
    if quantizer.policy_name == "l1":
        size = l1.weight_size(latent, quantizer.num_bits, range_axes=quantizer.range_axes)
        value, position = quantizer.quantized(latent, {}, quantizer.num_bits), latent / size
        return tf.stop_gradient(value) - size * tf.clip_by_value(position, -1.0, 1.0)
    inner = axes_within(latent.shape.rank, quantizer.range_axes)
    size = tf.reduce_max(tf.abs(tf.tanh(latent)), axis=list(inner), keepdims=True)
    value = quantizer.stages(latent)["quantized"]
    position = dorefa.clamp_weights(latent, True, range_axes=quantizer.range_axes)
    return tf.stop_gradient(size) * (tf.stop_gradient(value) - position)


class Dampening:
    """The regularizer of a model, which counts the steps of its training."""

    def __init__(self, model: keras.Model, *, strength: float, total_steps: int) -> None:
        self._strength, self._total = strength, total_steps
        self._steps = tf.Variable(0.0, trainable=False)
        self._kernels = [
            (quantizer, layer_kinds.kernel_of(layer.layer))
            for layer in model.layers
            if (quantizer := weight_quantizer(layer)) is not None
            and quantizer.num_bits <= _MOST_BITS
        ]

    def __call__(self) -> None:
        """Counts a step."""
        self._steps.assign_add(1.0)

    def loss(self) -> tf.Tensor:
        """The regularizer, with λ of this step."""
        done = self._steps / self._total
        strength = self._strength * 0.5 * (1.0 - tf.cos(math.pi * done))
        return strength * tf.add_n([2.0 * tf.nn.l2_loss(off_centre(*k)) for k in self._kernels])


@contextlib.contextmanager
def dampened(strength: float) -> Iterator[None]:
    """Adds the regularizer to the loss of quantized stages."""

    def with_regularizer(
        config: Any, name: str, model: keras.Model, *, total_steps: int, **settings: Any
    ) -> StageRecipes:
        recipes = stage_recipes(config, name, model, total_steps=total_steps, **settings)
        if name == "quantized" and strength:
            dampening = Dampening(model, strength=strength, total_steps=total_steps)
            recipes.after_step.append(dampening)
            recipes.image_loss = _added(recipes.image_loss, dampening)
        return recipes

    with mock.patch.object(stage, "stage_recipes", with_regularizer):
        yield


def _added(image_loss: Callable[..., tf.Tensor], dampening: Dampening) -> Callable[..., tf.Tensor]:
    return lambda *batch: image_loss(*batch) + dampening.loss()


def main(argv: list[str]) -> None:
    """Runs what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    ways = [name.replace(";", ",") for name in _WAYS.value] or list(WAYS)
    peer_task.one_thread()
    console, work = rich.console.Console(width=140), pathlib.Path(_WORK.value)
    peer_start.prepare(work, map(int, _SEEDS.value), console)
    _, test = peer_task.read(str(work / "glyphs.npz"))
    rows = read_csv(_OUTPUT.value)
    for seed in _SEEDS.value:
        for bits in _BITS.value:
            for way in ways:
                keys = {"way": way, "bits": bits, "seed": seed}
                if any(keys.items() <= row.items() for row in rows):
                    continue
                if way == "freezing" and bits == "2":
                    continue
                rows.append({**keys, **_measured(way, int(bits), int(seed), work, test)})
                write_csv(rows, _OUTPUT.value)
                console.print(str(rows[-1]))
    console.print(as_table(_summary(rows), "top-1 in percent"))


def _measured(
    way: str, bits: int, seed: int, work: pathlib.Path, test: peer_task.Images
) -> dict[str, str]:
    override, strength = WAYS[way]
    start, folder = work / f"float_{seed}.keras", work / "dampening"
    with dampened(strength):
        found = peer_sat.run(start, folder, test, bits=bits, seed=seed, overrides=[override])
    counts = OscillationCount.read(RunFolder(folder))
    last = [count for count in counts if count.epoch == counts[-1].epoch]
    weights = sum(count.weights for count in last)
    shares = {
        name: f"{100.0 * sum(getattr(count, name) for count in last) / weights:.2f}"
        for name in ("oscillating", "frozen")
    }
    return {**{name: f"{value:.2f}" for name, value in found.items()}, **shares}


def _summary(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """A line for each way: the mean over seeds, and lowest to highest."""
    return [
        {
            "way": way,
            **{
                f"{bits} bits": with_spread(
                    [float(row["top1"]) for row in rows if (row["way"], row["bits"]) == (way, bits)]
                )
                for bits in _BITS.value
            },
        }
        for way in WAYS
    ]


if __name__ == "__main__":
    app.run(main)
