"""Reads the model of a file, whichever Keras saved it."""

import os
from typing import TYPE_CHECKING, NamedTuple

from sat_tf.keras3.conversion.incoming import convert
from sat_tf.loading.load import load_model
from sat_tf.loading.model_file import read_model_file

if TYPE_CHECKING:
    import tf_keras as keras


class ReadModel(NamedTuple):
    """A model of tf_keras, and what has been done to have it.

    Attributes:
        model: not compiled.
        note: one line for a model that was converted; None for one of tf_keras.
    """

    model: "keras.Model"
    note: str | None


def read_model(path: str | os.PathLike[str], *, safe_mode: bool = True) -> ReadModel:
    """The model of a `.keras` or HDF5 file of Keras 2 or Keras 3, or of a SavedModel of Keras 2.

    A model of Keras 3 is converted, with the proof of `from_keras3`.

    Args:
        path: of the file or the folder.
        safe_mode: see `sat_tf.loading.load.load_model`.

    Raises:
        UntrustedModelError: it would run code.
        ValueError: there is no such model, it is damaged, or has no counterpart in tf_keras.
    """
    found = read_model_file(path)
    if found is None or not found.is_keras3:
        return ReadModel(load_model(path, safe_mode=safe_mode), None)
    converted = convert(path, safe_mode=safe_mode)
    return ReadModel(
        converted.model,
        f"{path}: saved by Keras {found.version}; converted to tf_keras with sat_tf.from_keras3, "
        + (
            f"outputs differ by at most {converted.proof.difference:.1g} of their largest value."
            if converted.proof.difference
            else "outputs are equal."
        ),
    )
