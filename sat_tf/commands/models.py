"""Loading saved models for the commands."""

import os
import pathlib
import sys
from typing import TYPE_CHECKING

from sat_tf.training.errors import RunError

if TYPE_CHECKING:
    import tf_keras as keras


def load_model(path: pathlib.Path, *, trust: bool = False) -> "keras.Model":
    """A model that sat-tf has saved.

    Args:
        path: where it is.
        trust: run what is in it; see `sat_tf.loading.load.load_model`.

    Raises:
        RunError: it is none.
    """
    advice = "expected a Keras model that sat-tf has saved; train it again."
    return read_keras_model(path, advice, trust=trust)


def read_keras_model(path: pathlib.Path, advice: str, *, trust: bool = False) -> "keras.Model":
    """A model that any Keras has saved; one of Keras 3 is converted, and a line says so.

    Args:
        path: where it is.
        advice: what to say where it cannot be loaded.
        trust: see `load_model`.

    Raises:
        RunError: it cannot be loaded or converted, or would run code; says why.
    """
    from sat_tf.loading.load import load_model
    from sat_tf.loading.model_file import read_model_file
    from sat_tf.loading.trust import UntrustedModelError

    found = read_model_file(path)
    if found is not None and found.is_keras3:
        from sat_tf.keras3.incoming import convert

        try:
            converted = convert(path, safe_mode=not trust)
        except ValueError as error:
            raise RunError(str(error)) from error
        print(
            f"{path}: saved by Keras {found.version}; converted to tf_keras with "
            f"sat_tf.from_keras3, outputs equal to {converted.proof.difference:.1g}.",
            file=sys.stderr,
        )
        return converted.model
    try:
        return load_model(path, safe_mode=not trust)
    except UntrustedModelError as error:
        raise RunError(str(error)) from error
    except ValueError as error:
        raise RunError(f"{error}; {advice}") from error


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
