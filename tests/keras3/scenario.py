"""Trains quantized `.keras` files on the Keras 3 backend of this process; also a program.

    KERAS_BACKEND=jax python -m tests.keras3.scenario folder

The folder has images.npz and files of models; the program leaves in its folder `jax` what each has
become, and beside it what it gave. On other backends than TensorFlow it runs where TensorFlow,
tf_keras and TFMOT cannot be imported.
"""

import pathlib
import sys

from tests.keras3.processes import block_tensorflow

if __name__ == "__main__":
    block_tensorflow()

import keras
import numpy as np

import sat_tf  # noqa: F401  # registers the layers

# Batches are large, so that one value that is a tie on one backend weighs little.
BATCH = 64


def trained(path, data):
    """The model of a file after an epoch, and what it gave before, then and after, by name."""
    images, labels = data["images"], data["labels"]
    model = keras.saving.load_model(path, compile=False)
    before = keras.ops.convert_to_numpy(model(images[:BATCH], training=False))
    found = dict(zip(*_gradients(model, images[:BATCH], labels[:BATCH]), strict=True))
    losses = _Losses()
    model.compile(
        keras.optimizers.SGD(0.005, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(
        images, labels, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, callbacks=[losses]
    )
    after = keras.ops.convert_to_numpy(model(images[:BATCH], training=False))
    return model, {"before": before, "after": after, "losses": losses.found, **found}


def main(folder):
    data = dict(np.load(folder / "images.npz"))
    out = folder / keras.backend.backend()
    out.mkdir()
    for path in folder.glob("*.keras"):
        model, found = trained(path, data)
        model.save(out / path.name)
        np.savez(out / path.with_suffix(".npz").name, **found)


class _Losses(keras.callbacks.Callback):
    """The loss of each step; Keras gives the mean of the epoch so far."""

    def __init__(self):
        super().__init__()
        self.found = []
        self._sum = 0.0

    def on_train_batch_end(self, batch, logs=None):
        total = float(logs["loss"]) * (batch + 1)
        self.found.append(total - self._sum)
        self._sum = total


def _gradients(model, images, labels):
    """The paths of the trainable variables, and the gradients of the mean loss in training."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = model.trainable_variables
    names = [f"gradient of {variable.path}" for variable in variables]
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        values = [variable.value for variable in variables]
        others = [variable.value for variable in model.non_trainable_variables]

        def total(values):
            outputs, _ = model.stateless_call(values, others, images, training=True)
            return loss(labels, outputs)

        found = jax.grad(total)(values)
    elif backend == "torch":
        model.zero_grad()
        loss(labels, model(images, training=True)).backward()
        found = [variable.value.grad for variable in variables]
        model.zero_grad()
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total = loss(labels, model(images, training=True))
        found = tape.gradient(total, [variable.value for variable in variables])
    # The statistics of BatchNormalization have moved on backends that compute at once.
    return names, [keras.ops.convert_to_numpy(gradient) for gradient in found]


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
