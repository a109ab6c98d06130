"""Models and a data set small enough to train in a moment."""

import functools
import pathlib

import numpy as np
import tf_keras as keras
from PIL import Image

import sat_tf
from sat_tf.exact.tflite.input_range import InputRange
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.data.source import ImageSet
from tests.methods import METHODS

IMAGE_SIZE = 8
NUM_CLASSES = 3


@functools.cache
def small_float_model(num_classes: int = NUM_CLASSES) -> keras.Model:
    """Every kind of layer that weight decay treats in its own way; tests must not change it."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    images = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), name="image")
    features = layers.Conv2D(6, 3, strides=2, padding="same", name="stem")(images)
    features = layers.BatchNormalization(name="stem_bn")(features)
    features = layers.ReLU(name="stem_relu")(features)
    features = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(features)
    features = layers.BatchNormalization(name="depthwise_bn")(features)
    features = layers.ReLU(name="depthwise_relu")(features)
    features = layers.Conv2D(6, 1, use_bias=False, name="pointwise")(features)
    features = layers.BatchNormalization(name="pointwise_bn")(features)
    features = layers.GlobalAveragePooling2D(name="pool")(features)
    logits = layers.Dense(num_classes, name="classifier")(features)
    return keras.Model(images, logits, name="small")


@functools.cache
def small_quantized_model(method: str = "sat") -> keras.Model:
    """One model for all tests of a method, which must not change it."""
    policy = BitPolicy.mobile(4, **METHODS.get(method, {}))
    model = sat_tf.quantize_model(small_float_model(), policy)
    images = small_images()
    return sat_tf.calibrate(model, images.train_images)


def small_images(train: int = 96, test: int = 33) -> ImageSet:
    """Noise, brighter in the third of the rows that is the class."""
    generator = np.random.RandomState(0)
    labels = np.arange(train + test, dtype=np.int32) % NUM_CLASSES
    pixels = generator.randint(0, 128, (len(labels), IMAGE_SIZE, IMAGE_SIZE, 3))
    for image, label in zip(pixels, labels, strict=True):
        image[2 * label : 2 * label + 3] += 100
    images = pixels.astype(np.uint8)
    parts = {"train_images": images[:train], "train_labels": labels[:train]}
    parts |= {"test_images": images[train:], "test_labels": labels[train:]}
    return ImageSet(name="noise", num_classes=NUM_CLASSES, **parts)


def write_pictures(folder: pathlib.Path, pixels: np.ndarray, labels: np.ndarray | None = None):
    """Writes pictures into a folder, or into a folder for each class where they have labels."""
    for index, image in enumerate(pixels):
        place = folder if labels is None else folder / f"class_{labels[index]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{index:03}.png")


L = keras.layers


def model_of_small_range(*, inside=False):
    """Sums min(max(8 x - 3, 0), 6) over the rows of each class, x being the brightness.

    A Rescaling inside makes x of pixels.
    """
    image = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), name="image")
    tensor = L.Rescaling(1 / 255, name="rescale")(image) if inside else image
    tensor = L.ReLU(6.0, name="relu")(L.Conv2D(1, 1, name="conv")(tensor))
    model = keras.Model(image, L.Dense(NUM_CLASSES, name="head")(L.Flatten()(tensor)), name="range")
    rows = np.zeros((IMAGE_SIZE, IMAGE_SIZE, NUM_CLASSES), np.float32)
    for label in range(NUM_CLASSES):
        rows[2 * label : 2 * label + 3, :, label] = 0.1
    model.get_layer("conv").set_weights([np.full((1, 1, 3, 1), 8 / 3), np.full(1, -3.0)])
    model.get_layer("head").set_weights([rows.reshape(-1, NUM_CLASSES), np.zeros(NUM_CLASSES)])
    return model


def model_of_one_range(found: InputRange):
    """Counts the rows of each class as bright as those in `small_images`, neither less nor more.

    A peak of width w, (max(x - b + w, 0) - 2 max(x - b, 0) + max(x - b - w, 0)) / w, is 1 where the
    mean x of a row is the brightness b, and 0 from b ± w on. In another usual range no row of the
    pictures is near b, or few are.
    """
    dark, bright = (
        float(np.mean(found.fed(np.full((1, 1, 1, 3), pixel, np.uint8)))) for pixel in (64, 163)
    )
    width = 0.15 * (bright - dark)
    image = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), name="image")
    tensor = L.ReLU(name="relu")(L.Conv2D(3, (1, IMAGE_SIZE), name="conv")(image))
    head = L.Dense(NUM_CLASSES, name="head")
    model = keras.Model(image, head(L.Flatten()(tensor)), name="one_range")
    mean = np.full((1, IMAGE_SIZE, 3, 3), 1 / (3 * IMAGE_SIZE * width))
    biases = np.array([width - bright, -bright, -width - bright]) / width
    rows = np.zeros((IMAGE_SIZE, 3, NUM_CLASSES), np.float32)
    for label in range(NUM_CLASSES):
        rows[2 * label : 2 * label + 3, :, label] = [1, -2, 1]
    model.get_layer("conv").set_weights([mean, biases])
    head.set_weights([rows.reshape(-1, NUM_CLASSES), np.zeros(NUM_CLASSES)])
    return model
