"""How far a run has come, and whether it is the run that is asked for."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from sat_tf.messages import RunError, list_problems
from sat_tf.training.config.config import Config, read_config
from sat_tf.training.state import run_folder
from sat_tf.training.state.run_folder import RunFolder

# How often a run saves may change while it goes on.
_NO_MATTER = {
    f"training.{name}"
    for name in ("checkpoint_minutes", "checkpoint_steps", "keep_checkpoints", "trust_model")
}


class _Metrics(BaseModel):
    """Of the model that a stage has saved, on held-out images."""

    model_config = ConfigDict(extra="forbid")
    loss: float
    top1: float
    top5: float


@dataclasses.dataclass
class RunState:
    """What the stages that are done have achieved, by their names, in order.

    Attributes:
        folder: of the run.
        stages: held-out metrics of the model that each stage has saved.
        seconds: how long the processes before this one have taken.
    """

    folder: RunFolder
    stages: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    _started: float = dataclasses.field(default_factory=time.perf_counter)

    @classmethod
    def read(cls, folder: RunFolder) -> "RunState":
        """The state of the run in a folder; nothing is done where there is none.

        Raises:
            RunError: the file holds something else.
        """
        values = folder.read_json(run_folder.STATE)
        try:
            return cls(folder, **_Values.model_validate(values).model_dump())
        except ValidationError as error:
            problem = f"{error.error_count()} of its values are invalid"
            expected = "stages with their metrics"
            raise folder.damaged(run_folder.STATE, problem, expected) from error

    def finish(self, stage: str, metrics: dict[str, float]) -> None:
        """Notes that a stage has saved its model."""
        self.stages[stage] = metrics
        self._write()

    def seconds_so_far(self) -> float:
        """How long the run has taken, in all its processes that could still note it."""
        return self.seconds + time.perf_counter() - self._started

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Notes after the block, however it ends, how long the run has taken."""
        try:
            yield
        finally:
            # What ends the block is what is to be heard of.
            with contextlib.suppress(RunError):
                self._write()

    def _write(self) -> None:
        values = {"stages": self.stages, "seconds": round(self.seconds_so_far(), 1)}
        self.folder.write_json(run_folder.STATE, values)


class _Values(BaseModel):
    """What the file holds."""

    model_config = ConfigDict(extra="forbid")
    stages: dict[str, _Metrics] = {}
    seconds: float = 0.0


def expect_same_config(folder: RunFolder, config: Config) -> None:
    """Raises an error unless a folder holds no run, or one of this configuration.

    Raises:
        RunError: lists every setting that differs.
    """
    if not folder.holds_run:
        return
    file = folder.file(run_folder.CONFIG)
    try:
        there = read_config(file)
    except RunError as error:
        raise RunError(
            f"{error}\nThe run in {folder.path} cannot be resumed; start anew with --no-resume, or "
            "choose another folder with --run_dir."
        ) from error
    problems = [
        f"{key}: {old!r} in the folder, {new!r} asked for"
        for key, old, new in _differences(there.model_dump(), config.model_dump())
        if key not in _NO_MATTER
    ]
    if problems:
        raise RunError(
            list_problems(
                f"run folder {folder.path}, which holds a run of another config", problems
            )
            + "\nAsk for the same, start anew with --no-resume, or choose another --run_dir."
        )


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key in {**old, **new}:
        one, other = old.get(key), new.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{prefix}{key}.")
        elif one != other:
            yield f"{prefix}{key}", one, other
