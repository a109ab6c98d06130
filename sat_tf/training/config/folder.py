"""The configuration for a folder of pictures: everything is chosen by how many there are."""

import math
import os
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from sat_tf.messages import RunError
from sat_tf.output_folder import run_name
from sat_tf.training.data.class_folders import median_side, read_tree


class Size(NamedTuple):
    """The settings of sets below a size."""

    below: float  # Pictures to train on.
    image_size: int  # In pixels; smaller where the pictures are.
    width_multiplier: float  # Of MobileNet-V2.
    batch_size: int  # Less where that were more than a quarter of the pictures.
    epochs: int  # Of the float stage; the quantized one has half as many.
    base_learning_rate: float  # Of the float stage; the quantized one has a quarter of it.


SIZES = (
    Size(1_000, 64, 0.35, 16, 60, 0.4),
    Size(10_000, 96, 0.35, 32, 40, 0.4),
    Size(100_000, 128, 0.5, 64, 40, 0.2),
    Size(math.inf, 224, 1.0, 256, 90, 0.1),
)
# Networks reduce images 32 times with a stem of stride 2, and 16 times with one of stride 1.
_SIDE = 32
_FULL_STRIDE_FROM = 64
_FEWEST_STEPS = 4
_FEW_EPOCHS = 10


class FolderChoice(NamedTuple):
    """How a folder is trained on."""

    name: str  # Of the run, after the folder.
    data_dir: str  # The folder, absolute, so that the run is not tied to where it was started.
    num_train: int  # Pictures to train on.
    side: int | None  # The median of their shorter sides; None if none can be read.
    size: Size  # The row of `SIZES`.

    @property
    def image_size(self) -> int:
        """The size of the row, or the largest multiple of 32 that the pictures have."""
        if self.side is None:
            return self.size.image_size
        return min(self.size.image_size, max(self.side // _SIDE * _SIDE, _SIDE))

    @property
    def batch_size(self) -> int:
        """The size of the row, or the largest power of two that makes four batches; at least 2."""
        most = max(self.num_train // _FEWEST_STEPS, 2)
        return min(self.size.batch_size, 2 ** int(math.log2(most)))

    @property
    def data_override(self) -> str:
        """The setting that names the folder."""
        quoted = self.data_dir.replace("'", "''")
        return f"data.options.data_dir='{quoted}'"

    def overrides(self, given: Iterable[str] = ()) -> list[str]:
        """The settings, as `parse_config` takes them."""
        stride = 2 if self.image_size >= _FULL_STRIDE_FROM else 1
        size, warmups = self.size, []
        for setting in given:
            key, _, value = setting.partition("=")
            stage = key.removesuffix(".epochs")
            if stage != key and value.isdecimal() and int(value) < _FEW_EPOCHS:
                warmups.append(f"{stage}.warmup_epochs={int(value) / 10:g}")
        return [
            *warmups,
            f"name={self.name}",
            f"data.options.image_size={self.image_size}",
            f"model.options.width_multiplier={size.width_multiplier}",
            f"model.options.stem_stride={stride}",
            f"stages.float.batch_size={self.batch_size}",
            f"stages.float.epochs={size.epochs}",
            f"stages.float.base_learning_rate={size.base_learning_rate}",
            f"stages.quantized.epochs={size.epochs // 2}",
            f"stages.quantized.base_learning_rate={size.base_learning_rate / 4}",
        ]

    def describe(self) -> str:
        """The choice in one line."""
        return (
            f"Chosen for {self.num_train:,} pictures to train on: mobilenet_v2 of width "
            f"{self.size.width_multiplier}, {self.image_size}x{self.image_size} pixels, batches of "
            f"{self.batch_size}, {self.size.epochs} + {self.size.epochs // 2} epochs; "
            "--set changes each."
        )


def choose(data_dir: str | os.PathLike[str]) -> FolderChoice:
    """How to train on a folder of pictures."""
    # Path.resolve raises where links lead to each other.
    path = pathlib.Path(os.path.realpath(os.path.expanduser(data_dir)))
    try:
        train, _ = read_tree(path)
    except ValueError as error:
        raise RunError(f"--data: {error}") from error
    count = len(train.paths)
    size = next(size for size in SIZES if count < size.below)
    name = run_name(path.name, "folder")
    return FolderChoice(name, str(path), count, median_side(train.paths), size)
