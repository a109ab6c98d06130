"""The folder of a run: its files, its tables, and how far it has come."""

import contextlib
import csv
import dataclasses
import hashlib
import io
import os
import pathlib
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from sat_tf.messages import ProblemsError, RunError, first_ones
from sat_tf.messages.tables import digits, percent
from sat_tf.messages.validation import describe
from sat_tf.output_folder import CONFIG, FLOAT_MODEL, QUANTIZED_MODEL, REPORT, RESULTS, OutputFolder
from sat_tf.report.curves import ACCURACY, DECAYED, HELD_OUT, LEVEL, LOSS, RATE, TOP5, EpochValue
from sat_tf.training.config import Config, read_config

ENVIRONMENT = "environment.json"
METRICS = "metrics.csv"
OSCILLATIONS = "oscillations.csv"
TENSORBOARD = "tensorboard"  # a folder
# How far the run has come, and what it takes to resume within a stage.
STATE = "state.json"
CHECKPOINTS = "checkpoints"

# The model that each stage saves.
MODELS = {"float": FLOAT_MODEL, "quantized": QUANTIZED_MODEL}

FILES = (
    *(CONFIG, ENVIRONMENT, METRICS, OSCILLATIONS, TENSORBOARD),
    *(FLOAT_MODEL, STATE, CHECKPOINTS, *OutputFolder.files),
)


class RunFolder(OutputFolder):
    """The folder that a run puts its files into."""

    # Earlier versions drew the curves, which a run that starts over would seem to have.
    files = (*FILES, "curves.png")

    @property
    def holds_run(self) -> bool:
        """Whether a run has been started here."""
        return self.file(CONFIG).is_file()

    @property
    def environment(self) -> dict[str, Any]:
        """The software and the settings that the run was started with; {} without a run."""
        return self.read_values(ENVIRONMENT, dict[str, Any], "a JSON object")

    @property
    def is_finished(self) -> bool:
        """Whether the run here is finished; the report is the last of its files."""
        return all(self.file(name).is_file() for name in (CONFIG, RESULTS, REPORT))

    @contextlib.contextmanager
    def held(self, *, wait: bool = False) -> Iterator[None]:
        """Locks this folder for the block; creates it if it does not exist.

        A file `.lock` stays in it. The system releases the lock however the process ends.
        """
        with self.opened(), contextlib.ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self.path / ".lock").acquire(blocking=wait))
            except Timeout as error:
                raise RunError(
                    f"run folder {self.path}: another process trains in it, expected one that is "
                    "free; wait for it, or choose another one with --out."
                ) from error
            except (OSError, NotImplementedError):
                pass  # a file system without locks
            yield


# Settings that do not change what a run computes, and may differ when it resumes.
_MAY_DIFFER = {"training.trust_model"}


class _Metrics(BaseModel, extra="forbid"):
    """Held-out metrics of the model that a stage has saved."""

    loss: float
    top1: float | None = None
    top5: float | None = None  # only with more than five classes
    images: int | None = None
    kept_epoch: int | None = None  # the epoch whose weights the stage ended with; 0 is its start


class _Values(BaseModel, extra="forbid"):
    """The contents of the file."""

    stages: dict[str, _Metrics] = {}
    seconds: float = 0.0


