"""Loading saved models for the commands."""

import os
import pathlib
from typing import TYPE_CHECKING

from sat_tf.training.errors import RunError

if TYPE_CHECKING:
    import tf_keras as keras


def load_model(path: pathlib.Path) -> "keras.Model":
    """A model that sat-tf has saved.

    Raises:
        RunError: it is none.
    """
    import tf_keras as keras

    try:
        return keras.models.load_model(path, compile=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"{path}: {reason}; expected a Keras model that sat-tf has saved; train it again."
        ) from error


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
