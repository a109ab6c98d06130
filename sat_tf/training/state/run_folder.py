"""The folder of a run: its files, each of them written whole or not at all."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from sat_tf.atomic_file import renamed_when_done
from sat_tf.messages import RunError, first_ones, validation_problems
from sat_tf.preprocessing import Preprocessing

_Row = TypeVar("_Row")
_Kind = TypeVar("_Kind")

CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
LABELS = "labels.txt"  # the name of a class on each line
PREPROCESSING = "preprocessing.json"
METRICS = "metrics.csv"
RATES = "rates.json"  # learning rates that were tried, and which of them was chosen
OSCILLATIONS = "oscillations.csv"
STEPS = "steps.csv"
TENSORBOARD = "tensorboard"  # a folder
CURVES = "curves.png"
FLOAT_MODEL = "float.keras"
QUANTIZED_MODEL = "quantized.keras"
TUNED_MODEL = "tuned.keras"  # of the deploy tail; at the end of a run it becomes the quantized one
TFLITE_MODEL = "model.tflite"
CERTIFICATE = "certificate.json"
CERTIFICATE_PAGE = "certificate.html"
RESULTS = "results.json"
# How far the run has come, and what it takes to resume within a stage.
STATE = "state.json"
CHECKPOINTS = "checkpoints"
LAYERS = "layers.json"
ANSWERS = "answers.json"  # of the float model and of the file, to held-out images
REPORT = "report.html"

# The model that each stage saves.
MODELS = {"float": FLOAT_MODEL, "quantized": QUANTIZED_MODEL, "deploy_tail": TUNED_MODEL}

FILES = (
    CONFIG,
    ENVIRONMENT,
    LABELS,
    PREPROCESSING,
    METRICS,
    RATES,
    OSCILLATIONS,
    STEPS,
    TENSORBOARD,
    CURVES,
    FLOAT_MODEL,
    QUANTIZED_MODEL,
    TUNED_MODEL,
    TFLITE_MODEL,
    CERTIFICATE,
    CERTIFICATE_PAGE,
    RESULTS,
    STATE,
    CHECKPOINTS,
    LAYERS,
    ANSWERS,
    REPORT,
)


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The folder that a run puts its files into.

    Attributes:
        path: the folder; it need not exist.
    """

    path: pathlib.Path

    def file(self, name: str) -> pathlib.Path:
        """The path of one of `FILES`."""
        return self.path / name

    @contextlib.contextmanager
    def written(self, name: str) -> Iterator[pathlib.Path]:
        """A temporary name that becomes one of `FILES`, whole or not at all.

        Raises:
            RunError: the file cannot be written.
        """
        try:
            with renamed_when_done(self.file(name)) as temporary:
                yield temporary
        except OSError as error:
            raise RunError(
                f"{self.file(name)}: cannot be written ({error.strerror or error}), expected a "
                "writable file; free some space, or fix the permissions of its folder.\n"
                "Earlier files are intact: the same command resumes from them."
            ) from error

    def write_text(self, name: str, text: str) -> None:
        """Writes one of `FILES`, whole or not at all; see `written`."""
        with self.written(name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def read_text(self, name: str) -> str:
        """Reads one of `FILES`; nothing if it does not exist.

        Raises:
            RunError: it is not text, or cannot be read.
        """
        file = self.file(name)
        try:
            if file.exists() and not file.is_file():  # a pipe would wait for its writer
                raise self.damaged(name, "not a regular file", "text")
            return file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise self.damaged(name, error, "text") from error

    def read_rows(self, name: str, read: Callable[[str], list[_Row]], expected: str) -> list[_Row]:
        """Reads one of `FILES` that is a table; no rows if it does not exist.

        Args:
            name: of the file.
            read: makes the rows of its text.
            expected: what it should hold, for errors.

        Raises:
            RunError: it is not such a table.
        """
        text = self.read_text(name)
        if not text and self.file(name).exists():
            raise self.damaged(name, "it is empty", expected)
        try:
            return read(text)
        except RunError as error:
            raise self.damaged(name, error, expected) from error

    def read_json(self, name: str) -> dict[str, Any]:
        """Reads one of `FILES` that is JSON; nothing if it does not exist.

        Raises:
            RunError: it is not a JSON object.
        """
        if not self.file(name).exists():
            return {}
        text = self.read_text(name)
        try:
            values = json.loads(text)
            # JSON can escape a lone surrogate, which UTF-8 cannot encode.
            json.dumps(values, ensure_ascii=False).encode("utf-8")
        except (ValueError, RecursionError) as error:
            raise self.damaged(name, error, "JSON") from error
        if not isinstance(values, dict):
            raise self.damaged(name, f"a {type(values).__name__}", "a JSON object")
        return values

    def read_values(self, name: str, kind: type[_Kind], expected: str) -> _Kind:
        """Reads one of `FILES` that is JSON, as a value of a type; a missing file holds {}.

        Args:
            name: of the file.
            kind: what it holds, as pydantic knows types.
            expected: the same in words, for errors.

        Raises:
            RunError: it holds something else; lists every problem.
        """
        try:
            return TypeAdapter(kind).validate_python(self.read_json(name))
        except ValidationError as error:
            problems = first_ones(validation_problems(error), between="; ")
            raise self.damaged(name, problems, expected) from error

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How pictures become the input of the run's models; None where it has not said so.

        Raises:
            RunError: the file is damaged.
        """
        text = self.read_text(PREPROCESSING)
        try:
            return Preprocessing.from_json(text) if text else None
        except ValueError as error:
            raise self.damaged(PREPROCESSING, error, "what it says") from error

    def damaged(self, name: str, what: object, expected: str) -> RunError:
        """The error for one of `FILES` with contents that no run has written."""
        return RunError(
            f"{self.file(name)}: received a damaged file ({what}), expected {expected} that a run "
            "wrote; start over with --no-resume, or remove the folder."
        )

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        """Writes one of `FILES` as JSON, whole or not at all."""
        self.write_text(name, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def check_writable(self) -> None:
        """Raises an error if the folder could not be created or written to; leaves no trace.

        Raises:
            RunError: with the reason.
        """
        existing = self.path
        try:
            while not existing.exists() and existing != existing.parent:
                existing = existing.parent
            if not existing.is_dir():
                raise NotADirectoryError(0, f"{existing} is a file")
            # Tried on the file system itself: permission bits do not show read-only mounts.
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise self._refused(error) from error

    @property
    def holds_run(self) -> bool:
        """Whether a run has been started here."""
        return self.file(CONFIG).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run here is finished; the report is the last of its files."""
        return all(self.file(name).is_file() for name in (CONFIG, RESULTS, REPORT))

    @contextlib.contextmanager
    def held(self, *, wait: bool = False) -> Iterator[None]:
        """Locks this folder for the block; creates it if it does not exist.

        A file `.lock` stays in it. The system releases the lock however the process ends.

        Args:
            wait: for another process to release it; otherwise its lock is an error.

        Raises:
            RunError: another process trains in this folder.
        """
        self.make()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self.path / ".lock").acquire(blocking=wait))
            except Timeout as error:
                raise RunError(
                    f"run folder {self.path}: another process trains in it, expected one that is "
                    "free; wait for it, or choose another one."
                ) from error
            except (OSError, NotImplementedError):
                pass  # a file system without locks
            yield

    def make(self) -> None:
        """Creates the folder if it does not exist.

        Raises:
            RunError: the file system refuses.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def start(self) -> None:
        """Creates the folder; the files of a run that it already holds move to `earlier-1`, ...

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
            f"run folder {self.path}: {error.strerror}; expected a folder that can be created and "
            "written to; choose another one."
        )


def is_about_a_file(error: Exception, folder: pathlib.Path) -> bool:
    """Whether an error of TensorFlow says "PATH; REASON" of a folder, or of a file in it."""
    path = re.escape(str(folder))
    return re.search(rf"(?<![\w./-]){path}(/[^;\n]*)?; ", str(error)) is not None
