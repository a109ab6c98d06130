"""The folder of a command's files: their names, and writing each whole or not at all."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Collection, Iterator
from typing import Any, ClassVar, TypeVar

from pydantic import TypeAdapter, ValidationError

from sat_tf import files
from sat_tf.exact.tflite.preprocessing import Preprocessing
from sat_tf.files import renamed_when_done
from sat_tf.messages import RunError, first_ones
from sat_tf.validation import describe

_Kind = TypeVar("_Kind")
# No file of a command is nearly as long.
_MOST_BYTES = 2**28

CONFIG = "config.yaml"  # it marks the folder of a run of `sat-tf train`
LABELS = "labels.txt"  # the name of a class on each line
PREPROCESSING = "preprocessing.json"
RECONSTRUCTION = "reconstruction.json"  # the gain from fitting the calibrated model
# A reconstruction that was interrupted. It belongs to a model and images, whose hash it holds, and
# not to a run: no start moves it aside.
UNFINISHED = "reconstruction.npz"
BACKUPS = "training_backup"  # a folder: likewise an interrupted training
FLOAT_MODEL = "float.keras"  # only runs have it
QUANTIZED_MODEL = "quantized.keras"
TFLITE_MODEL = "model.tflite"
CERTIFICATE = "certificate.json"
CERTIFICATE_PAGE = "certificate.html"
RESULTS = "results.json"
LAYERS = "layers.json"
REPORT = "report.html"

FILES = (
    *(LABELS, PREPROCESSING, RECONSTRUCTION, QUANTIZED_MODEL, TFLITE_MODEL),
    *(CERTIFICATE, CERTIFICATE_PAGE, RESULTS, LAYERS, REPORT),
)


@dataclasses.dataclass(frozen=True)
class OutputFolder:
    """The folder that a command puts its files into."""

    path: pathlib.Path  # The folder; it need not exist.
    files: ClassVar[tuple[str, ...]] = FILES  # The names of all files that a command may write.

    def file(self, name: str) -> pathlib.Path:
        """The path of one of `FILES`."""
        return self.path / name

    @contextlib.contextmanager
    def written(self, name: str) -> Iterator[pathlib.Path]:
        """A temporary name that becomes one of `FILES`, whole or not at all."""
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

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        """Writes one of `FILES` as JSON, whole or not at all."""
        self.write_text(name, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def read_text(self, name: str) -> str:
        """Reads one of `FILES`; "" if it does not exist."""
        try:
            return files.read_text(self.file(name), _MOST_BYTES)
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise self.damaged(name, error, "text") from error

    def read_json(self, name: str) -> dict[str, Any]:
        """Reads one of `FILES` that is JSON; {} if it does not exist."""
        return self.read_values(name, dict[str, Any], "a JSON object")

    def read_values(
        self, name: str, kind: type[_Kind], expected: str, left_out: Collection[str] = ()
    ) -> _Kind:
        """Reads one of `FILES` that is JSON, as a value of a type; a missing file holds {}."""
        exists = self.file(name).exists()
        try:
            values = json.loads(self.read_text(name)) if exists else {}
            # JSON can escape a lone surrogate, which UTF-8 cannot encode.
            json.dumps(values, ensure_ascii=False).encode("utf-8")
            if isinstance(values, dict):
                values = {key: value for key, value in values.items() if key not in left_out}
            return TypeAdapter(kind).validate_python(values)
        except ValidationError as error:
            lines = (line.rstrip(".") for line in describe(error, kind))
            raise self.damaged(name, first_ones(lines, between="; "), expected) from error
        except RunError:
            raise
        except (ValueError, RecursionError) as error:
            raise self.damaged(name, error, "JSON") from error

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How pictures become the input of the folder's models; None where no file says so."""
        text = self.read_text(PREPROCESSING)
        try:
            return Preprocessing.from_json(text) if text else None
        except ValueError as error:
            raise self.damaged(PREPROCESSING, error, "what it says") from error

    def damaged(self, name: str, what: object, expected: str) -> RunError:
        """The error for one of `FILES` with contents that no command has written."""
        return RunError(
            f"{self.file(name)}: received a damaged file ({what}), expected {expected} that "
            "sat-tf wrote; start over with --no-resume, or remove the folder."
        )

    def check_writable(self) -> None:
        """Raises an error if the folder could not be created or written to; leaves no trace."""
        with self._refusals_explained():
            existing = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
            if not existing.is_dir():
                raise NotADirectoryError(0, f"{existing} is a file")
            # Writing is tried: permission bits do not show read-only mounts.
            with tempfile.TemporaryFile(dir=existing):
                pass

    def make(self) -> None:
        """Creates the folder if it does not exist."""
        with self._refusals_explained():
            self.path.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def opened(self) -> Iterator[pathlib.Path]:
        """Creates the folder for the block; new folders that stay empty are removed after it."""
        new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.check_writable()
        self.make()
        try:
            yield self.path
        finally:
            with contextlib.suppress(OSError):  # it ends at the first one that is not empty
                for folder in new:
                    folder.rmdir()

    def start(self) -> None:
        """Creates the folder; files of a command that it already holds move to `earlier-1`, ..."""
        self.make()
        with self._refusals_explained():
            former = [self.file(name) for name in self.files if self.file(name).exists()]
            if former:
                asides = (self.path / f"earlier-{number}" for number in itertools.count(1))
                aside = next(folder for folder in asides if not folder.exists())
                aside.mkdir()
                for file in former:
                    os.replace(file, aside / file.name)

    @property
    def holds_run(self) -> bool:
        """Whether a run has been started here."""
        return self.file(CONFIG).is_file()

    def require(self, *names: str) -> None:
        """Raises an error unless a command left these files here."""
        missing = [name for name in names if not self.file(name).is_file()]
        if missing:
            raise RunError(
                f"folder {self.path}: has no {', '.join(missing)}; expected that of "
                "sat-tf quantize, or of a finished sat-tf train; make one."
            )

    @contextlib.contextmanager
    def _refusals_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"folder {self.path}: {error.strerror}; expected a folder that can be created and "
                "written to; choose another one with --out."
            ) from error


def run_name(text: str, otherwise: str) -> str:
    """Returns a text in the letters that folder names may have; `otherwise` if none is left.

    >>> run_name("my photos!", "folder"), run_name("...", "folder")
    ('my_photos_', 'folder')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).lstrip(".-") or otherwise
