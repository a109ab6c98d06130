"""What bits of channels save of the rounding error of trained kernels, before any training.

The float models are those of `peers.py`, which trains them where they are not there. Of each kernel
the squared error of L1's weights is taken as a share of its power, with the same bits everywhere
and with bits of 1 to 8 for each channel and that mean; the mean over layers and models.

    python benchmarks/channel_errors.py
"""

import pathlib
import statistics

import numpy as np
import peer_start
import rich.console
import tensorflow as tf
import tf_keras as keras
from absl import app, flags
from rows import as_table, write_csv

from sat_tf.graph import layer_kinds
from sat_tf.quantizers.methods.channel_bits import least_error_bits, squared_errors

_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of the float models")
_WORK = flags.DEFINE_string("work", "runs/peers", "folder for data and float models")
_OUTPUT = flags.DEFINE_string(
    "output", "benchmarks/results/channel_errors.csv", "where to write rows"
)

_LOWEST, _HIGHEST = 1, 8
_MEANS = (2, 3, 4)
_KINDS = {"DepthwiseConv2D": "depthwise", "Conv2D": "convolution", "Dense": "dense"}


def _shares(layer: keras.layers.Layer) -> dict[int, tuple[float, float, float]]:
    """At each mean the error of the same bits, that of bits of channels, and their most bits."""
    support = layer_kinds.find_support(layer)
    kernel = tf.convert_to_tensor(getattr(layer, layer_kinds.kernel_name(layer)))
    errors = squared_errors(kernel, _LOWEST, _HIGHEST, channel_axes=support.channel_axes).numpy()
    power = float(tf.reduce_sum(tf.square(kernel)))
    found = {}
    for mean in _MEANS:
        bits = least_error_bits(errors, _LOWEST, mean)
        own = errors[np.arange(len(bits)), bits - _LOWEST].sum()
        same = errors[:, mean - _LOWEST].sum()
        found[mean] = (100 * same / power, 100 * own / power, float(bits.max()))
    return found


def main(argv: list[str]) -> None:
    """Measures all kernels, writes the CSV and prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console, work = rich.console.Console(), pathlib.Path(_WORK.value)
    seeds = list(map(int, _SEEDS.value))
    peer_start.prepare(work, seeds, console)
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for seed in seeds:
        path = peer_start.Case(bits=0, seed=seed, work=work).start
        for layer in keras.models.load_model(path, compile=False).layers:
            if kind := _KINDS.get(type(layer).__name__):
                for mean, shares in _shares(layer).items():
                    found.setdefault((kind, mean), []).append(shares)
    rows = []
    for (kind, mean), shares in sorted(found.items()):
        same, own, most = (statistics.mean(column) for column in zip(*shares, strict=True))
        rows.append(
            {
                "kernels": kind,
                "mean bits": mean,
                "same bits, %": f"{same:.2f}",
                "bits of channels, %": f"{own:.2f}",
                "most bits of a channel": f"{most:.1f}",
            }
        )
    write_csv(rows, _OUTPUT.value)
    console.print(as_table(rows, "squared error of kernels, of their power"))


if __name__ == "__main__":
    app.run(main)
