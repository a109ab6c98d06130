"""What breaks a run from outside, as errors that say how to go on."""

import contextlib
import errno
from collections.abc import Iterator

import tensorflow as tf

from sat_tf.data.source import ImageSource, ReadingError
from sat_tf.messages import RunError
from sat_tf.training.state.run_folder import RunFolder
from sat_tf.training.step.distribution import shard_of


@contextlib.contextmanager
def reading_errors_explained(source: ImageSource, *, advice: str = "") -> Iterator[None]:
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


# What TensorFlow raises in a worker when another one has stopped answering.
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
    """Raises what breaks a run from outside as a `RunError`, without tracebacks around it.

    Args:
        folder: of the run.
        strategy: that it trains under.

    Raises:
        RunError: another worker does not answer any more, or the file system refuses to write.
    """
    try:
        yield
    except tf.errors.OpError as error:
        # TensorFlow names the file in front of what the system says.
        if str(folder.path) in error.message:
            raise _refused(folder, _last_line(error.message)) from error
        if shard_of(strategy).workers > 1 and _is_of_workers(error):
            raise RunError(
                "distribution: received no answer from another worker any more "
                f"({_last_line(error.message)}), expected all of them until the run ends; start "
                "the same command on all of them again: the run goes on from its last checkpoint."
            ) from error
        raise
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise _refused(folder, error.strerror or str(error)) from error


def _refused(folder: RunFolder, reason: str) -> RunError:
    return RunError(
        f"run folder {folder.path}: cannot be written to any more ({reason}), expected one that "
        "can until the run ends; free some space, or see to its permissions.\n"
        "Then the same command goes on from the last checkpoint."
    )


def _is_of_workers(error: tf.errors.OpError) -> bool:
    return isinstance(error, _OF_WORKERS) or "Collective" in error.message


def _last_line(message: str) -> str:
    """What an error says, without where in a graph it was met."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Collective ops is aborted")] or lines[:1]
    return told[0] if told else "no reason given"
