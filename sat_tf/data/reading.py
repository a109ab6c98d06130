"""Errors that are met while batches are read, when TensorFlow has the say."""

import contextlib
from collections.abc import Iterator


class ReadingError(ValueError):
    """A data set cannot be read on; the message says what was received, expected, and the fix."""


class FirstError:
    """Keeps the first error that reading met in Python.

    Inside tf.data TensorFlow turns it into an error of its own, in which the message is somewhere
    between two tracebacks.
    """

    def __init__(self) -> None:
        self._error: ReadingError | None = None

    @property
    def error(self) -> ReadingError | None:
        """What was met first, or None."""
        return self._error

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps a `ReadingError` that leaves the block; everything else is a fault of ours."""
        try:
            yield
        except ReadingError as error:
            self._error = self._error or error
            raise

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Raises what was kept in the place of TensorFlow's error that leaves the block.

        Raises:
            ReadingError: see above.
        """
        import tensorflow as tf

        try:
            yield
        except tf.errors.OpError:
            if self._error is None:
                raise
            raise ReadingError(str(self._error)) from None
