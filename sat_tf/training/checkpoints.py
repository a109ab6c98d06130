"""A stage in training on disk: all that it takes to go on as if nothing had happened."""

import dataclasses
import math
import pathlib
import tempfile
import warnings

import tensorflow as tf

from sat_tf.training.diagnosis import all_finite
from sat_tf.training.errors import RunError
from sat_tf.training.learner import Learner

_INDEX = "checkpoint"  # TensorFlow's name for its list


@dataclasses.dataclass(frozen=True, order=True)
class Position:
    """The step that comes next.

    Attributes:
        epoch: counted from 0.
        step: in that epoch, from 0.
    """

    epoch: int = 0
    step: int = 0


class Checkpoints:
    """Saves and restores a learner: weights, clipping levels, optimizer, metrics and position.

    A checkpoint is complete before it replaces the one before it, so that a process that is killed
    while it saves, or a full disk, leaves the last good one.

    Args:
        folder: where they are; the same for all processes of a run.
        learner: compiled, with its optimizer built.
        keep: how many to keep.
        writes: whether this process is the one whose files stay. All processes have to save, and
            at the same step.
    """

    def __init__(
        self, folder: pathlib.Path, learner: Learner, *, keep: int = 2, writes: bool = True
    ) -> None:
        self.folder = folder
        self._learner = learner
        self._writes = writes
        self._epoch = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._step = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._checkpoint = tf.train.Checkpoint(
            learner=learner,
            optimizer=learner.optimizer,
            epoch=self._epoch,
            step=self._step,
        )
        # Others write where nobody reads.
        self._elsewhere = None if writes else tempfile.TemporaryDirectory()
        own = folder if self._elsewhere is None else pathlib.Path(self._elsewhere.name)
        if writes:
            _mend_index(folder)
        self._manager = tf.train.CheckpointManager(self._checkpoint, str(own), max_to_keep=keep)

    @property
    def latest(self) -> str | None:
        """The last good checkpoint, or None."""
        return next(iter(_paths(self.folder)), None)

    def restore(self) -> Position | None:
        """Puts the learner back to where the last checkpoint that can be read was made.

        Returns:
            Which step comes next, or None where there is no checkpoint.

        Raises:
            RunError: there are checkpoints, but none that can be read.
        """
        paths = _paths(self.folder)
        for path in paths:
            try:
                self._checkpoint.restore(path).assert_existing_objects_matched()
            except (tf.errors.OpError, AssertionError, ValueError) as error:
                reason = str(error).splitlines()[0]
                warnings.warn(f"checkpoint {path}: cannot be read ({reason})", stacklevel=2)
                continue
            self._learner.clear_signals()
            return Position(int(self._epoch.numpy()), int(self._step.numpy()))
        if paths:
            raise RunError(
                f"{self.folder}: received checkpoints of which none can be read, expected one of "
                "this run; start anew with --no-resume."
            )
        return None

    def save(self, position: Position) -> None:
        """Saves the learner, unless a variable of it is no number any more.

        Args:
            position: the step that comes next.

        Raises:
            RunError: the file system refuses; the last good checkpoint is still there.
        """
        if not all_finite(self._learner.student):
            # Its loss was fine before this step; the next one would not be.
            return
        self._epoch.assign(position.epoch)
        self._step.assign(position.step)
        self._learner.clear_signals()
        try:
            self._manager.save()
        except (tf.errors.OpError, OSError) as error:
            reason = str(getattr(error, "message", error)).splitlines()[0]
            raise RunError(
                f"{self.folder}: a checkpoint cannot be written ({reason}), expected a disk with "
                f"room; {self._left()}; free some space and run the same command again."
            ) from error

    def _left(self) -> str:
        return f"the last good one is {self.latest}" if self.latest else "there is none before it"


def _paths(folder: pathlib.Path) -> list[str]:
    """The checkpoints in a folder, the latest first, by the list that TensorFlow keeps of them.

    Where that list is damaged, by their own names.
    """
    found = [path.with_suffix("") for path in folder.glob("ckpt-*.index")]
    by_number = sorted(found, key=lambda path: int(path.name.split("-")[1]), reverse=True)
    return _listed(folder) or [str(path) for path in by_number]


def _listed(folder: pathlib.Path) -> list[str]:
    """What TensorFlow's own list names, the latest first; nothing where it is damaged."""
    try:
        state = tf.train.get_checkpoint_state(str(folder))
    except ValueError:  # an empty list
        state = None
    return list(reversed(state.all_model_checkpoint_paths)) if state else []


def _mend_index(folder: pathlib.Path) -> None:
    """Writes TensorFlow's list of checkpoints anew where it is damaged."""
    if _listed(folder):
        return
    paths = _paths(folder)
    if paths:
        tf.compat.v1.train.update_checkpoint_state(str(folder), paths[0], paths[::-1])
    else:
        (folder / _INDEX).unlink(missing_ok=True)


def steps_left(
    start: Position, *, total_steps: int, steps_per_epoch: int
) -> list[tuple[Position, int, int]]:
    """What is left of a stage, in parts of which all epochs are equally long.

    Args:
        start: the step that comes next.
        total_steps: how many the whole stage has.
        steps_per_epoch: how many an epoch has; the last one may be shorter.

    Returns:
        Where each part begins, how many epochs it has, and how many steps each of them has.

    >>> steps_left(Position(1, 3), total_steps=48, steps_per_epoch=10)
    [(Position(epoch=1, step=3), 1, 7), (Position(epoch=2, step=0), 2, 10), \
(Position(epoch=4, step=0), 1, 8)]
    """
    whole, rest = divmod(total_steps, steps_per_epoch)
    parts = []
    if start.step:
        end = steps_per_epoch if start.epoch < whole else rest
        parts.append((start, 1, end - start.step))
        start = Position(start.epoch + 1)
    if start.epoch < whole:
        parts.append((start, whole - start.epoch, steps_per_epoch))
        start = Position(whole)
    if start.epoch < math.ceil(total_steps / steps_per_epoch):
        parts.append((start, 1, rest))
    return parts
