"""Errors of a data set that is read while a model trains, in its own words."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from sat_tf.data.reading import ReadingError
from sat_tf.data.source import ImageSource
from sat_tf.training.errors import RunError


@contextlib.contextmanager
def reading_errors_told(source: ImageSource, *, advice: str = "") -> Iterator[None]:
    """Raises what reading met as a `RunError`, without TensorFlow's tracebacks around it.

    Args:
        source: what is read in the block.
        advice: what to do when that is mended.

    Raises:
        RunError: see above.
    """
    try:
        yield
    except ReadingError as error:
        raise RunError(f"{error}{advice}") from None
    except tf.errors.OpError:
        if source.reading_error is None:
            raise
        raise RunError(f"{source.reading_error}{advice}") from None
