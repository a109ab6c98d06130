"""What all methods of `peers.py` start from: the images, and a float model for each seed."""

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import peer_task
import rich.console
import tf_keras as keras
from drawn_glyphs import load_glyphs

from sat_tf.files import written_whole
from sat_tf.training import models

FLOAT_STEPS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One row to run: how many bits, which seed, and where files are."""

    bits: int
    seed: int
    work: pathlib.Path

    @property
    def data(self) -> pathlib.Path:
        """The images and labels."""
        return self.work / "glyphs.npz"

    @property
    def start(self) -> pathlib.Path:
        """The float model that all methods start from."""
        return self.work / f"float_{self.seed}.keras"


def trained(case: Case) -> dict[str, Any]:
    """Trains the float model of a seed, saves and measures it."""
    train, test = peer_task.read(str(case.data))
    recipe = peer_task.Recipe(steps=FLOAT_STEPS)
    model = models.build(
        "mobilenet_v2_small",
        image_size=train[0].shape[1],
        num_classes=1000,
        head="pool_first",
        rectifier_max=None,
        seed=case.seed,
    )
    result = peer_task.train_and_measure(model, train, test, recipe, seed=case.seed)
    with written_whole(case.start) as temporary:
        model.save(temporary)
    return result


def write_data(path: pathlib.Path) -> None:
    """Draws the images, if the file is not there."""
    if path.is_file():
        return
    images = load_glyphs(progress=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ("train_images", "train_labels", "test_images", "test_labels")
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **{name: getattr(images, name) for name in names})


def prepare(work: pathlib.Path, seeds: Iterable[int], console: rich.console.Console) -> None:
    """Draws the images and trains the float models of these seeds, where they are not there yet."""
    write_data(work / "glyphs.npz")
    for seed in seeds:
        case = Case(bits=32, seed=seed, work=work)
        if not case.start.is_file():
            keras.utils.set_random_seed(seed)
            console.print(f"float, seed {seed}: {trained(case)['top1']:.2f} %")
