"""The ways in which quantized `.keras` files are trained on the backend here; also a program.

    KERAS_BACKEND=jax python -m tests.keras3.usages folder results.json

The folder has model.keras, mixed.keras and images.npz. On other backends than TensorFlow it runs
where TensorFlow, tf_keras and TFMOT cannot be imported.
"""

import json
import os
import pathlib
import sys

from tests.keras3.processes import block_tensorflow

if __name__ == "__main__":
    block_tensorflow()
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import contextlib

import keras
import numpy as np

import sat_tf  # noqa: F401  # registers the layers

BACKEND = keras.backend.backend()


class Usages:
    """Each method is one usage; it returns what its test looks at."""

    def __init__(self, folder):
        self.folder = folder
        data = np.load(folder / "images.npz")
        self.images, self.labels = data["images"][:64], data["labels"][:64]

    def model(self, name="model.keras", **options):
        model = keras.saving.load_model(self.folder / name, compile=False)
        self.compile(model, **options)
        return model

    def compile(self, model, **options):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, **options)

    def fit(self, data=None, model=None, **options):
        """The losses of a model, by default the one of the folder, on its images or other data."""
        batches = {"x": data}
        if data is None:
            batches = {"x": self.images, "y": self.labels, "batch_size": 16}
        model = model or self.model()
        return model.fit(**batches, shuffle=False, verbose=0, **options).history["loss"]

    # -- data --------------------------------------------------------------------------------------

    def numpy(self):
        return self.fit()

    def py_dataset(self):
        images, labels = self.images, self.labels

        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                part = slice(16 * index, 16 * index + 16)
                return images[part], labels[part]

        return self.fit(Batches())

    def torch_loader(self):
        try:
            import torch
        except ImportError:
            return None
        tensors = torch.from_numpy(self.images), torch.from_numpy(self.labels)
        data = torch.utils.data.TensorDataset(*tensors)
        return self.fit(torch.utils.data.DataLoader(data, batch_size=16))

    def tf_data(self):
        if BACKEND != "tensorflow":
            return None
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((self.images, self.labels))
        return self.fit(data.batch(16))

    # -- how it is compiled ------------------------------------------------------------------------

    def compiled(self):
        # PyTorch would compile for minutes.
        choices = (False,) if BACKEND == "torch" else (True, False)
        return [self.fit(model=self.model(jit_compile=jit))[0] for jit in choices]

    def mixed(self):
        model = self.model("mixed.keras")
        losses = self.fit(model=model, epochs=3)
        outputs = model.get_layer("quant_relu_1").output
        return [losses, keras.backend.standardize_dtype(outputs.dtype)]

    # -- callbacks ---------------------------------------------------------------------------------

    def checkpoint(self):
        path = self.folder / f"{BACKEND}_checkpoint.keras"
        model = self.model()
        self.fit(model=model, callbacks=[keras.callbacks.ModelCheckpoint(path)])
        models = model, keras.saving.load_model(path)
        found = [keras.ops.convert_to_numpy(m(self.images, training=False)) for m in models]
        return float(np.max(np.abs(found[0] - found[1])))

    def early_stopping(self):
        settings = {"patience": 1, "min_delta": 100.0, "restore_best_weights": True}
        stopping = keras.callbacks.EarlyStopping("loss", **settings)
        return len(self.fit(epochs=5, callbacks=[stopping]))

    def backup(self):
        folder = self.folder / f"{BACKEND}_backup"
        alone = self.fit(epochs=3)

        class Stops(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1:
                    raise KeyboardInterrupt

        def saving():
            return keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)

        with contextlib.suppress(KeyboardInterrupt):
            self.fit(epochs=3, callbacks=[saving(), Stops()])
        return [alone, self.fit(epochs=3, callbacks=[saving()])]

    # -- steps and devices -------------------------------------------------------------------------

    def own_step(self):
        """A training step of the user is called, and moves the clipping levels."""
        model = self.model()
        kind = {"tensorflow": OfTensorFlow, "jax": OfJax, "torch": OfTorch}[BACKEND]
        own = kind(model.inputs, model.outputs)
        self.compile(own)
        levels = [v for v in own.trainable_variables if v.name == "clipping_level"]
        before = [float(keras.ops.convert_to_numpy(level)) for level in levels]
        own.fit(self.images, self.labels, batch_size=16, verbose=0)
        after = [float(keras.ops.convert_to_numpy(level)) for level in levels]
        return [len(_CALLS), before, after]

    def two_devices(self):
        if BACKEND != "jax":
            return None
        # One epoch: sums are added in another order, and a code that is a tie comes in the end.
        alone = self.fit()
        devices = keras.distribution.list_devices()[:2]
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
        try:
            together = self.fit()
        finally:
            keras.distribution.set_distribution(None)
        return [len(devices), alone, together]


_CALLS = []


class OfTensorFlow(keras.Model):
    def train_step(self, data):
        import tensorflow as tf

        images, labels = data
        _CALLS.append(None)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(images, labels, self(images, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class OfJax(keras.Model):
    def train_step(self, state, data):
        import jax

        trainable, others, optimizer, metrics = state
        images, labels = data
        _CALLS.append(None)

        def loss_of(values):
            outputs, moved = self.stateless_call(values, others, images, training=True)
            return self.compute_loss(images, labels, outputs), moved

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"loss": loss}, (trainable, others, optimizer, metrics)


class OfTorch(keras.Model):
    def train_step(self, data):
        images, labels = data
        _CALLS.append(None)
        self.zero_grad()
        loss = self.compute_loss(images, labels, self(images, training=True))
        loss.backward()
        weights = list(self.trainable_weights)
        import torch

        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return {"loss": loss}


def every_usage(folder):
    """The results of all usages, by their names."""
    usages, found = Usages(folder), {}
    for name in vars(Usages):
        if not (name.startswith("__") or name in ("model", "compile", "fit")):
            keras.utils.set_random_seed(0)
            found[name] = getattr(usages, name)()
    return found


if __name__ == "__main__":
    found = every_usage(pathlib.Path(sys.argv[1]))
    pathlib.Path(sys.argv[2]).write_text(json.dumps(found))
