"""Computes all rows on the backend of this process, without TensorFlow; a program of its own.

    KERAS_BACKEND=jax python -m tests.quantizers.compute rows.npz

Writes the values, the gradients and what variables become in training, by row. On JAX and
torch it runs where TensorFlow, tf_keras and TFMOT cannot be imported, and imports all modules of
the mathematics and of quantizers there.
"""

import importlib
import pkgutil
import sys

from tests.keras3.processes import block_tensorflow

if __name__ == "__main__":
    block_tensorflow()

import keras  # noqa: TID251 -- the rows are computed on every backend of Keras 3
import numpy as np

import sat_tf.configs
import sat_tf.core
import sat_tf.quantizers
from sat_tf.quantizers.table import deserialize_quantizer
from tests.core.execution import MODES, value_and_gradients
from tests.quantizers.rows import draw, others, rows

BITS = (1, 2, 4, 8)


def every_row():
    return [row for bits in BITS for row in rows(bits)] + list(others())


def computed(row, mode="eager"):
    """The value, the gradient of the input and trained variables, and all variables afterwards."""
    quantizer = deserialize_quantizer({"quantizer": row.name, **row.config})
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
