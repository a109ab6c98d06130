"""`sat-tf verify`."""

import argparse
import os
import pathlib
from typing import TYPE_CHECKING

from rich.console import Console

from sat_tf.commands.models import load_model, quiet_tensorflow
from sat_tf.training.config import Config
from sat_tf.training.config_file import read_config
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

SUMMARY = "compare a TFLite file with its model, code by code"
DESCRIPTION = (
    "Runs a TFLite file in LiteRT, compares every integer with those of the quantized model, and "
    "writes certificate.json. Exit status 1 if any differs."
)
EXAMPLES = """\
examples:
  sat-tf verify runs/digits_mobilenet_v2_w4a4
  sat-tf verify model.keras model.tflite --images pixels.npy
"""

_MOST_TENSORS_LISTED = 10
_RANDOM_IMAGES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "source", metavar="RUN_DIR|MODEL", help="folder of a run, or a quantized .keras model"
    )
    parser.add_argument(
        "tflite", metavar="TFLITE", nargs="?", help="the file; default: RUN_DIR/model.tflite"
    )
    parser.add_argument(
        "--images",
        metavar="FILE",
        help="uint8 images (n, height, width, channels) as .npy; default: the held-out images of "
        "the run, or random ones",
    )
    parser.add_argument(
        "--certificate", metavar="FILE", help="default: certificate.json beside the TFLite file"
    )


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for."""
    return verify(
        arguments.source,
        console,
        tflite=arguments.tflite,
        images=arguments.images,
        certificate=arguments.certificate,
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
    quiet_tensorflow()
    import sat_tf

    model = load_model(model_path)
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
