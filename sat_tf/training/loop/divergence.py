"""Training that diverges: it ends at once, with the step and the layer that broke."""

import math
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.messages import RunError, first_ones
from sat_tf.training.data.source import ImageSource
from sat_tf.training.loop.callbacks import Backup
from sat_tf.training.step.learner import Learner

_PROBED_IMAGES = 16
_MOST_NAMED = 3


class StopWhenNotFinite(keras.callbacks.Callback):
    """Raises `RunError` as soon as the loss or a logit is NaN or infinite.

    Keras' TerminateOnNaN ends `fit` as if all were well, without a word on what broke.
    """

    # Keras would otherwise fetch every logged value after every step, and wait for the device.
    _supports_tf_logs = True

    def __init__(self, stage: str, source: ImageSource, backup: Backup) -> None:
        super().__init__()
        self._stage, self._source, self._backup = stage, source, backup
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # The running mean stays NaN in every later batch; the message names the first one.
        self._check("", loss=logs["batch_loss"], share=logs["top1"])

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what the held-out images report."""
        share = logs["top1"]
        self._check("held-out images, after ", loss=logs["loss"], share=share)

    def _check(self, where: str, *, loss: Any, share: Any) -> None:
        for value, what in ((loss, "the loss"), (share, "a logit")):
            if not math.isfinite(float(value)):
                learner: Learner = self.model
                step = int(learner.optimizer.iterations.numpy())
                images = self._source.training_sample(_PROBED_IMAGES, seed=0)
                raise RunError(
                    f"{self._stage} stage, epoch {self._epoch}, {where}step {step}: {what} is NaN "
                    f"or infinite ({describe_break(learner.student, images)}), expected finite "
                    f"values; lower stages.{self._stage}.base_learning_rate, lengthen its "
                    "warmup_epochs, or start from lower clipping levels. Epochs of the stage that "
                    f"are saved: {self._backup.epochs}."
                )


def describe_break(model: keras.Model, images: np.ndarray) -> str:
    """Says in one sentence which layers of a model diverged, in the order of the network.

    Looks for non-finite variables; if there are none, for the first layer with a non-finite output.
    """
    broken = [
        f"{layer.name} ({variable.name.rpartition('/')[2].partition(':')[0]})"
        for layer in model.layers
        for variable in layer.variables
        if variable.dtype.is_floating and not _is_finite(variable)
    ]
    if broken:
        return f"not finite: {first_ones(broken, _MOST_NAMED)}"
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    probe = keras.Model(model.inputs, [layer.output for layer in layers])
    outputs = probe(tf.cast(images, tf.float32), training=False)
    for layer, output in zip(layers, outputs, strict=True):
        # A layer that is called several times, or gives several tensors, has a list of them.
        if not all(map(_is_finite, tf.nest.flatten(output))):
            return f"all weights are finite, but the output of {layer.name} is not"
    decayed = [layer.name for layer in layers if not all(map(_is_finite, layer.losses))]
    if decayed:
        return f"all weights are finite, but the weight decay of {first_ones(decayed)} is not"
    return "all weights are finite, and so are the outputs of all layers"


def _is_finite(values: Any) -> bool:
    return bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(values))))
