"""The settings of a file: with the model, all that its integers depend on."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from sat_tf.export.packing import packing_problem
from sat_tf.messages import list_problems
from sat_tf.version import __version__

# Under this name a file says how it was made.
SETTINGS_NAME = "sat_tf"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSettings:
    """How a model is written as a file; see `sat_tf.export_tflite`.

    Attributes:
        float_head: the last layer is float.
        pack: how kernels are stored, a name of `packing.PACKINGS`.
        softmax: the output is probabilities.
        resizable: the batch size is free.

    Raises:
        ValueError: a setting is none; lists every one.
    """

    float_head: bool = False
    pack: str = "none"
    softmax: bool = False
    resizable: bool = False

    def __post_init__(self) -> None:
        problems = [
            f"{name}: received {value!r}, expected True or False."
            for name, value in dataclasses.asdict(self).items()
            if name != "pack" and not isinstance(value, bool)
        ]
        problem = packing_problem(self.pack)
        if problem:
            problems.append(problem)
        if problems:
            raise ValueError(list_problems("export_tflite", problems))

    def to_json(self, islands: Mapping[str, str]) -> bytes:
        """What the file says of how it was made.

        Args:
            islands: the layers that are left float, by the tensors that they make.
        """
        values = {"version": __version__, **dataclasses.asdict(self), "islands": dict(islands)}
        return json.dumps(values, sort_keys=True).encode()

    @classmethod
    def of_file(cls, found: Mapping[str, Any] | None, path: str) -> "FileSettings":
        """The settings that a file says it was written with.

        Args:
            found: its entry `SETTINGS_NAME`; None where it has none.
            path: what errors call it.

        Raises:
            ValueError: the file is not one of `export_tflite`.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        # Earlier versions wrote this one only; the others were as by default.
        if found is not None and "float_head" in found:
            try:
                return cls(**{name: found[name] for name in names if name in found})
            except ValueError:
                pass  # No version writes other values: the file is none of ours either.
        raise ValueError(
            f"{path}: received a TFLite file that sat_tf.export_tflite did not write, expected one "
            "that it wrote from this model; export the model again."
        )
