"""Loading saved models for the commands."""

import os
import pathlib
import sys
from typing import TYPE_CHECKING

from sat_tf.training.errors import RunError

if TYPE_CHECKING:
    import tf_keras as keras


def load_model(path: pathlib.Path) -> "keras.Model":
    """A model that sat-tf has saved.

    Raises:
        RunError: it is none.
    """
    try:
        return read_keras_model(path)
    except RunError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"{path}: {reason}; expected a Keras model that sat-tf has saved; train it again."
        ) from error


def read_keras_model(path: pathlib.Path) -> "keras.Model":
    """A model that any Keras has saved; one of Keras 3 is converted, and a line says so.

    Raises:
        RunError: Keras 3 saved it, and it cannot be converted; says why.
        Exception: what tf_keras raises where it cannot load the file.
    """
    from sat_tf.keras3.model_file import read_model_file

    found = read_model_file(path)
    if found is not None and found.is_keras3:
        from sat_tf.keras3.incoming import convert

        try:
            converted = convert(path)
        except ValueError as error:
            raise RunError(str(error)) from error
        print(
            f"{path}: saved by Keras {found.version}; converted to tf_keras with "
            f"sat_tf.from_keras3, outputs equal to {converted.proof.difference:.1g}.",
            file=sys.stderr,
        )
        return converted.model
    import tensorflow_model_optimization as tfmot
    import tf_keras as keras

    # So that a model that TFMOT has pruned, clustered or quantized is refused as what it is, and
    # not for a class that nobody knows.
    with (
        tfmot.sparsity.keras.prune_scope(),
        tfmot.clustering.keras.cluster_scope(),
        tfmot.quantization.keras.quantize_scope(),
    ):
        return keras.models.load_model(path, compile=False)


def quiet_tensorflow() -> None:
    """Keeps TensorFlow's notes on the hardware off the screen; to be called before it is loaded."""
    # Read by TensorFlow when it is loaded: no hardware notes on top of the progress bar. Whoever
    # wants them sets the variable.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def compute_on_one_thread() -> None:
    """Has TensorFlow compute each operation on one thread; to be called before it is loaded.

    Sums are then added in one order, whatever the number of processors. For networks so small that
    more threads gain nothing, and whose training makes a last digit grow.
    """
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