@dataclasses.dataclass
class RunState:
    """The results of the stages that are done, by their names, in order."""

    folder: RunFolder  # The folder of the run.
    # Held-out metrics of the model that each stage has saved.
    stages: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0  # How long the processes before this one have taken.
    _started: float = dataclasses.field(default_factory=time.perf_counter)

    @classmethod
    def read(cls, folder: RunFolder) -> "RunState":
        """The state of the run in a folder; without a file no stage is done."""
        values = folder.read_values(STATE, _Values, "stages with their metrics")
        return cls(folder, **values.model_dump(exclude_none=True))

    def expect_whole(self, stages: Iterable[str]) -> None:
        """Raises an error if a later stage has left files, and one before it is not done.

        A model of the stage that comes next is not an error, because a run killed right after
        saving it leaves one, but a warning: the stage is trained again.
        """
        to_do = [stage for stage in stages if stage not in self.stages]
        if not to_do:
            return
        missing, *later = to_do
        file = self.folder.file(STATE)
        received = f"a file without the {missing} stage" if file.exists() else "no file"
        names = [name for stage in later for name in (f"{CHECKPOINTS}/{stage}/*", MODELS[stage])]
        leftovers = [name for name in names if any(self.folder.path.glob(name))]
        if leftovers:
            raise RunError(
                f"{file}: received {received} beside {', '.join(leftovers)}, expected one in which "
                f"the {missing} stage is done; put it back, start over with --no-resume, or "
                "remove the folder."
            )
        model = self.folder.file(MODELS[missing])
        if model.exists():
            warnings.warn(
                f"{file}: received {received} beside {model.name}: the {missing} stage is trained "
                "again, from the last epoch that is saved, if any",
                stacklevel=2,
            )

    def finish(self, stage: str, metrics: dict[str, float]) -> None:
        """Records that a stage has saved its model."""
        self.stages[stage] = metrics
        self._write()

    def seconds_so_far(self) -> float:
        """How long the run has taken, in all its processes that recorded it."""
        return self.seconds + time.perf_counter() - self._started

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Records after the block, however it ends, how long the run has taken."""
        try:
            yield
        finally:
            # An error here would hide the one that ended the block.
            with contextlib.suppress(RunError):
                self._write()

    def _write(self) -> None:
        values = {"stages": self.stages, "seconds": round(self.seconds_so_far(), 1)}
        self.folder.write_json(STATE, values)


def float_model_hash(config: Config) -> str | None:
    """SHA-256 of the file, or of all files of the SavedModel, that a run starts from.

    None where the run trains its own float model, or the file is gone.
    """
    path = pathlib.Path(config.training.float_model or "")
    if config.training.float_model is None or not os.path.exists(path):
        return None
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(str(file.relative_to(path)).encode())
            with file.open("rb") as opened:
                while piece := opened.read(2**24):
                    digest.update(piece)
    return digest.hexdigest()


def expect_same_run(folder: RunFolder, config: Config) -> None:
    """Refuses a folder that holds a run of another configuration or float model."""
    if not folder.holds_run:
        return
    file = folder.file(CONFIG)
    try:
        saved_config = read_config(file)
    except RunError as error:
        raise RunError(
            f"{error}\nThe run in {folder.path} cannot be resumed; start over with --no-resume, or "
            "choose another folder."
        ) from error
    problems = [
        f"{key}: {old!r} in the folder, {new!r} asked for"
        for key, old, new in differences(saved_config.model_dump(), config.model_dump())
        if key not in _MAY_DIFFER
    ]
    if problems:
        raise RunError(
            ProblemsError(
                f"run folder {folder.path}, which holds a run of another config",
                problems,
                "Use the same settings, start over with --no-resume, or choose another folder.",
            )
        )
    model_hash = folder.environment.get("float_model")
    if model_hash is not None and float_model_hash(config) not in (None, model_hash):
        raise RunError(
            f"{config.training.float_model}: received another model than that which the run in "
            f"{folder.path} has started from; start over with --no-resume, or choose another "
            "folder."
        )


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """The dotted keys whose values are not the same in two configurations, with both values."""
    for key in {**old, **new}:
        before, now = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from differences(before, now, f"{prefix}{key}.")
        elif before != now:
            yield f"{prefix}{key}", before, now


# -- the tables of a run ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TableRow:
    """A row of a table of a run folder; the columns are its fields, in any order.

    What is None is left empty. A field with a default may be missing from a file.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    file: ClassVar[str]

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def parse(cls, text: str) -> list[Self]:
        """The rows of a file.

        A line without its end does not count: a full disk, or a process that was killed, cut it.
        """
        whole = io.StringIO(text[: text.rfind("\n") + 1])
        try:
            rows = [
                {name: value for name, value in row.items() if value}
                for row in csv.DictReader(whole, restkey="(more)", restval="(none)", strict=True)
            ]
            return TypeAdapter(list[cls]).validate_python(rows)  # type: ignore[valid-type]
        except ValidationError as error:
            lines = (line.rstrip(".") for line in describe(error))
            raise ValueError(first_ones(lines, between="; ")) from error
        except csv.Error as error:
            raise ValueError(str(error)) from error

    @classmethod
    def read(cls, folder: RunFolder) -> list[Self]:
        """The rows in a folder; none if it has no such file."""
        try:
            return cls.parse(folder.read_text(cls.file))
        except ValueError as error:
            columns = ", ".join(cls.columns())
            raise folder.damaged(cls.file, error, f"a table of {columns}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochMetrics(TableRow):
    """One row of the metrics file."""

    file: ClassVar[str] = METRICS

    stage: str  # "float" or "quantized".
    # Counted from 1 in each stage; 0 is the model that the stage starts from, of which only the
    # held-out images are measured.
    epoch: int
    step: int  # Steps of the stage at the end of the epoch.
    learning_rate: float | None = None  # At the last step of the epoch.
    loss: float | None = None  # Mean over the epoch's training batches, weight decay included.
    data_loss: float | None = None  # The same without weight decay.
    # Share of training images classified correctly, in [0, 1], while weights change.
    train_top1: float | None = None
    # Share of training images whose class is among the five likeliest; None if it is not measured.
    train_top5: float | None = None
    held_out_loss: float | None = None  # Mean over the held-out images, after the epoch.
    held_out_top1: float | None = None  # Top-1 of the held-out images, after the epoch.
    held_out_top5: float | None = None  # The same for top-5.
    clipping_level: float | None = None  # The mean of those of all layers, after the epoch.
    seconds: float | None = None  # Wall-clock time of the epoch, held-out images included.


_NUMBER, _PERCENT = digits(".4g"), percent()
# The metrics of an epoch, by the names of the fields.
EPOCHS: dict[str, EpochValue] = {
    "stage": EpochValue("stage"),
    "epoch": EpochValue("epoch"),
    "step": EpochValue("step", digits(","), "step"),
    "learning_rate": EpochValue("learning rate", digits(".3g"), "learning_rate", RATE),
    "loss": EpochValue(
        "loss with weight decay", _NUMBER, "loss", LOSS, "training, with weight decay", DECAYED
    ),
    "data_loss": EpochValue("loss", _NUMBER, "data_loss", LOSS, "training"),
    "train_top1": EpochValue("top-1", _PERCENT, "top1", ACCURACY, "top-1, training"),
    "train_top5": EpochValue("top-5", _PERCENT, "top5"),
    "held_out_loss": EpochValue("held-out loss", _NUMBER, "val_loss", LOSS, "held out", HELD_OUT),
    "held_out_top1": EpochValue(
        "held-out top-1", _PERCENT, "val_top1", ACCURACY, "top-1, held out", HELD_OUT
    ),
    "held_out_top5": EpochValue(
        "held-out top-5", _PERCENT, "val_top5", ACCURACY, "top-5, held out", TOP5
    ),
    "clipping_level": EpochValue("clipping level", _NUMBER, "clipping_level", LEVEL),
    "seconds": EpochValue("seconds", digits(".1f"), "seconds"),
}


def logged(metrics: Mapping[str, EpochValue], logs: Mapping[str, Any]) -> dict[str, Any]:
    """The values that Keras has logged, by the names of the fields; what it has not is left out."""
    values = {name: logs[row.log] for name, row in metrics.items() if row.log in logs}
    return {name: n if isinstance(n, int) else float(n) for name, n in values.items()}
