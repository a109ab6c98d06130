"""A data set in the input range of a model."""

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.data.source import ImageSource, ReadingError
from sat_tf.graph.network import Network
from sat_tf.qat.inputs import input_ranges
from sat_tf.quantizers.input_range import PIXELS, InputRange

_CHANNELS = 3


class FedSource(ImageSource):
    """The images of a source of pixels as float32 real values of an input range.

    Args:
        pixels: the source.
        found: the real values of its pixels.
    """

    def __init__(self, pixels: ImageSource, found: InputRange) -> None:
        self.pixels, self.range = pixels, found
        self.name, self.image_size = pixels.name, pixels.image_size
        self.num_classes = pixels.num_classes
        self.num_train, self.num_test = pixels.num_train, pixels.num_test
        self.class_names, self.preprocessing = pixels.class_names, pixels.preprocessing
        self.notes = pixels.notes
        # The real value of each pixel in each channel, the channels of a pixel side by side.
        every = np.repeat(np.arange(256, dtype=np.uint8)[:, None], _CHANNELS, axis=1)
        self._values = found.fed(every).reshape(-1)

    @property
    def reading_error(self) -> ReadingError | None:
        """The error of the source."""
        return self.pixels.reading_error

    def training_batches(self, **options: Any) -> Any:
        """The batches of the source in the input range."""
        return self.pixels.training_batches(**options).map(self._fed)

    def held_out_batches(self, **options: Any) -> Any:
        """The batches of the source in the input range."""
        return self.pixels.held_out_batches(**options).map(self._fed)

    def training_sample(self, count: int, *, seed: int) -> Any:
        """The sample of the source in the input range: float32."""
        return self.range.fed(self.pixels.training_sample(count, seed=seed))

    def held_out_sample(self, most: int) -> tuple[Any, Any]:
        """The sample of the source in the input range: float32, and labels."""
        images, labels = self.pixels.held_out_sample(most)
        return self.range.fed(images), labels

    def _fed(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if self.range.reversed_channels:
            images = images[..., ::-1]
        numbers = tf.cast(images, tf.int32) * _CHANNELS + tf.range(_CHANNELS)
        return tf.gather(tf.constant(self._values), numbers), labels


def fed_source(pixels: ImageSource, found: InputRange) -> ImageSource:
    """The source in an input range; the source itself where models take pixels."""
    return pixels if found == PIXELS else FedSource(pixels, found)


def fed(source: ImageSource, pixels: np.ndarray) -> np.ndarray:
    """Pixels as the models of a source take them: float32."""
    if isinstance(source, FedSource):
        return np.asarray(source.range.fed(pixels))
    return pixels.astype(np.float32)


def pixels_of(source: ImageSource) -> ImageSource:
    """The source of pixels, which the file takes."""
    return source.pixels if isinstance(source, FedSource) else source


def fed_range(model: keras.Model) -> InputRange:
    """The input range of a quantized model with one input; pixels if that is not an image."""
    network = Network(model)
    return input_ranges(network).get(network.inputs[0], PIXELS)
