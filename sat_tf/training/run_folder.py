"""The folder of a run: what is in it, and that each file in it is a whole one."""

import dataclasses
import json
import os
import pathlib
import tempfile
from typing import Any

from sat_tf.training.errors import RunError
from sat_tf.wholefile import written_whole

CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
METRICS = "metrics.csv"
OSCILLATIONS = "oscillations.csv"
STEPS = "steps.csv"
TENSORBOARD = "tensorboard"  # a folder
CURVES = "curves.png"
FLOAT_MODEL = "float.keras"
QUANTIZED_MODEL = "quantized.keras"
TFLITE_MODEL = "model.tflite"
CERTIFICATE = "certificate.json"
CERTIFICATE_PAGE = "certificate.html"
RESULTS = "results.json"
# How far the run has come, and what it takes to go on within a stage.
STATE = "state.json"
CHECKPOINTS = "checkpoints"
LAYERS = "layers.json"
REPORT = "report.html"

FILES = (
    CONFIG,
    ENVIRONMENT,
    METRICS,
    OSCILLATIONS,
    STEPS,
    TENSORBOARD,
    CURVES,
    FLOAT_MODEL,
    QUANTIZED_MODEL,
    TFLITE_MODEL,
    CERTIFICATE,
    CERTIFICATE_PAGE,
    RESULTS,
    STATE,
    CHECKPOINTS,
    LAYERS,
    REPORT,
)


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Where a run puts its files.

    Attributes:
        path: the folder; it need not exist.
    """

    path: pathlib.Path

    def file(self, name: str) -> pathlib.Path:
        """The path of one of `FILES`."""
        return self.path / name

    def write_text(self, name: str, text: str) -> None:
        """Writes one of `FILES`, whole or not at all."""
        with written_whole(self.file(name)) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def read_json(self, name: str) -> dict[str, Any]:
        """Reads one of `FILES` that is JSON; nothing where it is not there.

        Raises:
            RunError: it is no JSON.
        """
        file = self.file(name)
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(
                f"{file}: received a damaged file ({error}), expected JSON that a run wrote; start "
                "anew with --no-resume."
            ) from error
        return values

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        """Writes one of `FILES` as JSON, whole or not at all."""
        self.write_text(name, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def check_writable(self) -> None:
        """Raises an error where the folder could not be made or written to; leaves no trace.

        Raises:
            RunError: with the reason.
        """
        existing = self.path
        try:
            while not existing.exists() and existing != existing.parent:
                existing = existing.parent
            if not existing.is_dir():
                raise NotADirectoryError(0, f"{existing} is a file")
            # Asked of the file system itself: permission bits do not know of read-only mounts.
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise self._refused(error) from error

    @property
    def holds_run(self) -> bool:
        """Whether a run has been started here."""
        return self.file(CONFIG).is_file()

    def make(self) -> None:
        """Makes the folder where it is not there yet.

        Raises:
            RunError: the file system refuses.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def start(self) -> None:
        """Makes the folder; the files of a run that is there already move to `earlier-1`, ...

        Raises:
            RunError: the file system refuses.
        """
        self.make()
        try:
            former = [self.file(name) for name in FILES if self.file(name).exists()]
            if former:
                number = 1
                while (aside := self.path / f"earlier-{number}").exists():
                    number += 1
                aside.mkdir()
                for file in former:
                    os.replace(file, aside / file.name)
        except OSError as error:
            raise self._refused(error) from error

    def require(self, *names: str) -> None:
        """Raises an error unless a run left these files here.

        Raises:
            RunError: naming all that are missing.
        """
        missing = [name for name in names if not self.file(name).is_file()]
        if missing:
            raise RunError(
                f"run folder {self.path}: has no {', '.join(missing)}; expected the folder of a "
                "finished run; make one with sat-tf train."
            )

    def _refused(self, error: OSError) -> RunError:
        return RunError(
            f"run folder {self.path}: {error.strerror}; expected a folder that can be made and "
            "written to; choose another one with --run_dir."
        )
