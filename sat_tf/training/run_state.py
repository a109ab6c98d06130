"""How far a run has come, and whether it is the run that is asked for."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from sat_tf.messages import list_problems
from sat_tf.training import run_folder
from sat_tf.training.config import Config
from sat_tf.training.config_file import read_config
from sat_tf.training.errors import RunError
from sat_tf.training.run_folder import RunFolder


@dataclasses.dataclass
class RunState:
    """What the stages that are done have achieved, by their names, in order.

    Attributes:
        folder: of the run.
        stages: held-out metrics of the model that each stage has saved.
    """

    folder: RunFolder
    stages: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, folder: RunFolder) -> "RunState":
        """The state of the run in a folder; nothing is done where there is none."""
        return cls(folder, folder.read_json(run_folder.STATE).get("stages", {}))

    def finish(self, stage: str, metrics: dict[str, float]) -> None:
        """Notes that a stage has saved its model."""
        self.stages[stage] = metrics
        self.folder.write_json(run_folder.STATE, {"stages": self.stages})


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
