"""Failures outside the program, such as a full disk, as errors that say how to resume."""

import contextlib
import errno
from collections.abc import Iterator

import tensorflow as tf

from sat_tf.messages import ReadingError, RunError
from sat_tf.training.data.source import ImageSource
from sat_tf.training.state.run_folder import RunFolder, is_about_a_file
from sat_tf.training.step.distribution import shard_of


@contextlib.contextmanager
def reading_errors_explained(source: ImageSource, *, advice: str = "") -> Iterator[None]:
    """Raises reading errors as a `RunError`, without TensorFlow's tracebacks around them."""
    try:
        yield
    except ReadingError as error:
        raise RunError(f"{error}{advice}") from None
    except tf.errors.OpError:
        if source.reading_error is None:
            raise
        raise RunError(f"{source.reading_error}{advice}") from None


# The errors of TensorFlow in a worker when another one has stopped answering.
_OF_WORKERS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
_REFUSED = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
    errno.ESTALE,
}


@contextlib.contextmanager
def outside_failures_explained(
    folder: RunFolder, strategy: tf.distribute.Strategy
) -> Iterator[None]:
    """Raises failures outside the program as a `RunError`, without tracebacks around them."""
    try:
        yield
    except tf.errors.OpError as error:
        if is_about_a_file(error, folder.path):
            raise _refused(folder, _last_line(error.message)) from error
        is_of_workers = isinstance(error, _OF_WORKERS) or "Collective" in error.message
        if shard_of(strategy).workers > 1 and is_of_workers:
            raise RunError(
                "distribution: another worker no longer answers "
                f"({_last_line(error.message)}), expected all of them until the run ends; start "
                "the same command on all of them again: the run resumes behind its last "
                "finished epoch."
            ) from error
        raise
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise _refused(folder, error.strerror or str(error)) from error


def _refused(folder: RunFolder, reason: str) -> RunError:
    return RunError(
        f"run folder {folder.path}: can no longer be written to ({reason}), expected a writable "
        "one until the run ends; free some space, or fix its permissions.\n"
        "Then the same command resumes behind the last finished epoch."
    )


def _last_line(message: str) -> str:
    """The message of an error, without the place in the graph."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Collective ops is aborted")] or lines[:1]
    return told[0] if told else "no reason given"
