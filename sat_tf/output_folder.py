"""The folder of a command's files: their names, and writing each whole or not at all."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from pydantic import TypeAdapter, ValidationError

from sat_tf.exact.tflite.preprocessing import Preprocessing
from sat_tf.files import read_text, renamed_when_done
from sat_tf.messages import RunError, first_ones
from sat_tf.messages.validation import describe

_Kind = TypeVar("_Kind")

CONFIG = "config.yaml"  # it marks the folder of a run of `sat-tf train`
LABELS = "labels.txt"  # the name of a class on each line
PREPROCESSING = "preprocessing.json"
RECONSTRUCTION = "reconstruction.json"  # the gain from fitting the calibrated model
# A reconstruction that was interrupted. It belongs to a model and images, whose hash it holds, and
# not to a run: no start moves it aside.
UNFINISHED = "reconstruction.npz"
FLOAT_MODEL = "float.keras"  # only runs have it
QUANTIZED_MODEL = "quantized.keras"
TFLITE_MODEL = "model.tflite"
C_ARRAY, C_HEADER = "model.cc", "model.h"  # the file in a program of a microcontroller
CERTIFICATE = "certificate.json"
CERTIFICATE_PAGE = "certificate.html"
RESULTS = "results.json"
LAYERS = "layers.json"
REPORT = "report.html"


@dataclasses.dataclass(frozen=True)
class OutputFolder:
    """The folder that a command puts its files into."""

    path: pathlib.Path  # The folder; it need not exist.
    files: ClassVar[tuple[str, ...]] = (  # The names of all files that a command may write.
        *(LABELS, PREPROCESSING, RECONSTRUCTION, QUANTIZED_MODEL, TFLITE_MODEL, C_ARRAY, C_HEADER),
        *(CERTIFICATE, CERTIFICATE_PAGE, RESULTS, LAYERS, REPORT),
    )

    def file(self, name: str) -> pathlib.Path:
        """The path of one of `files`."""
        return self.path / name

    @contextlib.contextmanager
    def written(self, name: str) -> Iterator[pathlib.Path]:
        """A temporary name that becomes one of `files`, whole or not at all."""
        with self._refusals_explained(name), renamed_when_done(self.file(name)) as temporary:
            yield temporary

    def write_text(self, name: str, text: str) -> None:
        """Writes one of `files`, whole or not at all; see `written`."""
        with self.written(name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        """Writes one of `files` as JSON, whole or not at all."""
        self.write_text(name, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def read_text(self, name: str) -> str:
        """Reads one of `files`; "" if it does not exist."""
        try:
            return read_text(self.file(name))
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise self.damaged(name, error, "text") from error

    def read_values(self, name: str, kind: type[_Kind], expected: str) -> _Kind:
        """Reads one of `files` that is JSON, as a value of a type; a missing file holds {}."""
        text = self.read_text(name) if self.file(name).exists() else "{}"
        try:
            return TypeAdapter(kind).validate_json(text)
        except ValidationError as error:
            lines = (line.rstrip(".") for line in describe(error, kind))
            raise self.damaged(name, first_ones(lines, between="; "), expected) from error

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How pictures become the input of the folder's models; None where no file says so."""
        text = self.read_text(PREPROCESSING)
        try:
            return Preprocessing.from_json(text) if text else None
        except ValueError as error:
            raise self.damaged(PREPROCESSING, error, "what it says") from error

    def damaged(self, name: str, what: object, expected: str) -> RunError:
        """The error for one of `files` with contents that no command has written."""
        return RunError(
            f"{self.file(name)}: received a damaged file ({what}), expected {expected} that "
            "sat-tf wrote; start over with --no-resume, or remove the folder."
        )

    @contextlib.contextmanager
    def opened(self) -> Iterator[pathlib.Path]:
        """Creates the folder for the block; new folders that stay empty are removed after it."""
        new = [folder for folder in (self.path, *self.path.parents) if not os.path.exists(folder)]
        try:
            with self._refusals_explained():
                self.path.mkdir(parents=True, exist_ok=True)
                # Writing is tried: permission bits do not show read-only mounts.
                tempfile.TemporaryFile(dir=self.path).close()
            yield self.path
        finally:
            for folder in new:
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()

    def start(self) -> None:
        """Creates the folder; files of a command that it already holds move to `earlier-1`, ..."""
        with self._refusals_explained():
            self.path.mkdir(parents=True, exist_ok=True)
            asides = (self.file(f"earlier-{number}") for number in itertools.count(1))
            aside = next(folder for folder in asides if not folder.exists())
            for path in filter(os.path.exists, map(self.file, self.files)):
                aside.mkdir(exist_ok=True)
                os.replace(path, aside / path.name)

    def require(self, *names: str) -> None:
        """Raises an error unless a command left these files here."""
        if missing := [name for name in names if not self.file(name).is_file()]:
            raise RunError(
                f"folder {self.path}: has no {', '.join(missing)}; expected that of "
                "sat-tf quantize, or of a finished sat-tf train; make one."
            )

    @contextlib.contextmanager
    def _refusals_explained(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.file(name)}: {error.strerror or error}; expected a folder that can be "
                "created and written to; free some space, fix its permissions, or choose another "
                "one with --out. Earlier files are intact: the same command resumes from them."
            ) from error


def run_name(text: str, otherwise: str) -> str:
    """Returns a text in the letters that folder names may have; `otherwise` if none is left."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).lstrip(".-") or otherwise
