"""Every quantizer with settings, inputs and variables that are not the usual ones.

    KERAS_BACKEND=jax python -m tests.quantizers.rows rows.npz

computes all rows on the backend of the process: the values, the gradients and what variables become
in training. On JAX and torch it runs where TensorFlow, tf_keras and TFMOT cannot be imported, and
imports all modules of the mathematics and of quantizers there.
"""

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from typing import Any

from tests.keras3.processes import block_tensorflow

if __name__ == "__main__":
    block_tensorflow()

import keras  # noqa: TID251 -- the rows are computed on every backend of Keras 3
import numpy as np

import sat_tf.configs
import sat_tf.core
import sat_tf.quantizers
from sat_tf.core.grid import AUTOMATIC, GRIDS
from sat_tf.quantizers.methods.kmeans import cluster_ids
from sat_tf.quantizers.quantizer_table import deserialize_quantizer
from tests.core.execution import MODES, draw, value_and_gradients

SHAPE = (3, 3, 4, 6)
AXES = (-1,)
SURROGATES: tuple[dict[str, Any], ...] = (
    {},
    {"surrogate": "ewgs", "surrogate_strength": 0.1},
    {"surrogate": "dsq", "surrogate_strength": None},
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One quantizer, what it is given, and what its variables hold."""

    name: str
    config: Mapping[str, Any]
    inputs: np.ndarray
    variables: Mapping[str, np.ndarray]

    def __str__(self):
        said = ",".join(f"{key}={value}" for key, value in self.config.items())
        return f"{self.name}({said})".replace(" ", "")

    def quantizer(self):
        return deserialize_quantizer({"quantizer": self.name, **self.config})


def rows(bits):
    yield from _weights(bits)
    yield from _activations(bits)


def others():
    """Rows of the quantizers that have no bits."""
    pixels = np.random.default_rng(3).integers(0, 256, (5, 4, 4, 3)).astype(np.float32)
    ranges = {
        "lowest": np.float32(-1.3),
        "highest": np.float32(2.9),
        "observations": np.float32(7.0),
    }
    rounds = {"rounds": True}
    marked = ({**rounds, "trains_float": True}, {**rounds, "is_fixed": True})
    for settings in ({"rounds": False}, rounds, *marked):
        yield Row("RangeObserver", settings, draw(SHAPE, deviation=2.0), ranges)
    state = {"fed_by": "state_out", "is_fixed": True}
    for settings in ({"input_type": "int8"}, {"input_type": "float32"}, state):
        settings = {"input_type": "int8", **settings}
        yield Row("InputQuantizer", settings, draw(SHAPE, deviation=2.0), ranges)
    torch_low, torch_high = [-2.1179039, -2.0357141, -1.8044444], [2.2489083, 2.4285715, 2.64]
    for low, high, reverses in (
        ([0.0], [255.0], False),
        ([0.0], [1.0], False),
        ([-1.0], [1.0], False),
        (torch_low, torch_high, False),
        ([-103.939, -116.779, -123.68], [151.061, 138.221, 131.32], True),
    ):
        fed = np.float32(np.float32(low) + (np.float32(high) - np.float32(low)) * pixels / 255)
        ends = np.float32(low) if len(low) > 1 or reverses else np.float32(low[0])
        for compares in (False, True):
            variables = {
                "lowest": ends + np.float32(0.25),
                "highest": -ends + np.float32(0.5),
                "off_grid": np.float32(0.1),
                "observations": np.float32(3.0),
            }
            if compares:
                variables["off_usual"] = np.linspace(0, 0.5, 8, dtype=np.float32)
                variables["checked_by"] = np.float32(0.0)
            config = {"low": low, "high": high, "reversed_channels": reverses}
            config |= {"compares": compares, "is_checked": compares}
            yield Row("ImageQuantizer", config, fed, variables)
    yield Row("ImageQuantizer", {"image_max": 1.0}, pixels / 255, {})


def _weights(bits):
    kernel = draw(SHAPE, bits)
    kernel[0, 0, 0] = kernel[1, 1, 1]  # some are the same
    kernel[2, 2, :, 0] = 0.0
    per_channel = np.linspace(0.7, 1.6, SHAPE[-1], dtype=np.float32).reshape(1, 1, 1, -1)
    gain = {"rescale_gain": np.float32(1.75)}
    ranges: tuple[tuple[int, ...], ...] = ((), AXES)
    constant = {"rescale": "constant", "fan_out": 54}
    for axes in ranges:
        for grid in (*AUTOMATIC, *GRIDS):
            if bits == 1 and grid not in (*AUTOMATIC, "dorefa", "nested"):
                continue
            settings = {"num_bits": bits, "grid": grid, "range_axes": axes}
            yield Row("DorefaQuantizer", settings, kernel, {})
            yield Row("L1Quantizer", {**settings, "over_size": bool(axes)}, kernel, {})
        for surrogate in SURROGATES:
            settings = {"num_bits": bits, "range_axes": axes, **surrogate}
            size = per_channel if axes else np.float32(1.1)
            rescaled = {**settings, "rescale": "stddev", "fan_out": 9}
            own = {"rescale_gain": 2.0 * size}
            yield Row("DorefaQuantizer", {**rescaled, "detach_max": True}, kernel, own)
            yield Row("DorefaQuantizer", {**settings, "gain_axes": axes}, kernel, own)
            shared = {"rescale_gain": np.float32(1.75)}
            config = {**settings, **constant, "gain_axes": ()}
            yield Row("DorefaQuantizer", config, kernel, shared)
            yield Row("L1Quantizer", {**settings, **constant}, kernel, gain)
            if bits > 1:
                learnt = {"magnitude": size}
                yield Row("LsqQuantizer", {**settings, "start": "error"}, kernel, learnt)
                yield Row("LsqQuantizer", {**settings, **constant}, kernel, {**learnt, **gain})
                interval = {"interval_center": size * 0.4, "interval_distance": size * 0.3}
                yield Row("QilQuantizer", settings, kernel, interval)
                config = {**settings, **constant, "gradient_factor": 0.5}
                yield Row("QilQuantizer", config, kernel, {**interval, **gain})
        basis = np.float32(0.3) * 2.0 ** np.arange(bits, dtype=np.float32) / 2.0 ** (bits - 1)
        basis = np.tile(basis, (SHAPE[-1] if axes else 1, 1)).astype(np.float32)
        basis *= np.linspace(0.9, 1.3, len(basis), dtype=np.float32)[:, None]
        settings = {"num_bits": bits, "range_axes": axes}
        yield Row("LqNetsQuantizer", {**settings, "momentum": 0.5}, kernel, {"basis": basis})
        yield Row("LqNetsQuantizer", {**settings, **constant}, kernel, {"basis": basis, **gain})
    for keeps in (False, True):
        ids = {"cluster_ids": cluster_ids(kernel, bits, keep_zeros=keeps)}
        settings = {"num_bits": bits, "keep_zeros": keeps}
        yield Row("KMeansQuantizer", settings, kernel, ids)
        yield Row("KMeansQuantizer", {**settings, **constant, "reassign": True}, kernel,
                  {**ids, **gain})  # fmt: skip
    bits_of_channels = np.random.default_rng(bits).integers(2, 9, (1, 1, 1, SHAPE[-1]))
    for surrogate in SURROGATES:
        config = {"num_bits": bits, "range_axes": AXES, "over_size": bits % 2 == 0, **surrogate}
        if bits == 1:
            config["lowest"] = 1
        levels = {"channel_bits": bits_of_channels.astype(np.uint8)}
        yield Row("ChannelBitsQuantizer", config, kernel, levels)
    for name in ("DorefaQuantizer", "L1Quantizer", "KMeansQuantizer", "LqNetsQuantizer"):
        yield Row(name, {"num_bits": None}, kernel, {})
    yield Row("LsqQuantizer", {"num_bits": None, **constant}, kernel, gain)
    yield Row("QilQuantizer", {"num_bits": None, **constant}, kernel, gain)


def _activations(bits):
    x = draw((4, 5, 5, 6), seed=10 + bits, deviation=2.0)
    level = {"clipping_level": np.float32(2.7)}
    for surrogate in SURROGATES:
        plain = {"num_bits": bits, **surrogate}
        for gradient in ("calibrated", "pact"):
            settings = {**plain, "gradient": gradient, "rate": 0.25}
            yield Row("PactQuantizer", settings, x, level)
            for lowest, share in ((-0.375, 0.0), (0.0, 0.2)):
                config = {**settings, "lowest": lowest, "share": share}
                yield Row("OffsetQuantizer", config, x, level)
            if bits > 1:
                yield Row("StreamQuantizer", {**settings, "rate": 1.0}, x, level)
                for skew in (-0.7, 0.0, 1.0):
                    variables = {**level, "skew": np.float32(skew)}
                    yield Row("StreamQuantizer", {**settings, "skews": True}, x, variables)
        for signed in (False, True)[: 1 + (bits > 1)]:
            yield Row("UnitQuantizer", {**plain, "signed": signed}, x * np.float32(0.4), {})
            fixed = {"lowest": -float(signed), "highest": 0.9375}
            yield Row("FixedGridQuantizer", {**plain, **fixed}, x * np.float32(0.4), {})
            config = {**plain, "signed": signed, "counts_batch": signed, "ceiling": 6.0}
            yield Row("LsqActivationQuantizer", config, x, level)
        for offset in (-0.3, 0.2):
            config = {**plain, "lowest": -0.375, "share": 0.1, "counts_batch": offset > 0}
            variables = {**level, "offset": np.float32(offset)}
            yield Row("LsqPlusQuantizer", config, x, variables)


def every_row():
    return [row for bits in (1, 2, 4, 8) for row in rows(bits)] + list(others())


def computed(row, mode="eager"):
    """The value, the gradient of the input and trained variables, and all variables afterwards."""
    quantizer = row.quantizer()
    specs = quantizer.variables(row.inputs.shape)
    trained = [name for name in row.variables if specs[name].trainable]
    variables = {
        name: keras.Variable(value, trainable=specs[name].trainable)
        for name, value in row.variables.items()
    }

    def function(inputs, *values):
        return quantizer(inputs, False, {**variables, **dict(zip(trained, values, strict=True))})

    arrays = [row.inputs, *(row.variables[name] for name in trained)]
    value = quantizer(keras.ops.convert_to_tensor(row.inputs), True, variables)
    after = {
        f"after {name}": keras.ops.convert_to_numpy(variable)
        for name, variable in variables.items()
    }
    for name, variable in variables.items():
        variable.assign(row.variables[name])
    upstream = draw(value.shape, seed=99)
    value, *gradients = value_and_gradients(function, arrays, upstream, mode)
    names = ["inputs", *trained]
    by_name = {f"d {name}": one for name, one in zip(names, gradients, strict=True)}
    return {"value": value, **by_name, **after}


def main(path):
    for package in (sat_tf.core, sat_tf.quantizers):
        for module in pkgutil.iter_modules(package.__path__):
            if module.name != "on_tensorflow":
                importlib.import_module(f"{package.__name__}.{module.name}")
    found = {}
    for number, row in enumerate(every_row()):
        # Compiling takes long: some of them.
        mode = MODES[-1] if number % 10 == 0 else "eager"
        found |= {f"{number} {name}": one for name, one in computed(row, mode).items()}
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
