"""Checkpoints of a stage: everything needed to resume it bit for bit."""

import contextlib
import pathlib
import re
import shutil
import warnings
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.atomic_file import on_disk, temporary_folder
from sat_tf.messages import RunError, first_ones, reason_of
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL
from sat_tf.training.state.run_folder import is_about_a_file
from sat_tf.training.step.learner import Learner
from sat_tf.training.step.schedule import Position

_MOST_NAMED = 3


def describe_break(model: keras.Model, images: np.ndarray) -> str:
    """Says in one sentence which layers of a model diverged, in the order of the network.

    Looks for non-finite variables; if there are none, for the first layer with a non-finite output;
    failing that, for the layer with the largest weights.

    Args:
        model: as it is after the step that diverged.
        images: some training images, (n, rows, columns, channels).
    """
    broken = _broken(model)
    if broken:
        return f"not finite: {first_ones(broken, _MOST_NAMED)}"
    first = _first_broken_output(model, images)
    if first is not None:
        return f"all weights are finite, but the output of {first} is not"
    sizes = {
        f"{layer.name}, {_kind(variable)}": _largest(variable)
        for layer in model.layers
        for variable in layer.trainable_variables
    }
    name = max(sizes, key=lambda key: sizes[key], default=None)
    return f"all weights are finite; the largest are in {name} ({sizes[name]:.3g})" if name else ""


def _broken(model: keras.Model) -> list[str]:
    return [
        f"{layer.name} ({_kind(variable)})"
        for layer in model.layers
        for variable in layer.variables
        if variable.dtype.is_floating and not np.isfinite(_largest(variable))
    ]


def _kind(variable: tf.Variable) -> str:
    """The last word of a variable's name: kernel, gamma, clipping_level, ..."""
    return str(variable.name).rsplit("/", maxsplit=1)[-1].split(":", maxsplit=1)[0]


def _largest(variable: tf.Variable) -> float:
    """The largest magnitude; NaN or infinite where any value is."""
    values = tf.convert_to_tensor(variable)
    if not values.shape.num_elements():
        return 0.0
    if not bool(tf.reduce_all(tf.math.is_finite(values))):
        return float("nan")
    return float(tf.reduce_max(tf.abs(values)))


def _first_broken_output(model: keras.Model, images: np.ndarray) -> str | None:
    if not getattr(model, "inputs", None):
        return None  # not a graph of layers
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    probe = keras.Model(model.inputs, [layer.output for layer in layers])
    outputs = probe(tf.cast(images, tf.float32), training=False)
    for layer, output in zip(layers, outputs, strict=True):
        # A layer that is called several times, or gives several tensors, has a list of them.
        if not all(bool(tf.reduce_all(tf.math.is_finite(t))) for t in tf.nest.flatten(output)):
            variables = layer.output_variables if isinstance(layer, QuantizedLayer) else {}
            level = variables.get(CLIPPING_LEVEL)
            more = "" if level is None else f" (clipping level {level.numpy():.3g})"
            return f"{layer.name}{more}"
    return None


_NAME = re.compile(r"ckpt-(\d+)\.(?:index|data-\d+-of-\d+)")


class Checkpoints:
    """Saves and restores a learner: weights, clipping levels, optimizer, metrics and position.

    A checkpoint is complete, and on the disk, before the oldest one is deleted, so that a process
    killed while it saves, a full disk, or a power cut leaves the last good one. TensorFlow's
    CheckpointManager writes nothing through to the disk, and reads no other one where the last is
    damaged.

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
        self._keep = keep
        self._good: list[int] = []  # numbers of those that are not known to be damaged
        self._epoch = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._step = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._checkpoint = tf.train.Checkpoint(
            learner=learner,
            optimizer=learner.optimizer,
            epoch=self._epoch,
            step=self._step,
        )
        # All processes have to save together; what the others write is thrown away.
        self._elsewhere = None if writes else temporary_folder()
        self._own = folder if self._elsewhere is None else pathlib.Path(self._elsewhere.name)
        self._remove_half_written()

    def _remove_half_written(self) -> None:
        """Removes what TensorFlow has begun to write, also in a process that was killed.

        Nobody else writes here now.
        """
        for left in self._own.glob("ckpt-*temp*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                _remove([left])

    @property
    def latest(self) -> str | None:
        """The last checkpoint that is complete, or None."""
        files = _files(self.folder)
        complete = [
            number
            for number, found in files.items()
            if self.folder / f"ckpt-{number}.index" in found
        ]
        return str(self.folder / f"ckpt-{max(complete)}") if complete else None

    def restore(self) -> Position | None:
        """Restores the learner from the last checkpoint that can be read.

        A warning names later ones that cannot be read, with what is wrong with them.

        Returns:
            Which step comes next, or None without a checkpoint.

        Raises:
            RunError: there are checkpoints, but none can be read.
        """
        damaged: list[str] = []
        files = _files(self.folder)
        there = sorted(files)
        for number in reversed(there):
            path = str(self.folder / f"ckpt-{number}")
            try:
                if not all(file.is_file() for file in files[number]):
                    # TensorFlow could block on it forever.
                    raise OSError("not a regular file, such as a pipe")
                self._checkpoint.read(path).assert_existing_objects_matched()
            except Exception as error:  # TensorFlow has many types for a file that is damaged.
                damaged.append(f"{path} cannot be read ({reason_of(error)})")
                continue
            if damaged:
                found = "; ".join(damaged)
                warnings.warn(f"{found}: resuming from {path}, the one before", stacklevel=2)
            self._good = [other for other in there if other <= number]
            self._learner.clear_signals()
            return Position(int(self._epoch.numpy()), int(self._step.numpy()))
        if damaged:
            raise RunError(
                f"{self.folder}: no checkpoint can be read, expected one of this run: "
                + "; ".join(damaged)
                + ". Start over with --no-resume."
            )
        return None

    def save(self, position: Position) -> None:
        """Saves the learner, unless one of its variables is non-finite.

        Args:
            position: the step that comes next.

        Raises:
            RunError: the file system refuses; the last good checkpoint is still there.
        """
        if _broken(self._learner.student):
            # The loss was finite before this step; the next one would not be.
            return
        self._epoch.assign(position.epoch)
        self._step.assign(position.step)
        self._learner.clear_signals()
        number = max([0, *_files(self._own), *self._good]) + 1
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._checkpoint.write(str(self._own / f"ckpt-{number}"))
            for file in _files(self._own)[number]:
                on_disk(file)
            on_disk(self._own)
        except (tf.errors.OpError, OSError) as error:
            _remove(_files(self._own).get(number, ()))
            self._remove_half_written()
            if isinstance(error, tf.errors.OpError) and not is_about_a_file(error, self._own):
                raise  # of another worker, not of a file
            left = (
                f"the last good one is {self.latest}" if self.latest else "there is no earlier one"
            )
            raise RunError(
                f"{self.folder}: a checkpoint cannot be written ({reason_of(error)}), expected a "
                f"disk with room; {left}; free some space and run the same command again."
            ) from error
        self._good = [*self._good, number][-self._keep :]
        for former, files in _files(self._own).items():
            if former not in self._good:
                _remove(files)


def _files(folder: pathlib.Path) -> dict[int, list[pathlib.Path]]:
    """The files of each checkpoint in a folder, by number; incomplete ones included."""
    found: dict[int, list[pathlib.Path]] = {}
    for path in sorted(folder.glob("ckpt-*")):
        if match := _NAME.fullmatch(path.name):
            found.setdefault(int(match[1]), []).append(path)
    return found


def _remove(files: Iterable[pathlib.Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()
