"""Trains quantized `.keras` files in all ways of the Keras 3 backend of this process; a program.

    KERAS_BACKEND=jax python -m tests.keras3.training folder

The folder has images.npz and files of models; the program leaves in its folder `jax` what each has
become, beside it what it gave, and what the usages gave. On other backends than TensorFlow it runs
where TensorFlow, tf_keras and TFMOT cannot be imported.
"""

import os
import pathlib
import sys

from tests.keras3.processes import block_tensorflow

if __name__ == "__main__":
    block_tensorflow()
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import contextlib
import json

import keras
import numpy as np

import sat_tf

BACKEND = keras.backend.backend()
# Batches are large, so that one value that is a tie on one backend weighs little.
BATCH = 64


def main(folder):
    data, out = dict(np.load(folder / "images.npz")), folder / BACKEND
    out.mkdir()
    for path in folder.glob("w*.keras"):
        model, found = trained(path, data["images"], data["labels"])
        model.save(out / path.name)
        np.savez(out / path.with_suffix(".npz").name, **found)
    usages, found = Usages(folder, data["images"][:64], data["labels"][:64]), {}
    for name in vars(Usages):
        if not (name.startswith("__") or name in ("model", "compile", "fit")):
            keras.utils.set_random_seed(0)
            found[name] = getattr(usages, name)()
    (out / "usages.json").write_text(json.dumps(found))


def trained(path, images, labels):
    """The model of a file after an epoch, and what it gave before, then and after, by name."""
    model = keras.saving.load_model(path, compile=False)
    before = keras.ops.convert_to_numpy(model(images[:BATCH], training=False))
    found = _gradients(model, images[:BATCH], labels[:BATCH])
    losses = _Losses()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.005, momentum=0.9), loss)
    model.fit(images, labels, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[losses])
    after = keras.ops.convert_to_numpy(model(images[:BATCH], training=False))
    return model, {"before": before, "after": after, "losses": losses.found, **found}


class _Losses(keras.callbacks.Callback):
    """The loss of each step; Keras gives the mean of the epoch so far."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(float(logs["loss"]) * (batch + 1) - sum(self.found))


def _gradients(model, images, labels):
    """The gradients of the mean loss in training, by the paths of the trainable variables."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = model.trainable_variables
    if BACKEND == "jax":
        import jax

        others = [variable.value for variable in model.non_trainable_variables]

        def total(values):
            outputs, _ = model.stateless_call(values, others, images, training=True)
            return loss(labels, outputs)

        found = jax.grad(total)([variable.value for variable in variables])
    elif BACKEND == "torch":
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
    names = [f"gradient of {variable.path}" for variable in variables]
    return dict(zip(names, map(keras.ops.convert_to_numpy, found), strict=True))


class Batches(keras.utils.PyDataset):
    """Batches of 16, as Keras 3 takes them."""

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0]) // 16

    def __getitem__(self, index):
        return tuple(array[16 * index : 16 * index + 16] for array in self.arrays)


class Usages:
    """Each method is one usage; it returns what its test looks at."""

    def __init__(self, folder, images, labels):
        self.folder, self.images, self.labels = folder, images, labels

    def model(self, name="w4a4.keras", **options):
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

    def numpy(self):
        return self.fit()

    def py_dataset(self):
        return self.fit(Batches(self.images, self.labels))

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

    def compiled(self):
        # PyTorch would compile for minutes.
        choices = (False,) if BACKEND == "torch" else (True, False)
        return [self.fit(model=self.model(jit_compile=jit))[0] for jit in choices]

    def mixed(self):
        model = self.model("mixed.keras")
        losses = self.fit(model=model, epochs=3)
        outputs = model.get_layer("quant_relu_1").output
        return [losses, keras.backend.standardize_dtype(outputs.dtype)]

    def checkpoint(self):
        path, model = self.folder / f"{BACKEND}_checkpoint.keras", self.model()
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

    def transition_rate(self):
        """The state after an epoch; and with factors of 0 the rates, and how many kernels stay."""
        callback, model = sat_tf.callbacks.TransitionRate(8, first_rate=0.05), self.model()
        self.fit(model=model, callbacks=[callback])
        still = sat_tf.callbacks.TransitionRate(4, first_rate=0.0)
        kernels, model = len(callback.state["factors"]), self.model()
        still.state = {"step": 0, "rates": [0.0] * kernels, "factors": [0.0] * kernels}
        before = [keras.ops.convert_to_numpy(weight) for weight in model.trainable_weights]
        self.fit(model=model, callbacks=[still])
        moved = [
            float(np.max(np.abs(keras.ops.convert_to_numpy(weight) - start)))
            for weight, start in zip(model.trainable_weights, before, strict=True)
        ]
        return [callback.state, still.state["rates"], moved.count(0.0)]

    def own_step(self):
        """A training step of the user is called, and moves the clipping levels."""
        model, calls = self.model(), []

        class Own(keras.Model):
            def train_step(self, *batch):
                calls.append(None)
                return _STEPS[BACKEND](self, *batch)

        own = Own(model.inputs, model.outputs)
        self.compile(own)
        levels = [v for v in own.trainable_variables if v.name == "clipping_level"]
        before = [float(keras.ops.convert_to_numpy(level)) for level in levels]
        own.fit(self.images, self.labels, batch_size=16, verbose=0)
        after = [float(keras.ops.convert_to_numpy(level)) for level in levels]
        return [len(calls), before, after]

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


def _tensorflow_step(model, data):
    import tensorflow as tf

    images, labels = data
    with tf.GradientTape() as tape:
        loss = model.compute_loss(images, labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return {"loss": loss}


def _jax_step(model, state, data):
    import jax

    trainable, others, optimizer, metrics = state
    images, labels = data

    def loss_of(values):
        outputs, moved = model.stateless_call(values, others, images, training=True)
        return model.compute_loss(images, labels, outputs), moved

    (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    return {"loss": loss}, (trainable, others, optimizer, metrics)


def _torch_step(model, data):
    import torch

    images, labels = data
    model.zero_grad()
    loss = model.compute_loss(images, labels, model(images, training=True))
    loss.backward()
    weights = list(model.trainable_weights)
    with torch.no_grad():
        model.optimizer.apply([weight.value.grad for weight in weights], weights)
    return {"loss": loss}


_STEPS = {"tensorflow": _tensorflow_step, "jax": _jax_step, "torch": _torch_step}

if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
