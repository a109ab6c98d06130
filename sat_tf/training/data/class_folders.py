"""Folders of classes as a data set: <class>/<picture>, or the same under train and val."""

import os
import pathlib
import statistics
import warnings
from collections.abc import Sequence

from sat_tf.messages import first_ones
from sat_tf.pictures import Pictures, open_pictures, spread_evenly
from sat_tf.preprocessing import RESIZED_AND_CROPPED, Preprocessing, Ratio
from sat_tf.training.data.source import Area, Folder, ImageSize, ImageSource
from sat_tf.validation import checked

# The number of pictures that are opened to learn how large those of a set are.
_OPENED = 32
# Pictures that are enlarged by more than this are remarked upon.
_MOST_ENLARGED = 2


def read_tree(data_dir: str | os.PathLike[str]) -> tuple[Pictures, Pictures]:
    """The pictures of a folder to train on, and those held out; see `Pictures.split`."""
    pictures = open_pictures(data_dir)
    if pictures.array is not None:
        raise ValueError(f"data_dir: received {data_dir}, a file; expected a folder of pictures.")
    if pictures.labels is None:
        raise ValueError(
            f"{data_dir}: received {len(pictures)} pictures and no folders "
            f"({first_ones(pictures.names)}); expected a folder for each class; move each picture "
            "into the folder of its class, such as cat/1.jpg and dog/1.jpg."
        )
    return pictures.split()


@checked
def load_folder_tree(
    data_dir: Folder,
    *,
    image_size: ImageSize = 224,
    deterministic: bool = True,
    resize_ratio: Ratio = RESIZED_AND_CROPPED.resize_ratio,
    smallest_area: Area = 0.08,
    mirrored: bool = True,
) -> ImageSource:
    """A folder of pictures: train/<class>/<picture>, and the same under val, validation or test.

    Of a folder with train alone, or with the classes alone, a fifth of each class is held out; see
    `sat_tf.pictures.Pictures.split`.

    Training takes random crops of `smallest_area` to all of a picture's area with aspects from 3/4
    to 4/3, and mirrors every other one. Held-out pictures are resized so that their shorter side is
    `resize_ratio` times `image_size`, and cropped to their centre. All are turned by their EXIF
    orientation. The defaults are ImageNet's.

    JPEG, PNG, GIF, BMP, WebP and TIFF are read, whatever their suffix. A picture that cannot be
    decoded, or has more than 178,956,970 pixels, is an error that names it.

    Args:
        data_dir: the folder.
        image_size: height and width of what training and measuring see, in pixels.
        deterministic: whether batches hold the same pictures in the same order every time;
            otherwise the fastest come first.
        resize_ratio: see above, 1 or more; 1 keeps all of a square picture.
        smallest_area: see above, above 0, to 1.
        mirrored: whether training mirrors; not for letters, and what has a left and a right.

    Raises:
        ValueError: an argument is out of its range, or the folder is not laid out like this; lists
            everything.
    """
    preprocessing = Preprocessing(resize_ratio=resize_ratio)
    train, held_out = read_tree(data_dir)
    side, notes = median_side(train.paths), (*train.notes, *held_out.notes)
    if side is not None and side * _MOST_ENLARGED < image_size:
        enlarged = (
            f"half of the pictures have a shorter side of at most {side} pixels, and are enlarged "
            f"to {image_size}: a smaller image_size shows a model as much, in less time"
        )
        notes = (*notes, enlarged)
    # Imported here: naming a data set needs no TensorFlow.
    from sat_tf.training.data.crops import TrainingCrops
    from sat_tf.training.data.decoding import PictureFiles, PictureSource

    return PictureSource(
        train=PictureFiles(train),
        held_out=PictureFiles(held_out),
        num_classes=len(train.class_names),
        class_names=train.class_names,
        notes=notes,
        name=pathlib.Path(data_dir).resolve().name,
        image_size=image_size,
        deterministic=deterministic,
        preprocessing=preprocessing,
        crops=TrainingCrops(smallest_area, mirrored),
    )


def median_side(paths: Sequence[str]) -> int | None:
    """The median of the shorter sides of pictures, of some spread evenly, in pixels.

    Only their headers are read.
    """
    from PIL import Image

    sides = []
    for index in spread_evenly(len(paths), _OPENED):
        path = paths[index]
        if not os.path.isfile(path):  # opening a pipe waits for its writer
            continue
        try:
            with warnings.catch_warnings(), Image.open(path) as opened:
                # Warnings about very large pictures and odd metadata.
                warnings.simplefilter("ignore")
                sides.append(min(opened.size))
        except Exception:  # Pillow's readers raise many types on damaged files.
            continue
    return int(statistics.median_low(sides)) if sides else None
