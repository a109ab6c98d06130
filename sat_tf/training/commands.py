"""What the commands do; each checks all that is cheap to check before it loads TensorFlow."""

import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

from sat_tf.training.config import Config
from sat_tf.training.config_file import parse_config, read_config
from sat_tf.training.demo import DEMO
from sat_tf.training.errors import RunError
from sat_tf.training.run_folder import (
    CERTIFICATE,
    CONFIG,
    QUANTIZED_MODEL,
    TFLITE_MODEL,
    RunFolder,
)

if TYPE_CHECKING:
    import numpy as np
    import tf_keras as keras

_MOST_TENSORS_LISTED = 10
_RANDOM_IMAGES = 64


def load_config(
    path: str | None = None, overrides: Iterable[str] = (), seed: int | None = None
) -> Config:
    """The configuration in a file, or that of the demo where no file is named.

    Raises:
        RunError: see `read_config`.
    """
    if path is None:
        return parse_config(DEMO, overrides, seed=seed, subject="demo")
    return read_config(path, overrides, seed=seed)


def choose_folder(config: Config, run_dir: str | None) -> RunFolder:
    """The folder that was asked for, or runs/<name> in the working directory.

    Raises:
        RunError: the folder that was asked for has no name.
    """
    if run_dir is None:
        return RunFolder(pathlib.Path("runs") / config.name)
    if not run_dir.strip():
        raise RunError("--run_dir: received an empty name, expected a folder; or leave it out.")
    return RunFolder(pathlib.Path(run_dir))


def refuse_settings(mode: str, *, overrides: Iterable[str], seed: int | None) -> None:
    """Raises an error for settings that only training takes.

    Raises:
        RunError: some were given.
    """
    given = [f"--set {override}" for override in overrides]
    given += [] if seed is None else [f"--seed {seed}"]
    if given:
        raise RunError(
            f"received {', '.join(given)} with --mode={mode}, expected none: a finished run keeps "
            "its own configuration; leave them out, or train again."
        )


def train(config: Config, folder: RunFolder, console: Console) -> bool:
    """Trains, exports and verifies; prints the table of results.

    Returns:
        Whether LiteRT computes the integers that were trained.

    Raises:
        RunError: the run cannot start or go on.
    """
    folder.check_writable()
    _quiet_tensorflow()
    from sat_tf.training import runner

    results = runner.train(config, folder, console)
    if results is None:
        return True
    console.print(results.table(config.name))
    console.print(f"Run folder: {folder.path}", highlight=False, soft_wrap=True)
    return results.codes_differing == 0


def evaluate(folder: RunFolder, console: Console) -> None:
    """Prints the held-out top-1 of a finished run's quantized model.

    Raises:
        RunError: the folder holds no such run.
    """
    folder.require(CONFIG, QUANTIZED_MODEL)
    config = read_config(folder.file(CONFIG))
    _quiet_tensorflow()
    from sat_tf.training.runner import load_images
    from sat_tf.training.stage import held_out_top1

    model = _load_model(folder.file(QUANTIZED_MODEL))
    images = load_images(config)
    share = held_out_top1(model, images)
    console.print(
        f"{config.name}: held-out top-1 {100 * share:.2f} % ({len(images.test_labels)} images)",
        highlight=False,
    )


def export(
    folder: RunFolder,
    console: Console,
    *,
    out: str | None = None,
    float_head: bool | None = None,
) -> None:
    """Writes a finished run's quantized model as a TFLite file.

    Args:
        folder: of the run.
        console: where to say what was written.
        out: path of the file; by default the run's own.
        float_head: see `sat_tf.export_tflite`; by default as the run's configuration says.

    Raises:
        RunError: the folder holds no such run, or the file cannot be written.
    """
    folder.require(QUANTIZED_MODEL, *([CONFIG] if float_head is None else []))
    if float_head is None:
        float_head = read_config(folder.file(CONFIG)).export.float_head
    _quiet_tensorflow()
    import sat_tf

    model = _load_model(folder.file(QUANTIZED_MODEL))
    path = pathlib.Path(out) if out else folder.file(TFLITE_MODEL)
    try:
        report = sat_tf.export_tflite(model, path, float_head=float_head)
    except ValueError as error:
        raise RunError(str(error)) from error
    notes = list(report.warnings)
    certificate = path.with_name(CERTIFICATE)
    if certificate.is_file() and report.sha256 not in certificate.read_text(encoding="utf-8"):
        notes.append(f"{certificate} is about another file; renew it with sat-tf verify")
    for note in notes:
        console.print(f"Note: {note}", highlight=False, soft_wrap=True)
    console.print(
        f"{report.path}: {report.bytes:,} bytes, {report.gzip_bytes:,} after gzip, "
        f"{sum(report.operators.values())} operators",
        highlight=False,
        soft_wrap=True,
    )


