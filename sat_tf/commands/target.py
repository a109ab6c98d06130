"""Which file a command is told to verify, and with which model."""

import dataclasses
import pathlib

from sat_tf.training.errors import RunError
from sat_tf.training.run_folder import CONFIG, QUANTIZED_MODEL, TFLITE_MODEL, RunFolder


@dataclasses.dataclass(frozen=True)
class Target:
    """What to verify.

    Attributes:
        tflite: the file.
        model: its Keras model; None where there is none.
        folder: of the run that made both; None where no run did.
    """

    tflite: pathlib.Path
    model: pathlib.Path | None = None
    folder: RunFolder | None = None


def choose_target(
    source: str, tflite: str | None = None, model: str | None = None, *, needs_config: bool = True
) -> Target:
    """What the positional arguments and --model mean.

    Args:
        source: folder of a run, file, or model before its file.
        tflite: the file; by default that of the run.
        model: of the file; by default that of the run.
        needs_config: whether the images come from the run.

    Raises:
        RunError: something is missing or does not fit.
    """
    path = pathlib.Path(source)
    if path.is_dir():
        folder = RunFolder(path)
        folder.require(
            *([] if model else [QUANTIZED_MODEL]),
            *([] if tflite else [TFLITE_MODEL]),
            *([CONFIG] if needs_config else []),
        )
        keras_model = pathlib.Path(model) if model else folder.file(QUANTIZED_MODEL)
        return _found(Target(_either(tflite, folder.file(TFLITE_MODEL)), keras_model, folder))
    if not path.is_file():
        raise RunError(
            f"{path}: not found; expected the folder of a run, a TFLite file, or a quantized model "
            "(.keras)."
        )
    if tflite is not None:
        if model is not None:
            raise RunError(
                f"received the models {source} and {model}, expected one; leave out --model."
            )
        return _found(Target(pathlib.Path(tflite), path))
    if path.suffix in (".keras", ".h5"):
        raise RunError(
            f"{path}: received a model without a TFLite file; expected "
            "`sat-tf verify model.keras model.tflite`, or the folder of a run."
        )
    return _found(Target(path, pathlib.Path(model) if model else None))


def _either(name: str | None, default: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(name) if name else default


def _found(target: Target) -> Target:
    for file in (target.tflite, target.model):
        if file is not None and not file.is_file():
            raise RunError(f"{file}: not found; expected a file to verify.")
    return target
