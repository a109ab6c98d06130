"""The images that a model is calibrated on: gathered, checked, and in batches."""

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.data.folder_tree import TRAIN
from sat_tf.data.picture_folder import load_folder
from sat_tf.graph.network import Network
from sat_tf.messages import list_problems, warn
from sat_tf.qat.inputs import input_ranges
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.quantizers.input_range import PIXELS
from sat_tf.quantizers.protocol import PixelQuantizer
from sat_tf.quantizers.seen_values import RANGE_FIX, SeenValues, misfit, pixel_doubt

_BATCH_SIZE = 64
_FEW_IMAGES = 32

# An array for each input.
Images = tuple[np.ndarray, ...]


def in_batches(images: Images) -> list[Images]:
    """Batches of up to 64 images; a last one of less than half is left out."""
    count = len(images[0])
    starts = list(range(0, count, _BATCH_SIZE))
    if len(starts) > 1 and count - starts[-1] < _BATCH_SIZE // 2:
        del starts[-1]
    ends = [*starts[1:], count]
    return [
        tuple(array[start:end] for array in images) for start, end in zip(starts, ends, strict=True)
    ]


def gather(dataset: Any, num_images: int, network: Network) -> Images:
    """The images of a data set, at most `num_images`, an array for each input.

    Raises:
        ValueError: there are none, they do not fit the model's inputs, or values are non-finite.
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = _pictures(pathlib.Path(dataset), num_images, network)
    if isinstance(dataset, np.ndarray | tf.Tensor | tuple | Mapping) or _is_list_of_inputs(
        dataset, network
    ):
        dataset = [dataset]  # one batch, of images or of (images, labels)
    if isinstance(num_images, bool) or not isinstance(num_images, int) or num_images < 1:
        raise ValueError(f"num_images={num_images!r}: expected an integer of at least 1.")
    if not isinstance(dataset, Iterable):
        raise ValueError(
            f"dataset: received {type(dataset).__name__}, expected images (n, h, w, c) or batches "
            "of them; pass an array, a tf.data.Dataset, or the path of a folder of pictures."
        )
    found: list[Images] = []
    count = 0
    for element in dataset:
        batch = _checked_batch(element, network)
        found.append(tuple(array[: num_images - count] for array in batch))
        count += len(found[-1][0])
        if count >= num_images:
            break
    if not count:
        raise ValueError("dataset: received no images, expected 64 or more.")
    if count < _FEW_IMAGES:
        warn(f"calibrate: {count} images give unreliable statistics; use 64 or more.")
    return tuple(np.concatenate(arrays) for arrays in zip(*found, strict=True))


def _pictures(path: pathlib.Path, num_images: int, network: Network) -> np.ndarray:
    """Pictures of a folder, spread evenly over it, as a model with one input is fed."""
    if len(network.inputs) > 1:
        raise ValueError(
            f"dataset: received the folder {path} for a model with {len(network.inputs)} inputs, "
            "expected images for each of them; pass a list or a dictionary of arrays."
        )
    (name,) = network.inputs
    shape = network[name].shape
    sizes = tuple(size for size in shape if size is not None)
    if len(sizes) < len(shape):
        raise ValueError(
            f"dataset: received the folder {path} for a model of images of any size, expected one "
            f"of a fixed size, not {shape}; pass an array (n, rows, columns, channels)."
        )
    train = path.expanduser() / TRAIN
    found = load_folder(train if train.is_dir() else train.parent, sizes, most=num_images)
    return input_ranges(network).get(name, PIXELS).fed(found.images)


def _is_list_of_inputs(dataset: Any, network: Network) -> bool:
    """Whether it is one batch of a model with several inputs."""
    return (
        isinstance(dataset, list)
        and len(dataset) == len(network.inputs) > 1
        and all(isinstance(array, np.ndarray | tf.Tensor) for array in dataset)
    )


def _checked_batch(element: Any, network: Network) -> Images:
    """The images of one batch, for each input."""
    several = len(network.inputs) > 1
    # Batches are those of Keras: (images, labels), and a list or a dictionary of images.
    if isinstance(element, tuple) or (isinstance(element, list) and not several):
        element = element[0]
    is_named = isinstance(element, Mapping)
    given = network.in_order(element) if several or is_named else [element]
    arrays = [np.asarray(array) for array in given]
    for name, array in zip(network.inputs, arrays, strict=True):
        shape, where = network[name].shape, f" for {name}" if several else ""
        fits = array.ndim == len(shape) + 1 and all(
            wanted in (None, got) for wanted, got in zip(shape, array.shape[1:], strict=True)
        )
        if not fits:
            raise ValueError(
                f"dataset: received a batch of shape {array.shape}{where}, expected (n, "
                f"{', '.join(str(size) for size in shape)}); batch and resize the images first."
            )
        if not np.all(np.isfinite(array)):
            raise ValueError(
                f"dataset: received images with NaN or infinite values{where}, expected finite "
                "ones; check how they are read and scaled."
            )
    if len({len(array) for array in arrays}) > 1:
        counts = ", ".join(str(len(array)) for array in arrays)
        raise ValueError(f"dataset: received {counts} images, expected as many for each input.")
    return tuple(arrays)


def observe_pixels(several: Images, network: Network, batches: int) -> None:
    """Checks that images have the values of the model's input range, and records them.

    Args:
        several: the images.
        network: a model quantized by sat-tf, or a float one, for which nothing is done.
        batches: the number of batches.

    Raises:
        ValueError: these images, or those of the training before, certainly have other values;
            lists every input. Nothing has changed in that case.
    """
    found, problems = [], []
    for node in network:
        quantizer = output_quantizer(node.layer)
        if not isinstance(quantizer, PixelQuantizer):
            continue
        (name,) = node.inputs
        seen = SeenValues.of(several[network.inputs.index(name)], quantizer.range)
        trained_on = quantizer.seen(node.layer.output_variables)
        for when, one in (("", seen), ("the training before on ", trained_on)):
            problem = misfit(one, quantizer.range) if one else None
            if problem:
                problems.append(f"{name}: received {when}{problem}; {RANGE_FIX}.")
        found.append((name, node.layer, seen))
    if problems:
        raise ValueError(list_problems("calibrate", problems))
    for name, layer, seen in found:
        quantizer = layer.quantize_config.output
        doubt = pixel_doubt(seen, quantizer.range)
        if doubt:
            warn(f"calibrate: {name}: {doubt}.")
        quantizer.remember(seen, layer.output_variables, batches)
