"""Classifies pictures with an exported file, prepared as the file says.

python run_tflite.py model.tflite picture.png ...

It needs ai-edge-litert, Pillow and NumPy. Its pixels are those of `sat-tf evaluate --images`.
"""

import json
import sys
import zipfile
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image, ImageOps


def read_words(path: str) -> tuple[list[str] | None, dict[str, Any]]:
    """The labels and the preprocessing in the archive at the end of a file, where it has them."""
    if not zipfile.is_zipfile(path):
        return None, {}
    with zipfile.ZipFile(path) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    labels = texts["labels.txt"].splitlines() if "labels.txt" in texts else None
    return labels, json.loads(texts.get("preprocessing.json", "{}"))


def prepare(picture: str, shape: tuple[int, ...], preprocessing: dict[str, Any]) -> np.ndarray:
    """The input of a model (rows, columns, channels) for a picture."""
    rows, columns, channels = shape
    with Image.open(picture) as opened:
        turns = preprocessing.get("exif_orientation", True)
        upright = ImageOps.exif_transpose(opened) if turns else opened
        if upright.mode.startswith("I;16"):  # which Pillow would clip at 255, to white
            upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
        image = upright.convert("RGB" if channels == 3 else "L")
    # Resized until it covers so many pixels, and cropped to the centre.
    ratio = preprocessing.get("resize_ratio", 1)
    scale = max(round(rows * ratio) / image.height, round(columns * ratio) / image.width)
    height, width = int(image.height * scale + 1e-3), int(image.width * scale + 1e-3)
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    down, across = image.height / height, image.width / width
    box = (left * across, top * down, (left + columns) * across, (top + rows) * down)
    pixels = image.resize((columns, rows), Image.Resampling.BILINEAR, box=box)
    return np.asarray(pixels, np.uint8).reshape(shape)


def main(arguments: list[str]) -> None:
    """Prints the class of each picture."""
    if len(arguments) < 2:
        sys.exit("usage: python run_tflite.py model.tflite picture.png [picture.png ...]")
    path, *pictures = arguments
    try:
        labels, preprocessing = read_words(path)
        interpreter = Interpreter(path)
        interpreter.allocate_tensors()
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"{path}: received no TFLite file that LiteRT runs ({error})")
    (image,), (scores,) = interpreter.get_input_details(), interpreter.get_output_details()
    if image["dtype"] != np.uint8 or len(image["shape"]) != 4:
        sys.exit(f"{path}: takes {image['dtype'].__name__} {image['shape']}, expected pictures")
    unread = 0
    for picture in pictures:
        try:
            pixels = prepare(picture, tuple(image["shape"][1:]), preprocessing)
        except (OSError, ValueError, SyntaxError) as error:  # SyntaxError: of broken PNGs
            print(f"{picture}: received no picture that Pillow reads ({error})", file=sys.stderr)
            unread += 1
            continue
        interpreter.set_tensor(image["index"], pixels[np.newaxis])
        interpreter.invoke()
        best = int(np.argmax(interpreter.get_tensor(scores["index"])))
        print(f"{picture}: {best}" + (f" {labels[best]}" if labels else ""))
    if unread:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
