"""How far a reconstruction has come, in a file from which another process goes on.

The file holds the blocks that are finished, the weights of the model after them, and of the fit
that is under way all that its next step depends on. A model that is fitted in two processes is
therefore, bit by bit, the one that is fitted in one.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.files import check_writable, renamed_when_done
from sat_tf.graph.network import Network
from sat_tf.messages import RunError, warn
from sat_tf.qat.images import Images
from sat_tf.version import __version__

# A fit under way is saved now and then: what is lost takes no longer than this, or than twenty
# times what it takes to save it.
_SECONDS_BETWEEN, _COST = 20.0, 20.0
_ROWS_AT_ONCE = 64
# What reading a damaged file raises.
_DAMAGES = (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile)


class FitState(NamedTuple):
    """A fit under way, as far as its next step depends on it; see `Part.fit`."""

    done: int  # How many steps are done.
    order: np.ndarray  # The images that are next.
    best: np.ndarray  # The least errors so far.
    values: list[np.ndarray]  # The values of the variables with these errors.
    current: list[np.ndarray]  # The values that they have now.
    moments: list[np.ndarray]  # Of Adam.


@dataclasses.dataclass
class Checkpoint:
    """The file of one reconstruction."""

    path: pathlib.Path | None  # Of the file; None keeps nothing.
    say: Callable[[str], None] = lambda words: None  # Is told where the reconstruction goes on.
    # A file that is missing, or of another reconstruction, is an error; by default it is passed
    # over.
    is_expected: bool = False
    # The finished fits, as plain values.
    fits: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # That earlier processes have taken.
    # Of the fit that comes next, what an earlier process has done.
    under_way: FitState | None = None
    saved: str = ""  # What the file holds, in words; "" where there is none of this reconstruction.

    def open(self, key: str, model: keras.Model, draw: np.random.Generator, *, blocks: int) -> None:
        """Takes up what the file holds, and gives model and draws the state that they had."""
        self._key, self._model, self._draw, self._blocks = key, model, draw, blocks
        self._begin = self._last = time.monotonic()
        self._cost = 0.0
        if self.path is not None and self.path.exists():
            self._take_up(self.path)
        if self.is_expected and not self.saved:
            raise RunError(
                f"--resume: {self.path}: received no unfinished reconstruction of this model with "
                "these images and settings, expected one; leave out --resume to begin a new one."
            )
        self._weights, self._drawn = model.get_weights(), draw.bit_generator.state

    @property
    def seconds_so_far(self) -> float:
        """That this process and earlier ones have taken."""
        return self.seconds + time.monotonic() - self._begin

    def finish(self, fit: Mapping[str, Any]) -> None:
        """Adds a finished fit, and saves it with the weights that the model has now."""
        self.fits.append(dict(fit))
        self.under_way = None
        self._weights, self._drawn = self._model.get_weights(), self._draw.bit_generator.state
        self._save()

    @property
    def is_due(self) -> bool:
        """Whether so much time has passed that the fit under way is to be saved."""
        passed = time.monotonic() - self._last
        return self.path is not None and passed >= max(_SECONDS_BETWEEN, _COST * self._cost)

    def keep(self, state: FitState) -> None:
        """Saves the fit that is under way."""
        self._drawn, self.under_way = self._draw.bit_generator.state, state
        self._save()

    def _words(self) -> str:
        words = f"{min(len(self.fits), self._blocks)} of {self._blocks} blocks"
        if len(self.fits) > self._blocks:
            return "all of the reconstruction"
        if self.under_way is None:
            return f"{words} of the reconstruction"
        following = "the whole network" if len(self.fits) == self._blocks else "the next one"
        return f"{words} of the reconstruction, and {self.under_way.done} steps of {following}"

    def _save(self) -> None:
        if self.path is None:
            return
        begin = time.monotonic()
        values = {
            "key": self._key,
            "fits": self.fits,
            "draw": self._drawn,
            "seconds": self.seconds_so_far,
            "done": None if self.under_way is None else self.under_way.done,
        }
        arrays = {"values": np.array(json.dumps(values)), **_numbered("weights", self._weights)}
        if self.under_way is not None:
            for name, value in self.under_way._asdict().items():
                arrays |= _numbered(name, value if isinstance(value, list) else [value])
        try:
            with renamed_when_done(self.path) as temporary, temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            self.saved = self._words()
        except OSError as error:
            warn(
                f"{self.path}: cannot be written ({error.strerror or error}): if it is "
                "interrupted, the reconstruction goes on from "
                f"{self.saved or 'its beginning'}; free some space."
            )
            self.path = None
        self._last = time.monotonic()
        self._cost = self._last - begin

    def _take_up(self, path: pathlib.Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                values = json.loads(str(file["values"]))
                if values["key"] != self._key:
                    if not self.is_expected:
                        self.say(
                            f"{path}: passed over, as it is of another model, other images "
                            "or settings."
                        )
                    return
                weights = list(_listed("weights", file))
                if values["done"] is not None:
                    names = ("order", "best", "values", "current", "moments")
                    order, best, *rest = (list(_listed(name, file)) for name in names)
                    self.under_way = FitState(values["done"], order[0], best[0], *rest)
            self._model.set_weights(weights)
            self._draw.bit_generator.state = values["draw"]
            self.fits, self.seconds = values["fits"], values["seconds"]
        except _DAMAGES as error:
            self.under_way = None
            warn(f"{path}: passed over, as it is damaged ({error}).")
            return
        self.saved = self._words()
        self.say(f"Going on with {self.saved}, which {path} holds.")


def _numbered(name: str, arrays: Sequence[Any]) -> dict[str, np.ndarray]:
    return {f"{name}/{number}": np.asarray(array) for number, array in enumerate(arrays)}


def _listed(name: str, file: Any) -> Iterator[np.ndarray]:
    count = sum(one.startswith(f"{name}/") for one in file.files)
    return (file[f"{name}/{number}"] for number in range(count))


def as_checkpoint(checkpoint: "Checkpoint | str | os.PathLike[str] | None") -> Checkpoint:
    """A checkpoint, of which a path says enough."""
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    return Checkpoint(None if checkpoint is None else check_writable(checkpoint))


def key_of(network: Network, reference: Network, images: Images, **settings: Any) -> str:
    """A hash of all that a reconstruction depends on, but for the names of layers."""
    found = hashlib.sha256(repr((__version__, tf.__version__, sorted(settings.items()))).encode())
    for one in (network, reference):
        places = {node.name: place for place, node in enumerate(one)}
        for node in one:
            inputs = [places.get(name, -1) for name in node.inputs]
            config = json.dumps(_nameless(node.layer.get_config()), sort_keys=True)
            found.update(repr((type(node.layer).__name__, inputs, config)).encode())
            for variable in node.layer.variables:
                found.update(variable.numpy().tobytes())
    for array in images:
        found.update(repr((array.shape, str(array.dtype))).encode())
        for start in range(0, len(array), _ROWS_AT_ONCE):
            found.update(np.ascontiguousarray(array[start : start + _ROWS_AT_ONCE]).data)
    return found.hexdigest()


def _nameless(value: Any) -> Any:
    """Plain values without names of layers, which Keras numbers anew in each process."""
    if isinstance(value, Mapping):
        return {str(key): _nameless(one) for key, one in value.items() if key != "name"}
    if isinstance(value, list | tuple):
        return [_nameless(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return type(value).__name__