def verify(
    source: str,
    console: Console,
    *,
    tflite: str | None = None,
    images: str | None = None,
    certificate: str | None = None,
) -> bool:
    """Compares a TFLite file with its quantized model, code by code, and writes the certificate.

    Args:
        source: the folder of a run, or a quantized model (.keras).
        console: where to print the outcome.
        tflite: the file; by default the one in the run folder.
        images: an .npy file of uint8 images; by default the held-out images of the run, or random
            ones where `source` is a model.
        certificate: where to write it; by default certificate.json beside the TFLite file.

    Returns:
        Whether no code differs.

    Raises:
        RunError: something is missing or does not fit.
    """
    path = pathlib.Path(source)
    folder = RunFolder(path) if path.is_dir() else None
    model_path = folder.file(QUANTIZED_MODEL) if folder else path
    tflite_path = pathlib.Path(tflite) if tflite else path / TFLITE_MODEL
    _require_verifiable(folder, model_path, tflite, images)
    certificate_path = pathlib.Path(certificate) if certificate else None
    config = read_config(folder.file(CONFIG)) if folder and not images else None
    _quiet_tensorflow()
    import sat_tf

    model = _load_model(model_path)
    pixels, labels = _images_to_verify(model, config, images)
    try:
        proof = sat_tf.verify_tflite(
            model,
            tflite_path,
            pixels,
            labels,
            certificate_path=certificate_path or tflite_path.with_name(CERTIFICATE),
        )
    except ValueError as error:
        raise RunError(str(error)) from error
    colour = "red" if proof.codes_differing else "green"
    console.print(
        f"{tflite_path}: [{colour}]{proof.codes_differing:,} of {proof.codes_compared:,} codes "
        f"differ[/] ({len(pixels)} images, {len(proof.tensors)} tensors); of the trained model's "
        f"own, {100 * proof.trained_differing:.4f} %",
        highlight=False,
        soft_wrap=True,
    )
    differing = [tensor for tensor in proof.tensors if tensor.codes_differing]
    for tensor in differing[:_MOST_TENSORS_LISTED]:
        console.print(f"  {tensor.name}: {tensor.codes_differing:,}", highlight=False)
    return not differing


def _require_verifiable(
    folder: RunFolder | None, model_path: pathlib.Path, tflite: str | None, images: str | None
) -> None:
    if folder:
        folder.require(
            QUANTIZED_MODEL,
            *([] if tflite else [TFLITE_MODEL]),
            *([] if images else [CONFIG]),
        )
    elif not model_path.is_file():
        raise RunError(
            f"{model_path}: not found; expected the folder of a run, or a quantized model (.keras)."
        )
    elif tflite is None:
        raise RunError(
            f"{model_path}: received a model without a TFLite file; expected "
            "`sat-tf verify model.keras model.tflite`, or the folder of a run."
        )
    for file in (tflite, images):
        if file is not None and not os.path.isfile(file):
            raise RunError(f"{file}: not found; expected a file to verify.")


def _images_to_verify(
    model: "keras.Model", config: Config | None, images: str | None
) -> "tuple[np.ndarray, np.ndarray | None]":
    import numpy as np

    from sat_tf.training.deployment import verification_images
    from sat_tf.training.runner import load_images

    if images:
        return _read_array(images), None
    if config:
        return verification_images(load_images(config), config.export.verify_images)
    # The integers have to agree on any images; noise reaches more codes than pictures do.
    shape = (_RANDOM_IMAGES, *model.input_shape[1:])
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8), None


def _read_array(path: str) -> "np.ndarray":
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RunError(
            f"{path}: received no file that np.save has written, expected an .npy file of uint8 "
            "images (n, rows, columns, channels)."
        ) from error
    if not isinstance(array, np.ndarray):
        raise RunError(
            f"{path}: received an archive of arrays, expected an .npy file of one; write it with "
            "np.save."
        )
    return array


def _load_model(path: pathlib.Path) -> "keras.Model":
    import tf_keras as keras

    try:
        return keras.models.load_model(path, compile=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"{path}: {reason}; expected a Keras model that sat-tf has saved; train it again."
        ) from error


def _quiet_tensorflow() -> None:
    # Read by TensorFlow when it is loaded: no hardware notes on top of the progress bar. Whoever
    # wants them sets the variable.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
