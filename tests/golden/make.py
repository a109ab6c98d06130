"""Writes models of this folder: `python -m tests.golden.make mobile paper layers`.

They are to be made once for a format and then kept, so that later versions are tested with files of
earlier ones. Beside each there is an input and what the model computed from it. What Keras writes
is mostly zeros, so the files are packed.
"""

import functools
import gzip
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.version import FORMAT

FOLDER = pathlib.Path(__file__).parent
L = keras.layers
POLICIES = {
    "mobile": sat_tf.BitPolicy.mobile(4, weight_range="channel"),
    "paper": sat_tf.BitPolicy.paper(2, clipping_gradient="pact", input_max=1.0),
    "layers": sat_tf.BitPolicy.mobile(3, unsupported="float"),
}


def tiny_model() -> keras.Model:
    """Every kind of quantizer in a few layers: for a rectifier, a stream, the image, the logits."""
    image = keras.Input((4, 4, 3), name="image")
    stem = L.Conv2D(2, 3, padding="same", use_bias=False, name="stem")(image)
    stem = L.ReLU(name="stem_relu")(L.BatchNormalization(name="stem_bn")(stem))
    branch = L.DepthwiseConv2D(3, padding="same", name="depthwise")(stem)
    tensor = L.Flatten(name="flatten")(L.Add(name="add")([stem, branch]))
    return keras.Model(image, L.Dense(3, name="classifier")(tensor), name="tiny")


def layers_model() -> keras.Model:
    """Layers that stand for operations, functions with quantizers of their own, shared weights."""
    image = keras.Input((4, 4, 3), name="image")
    pixels = keras.Input((4, 4, 3), name="pixels")
    shared = L.Conv2D(2, 1, activation="swish", name="shared")
    inner = keras.Model(pixels, shared(L.Rescaling(0.01, -1.0, name="centred")(pixels)), name="in")
    tensor = L.Conv2DTranspose(2, 2, name="transposed")(inner(image))
    tensor = L.DepthwiseConv2D(3, padding="same", name="depthwise")(tensor[:, 1:] * 0.5)
    tensor = L.Multiply(name="gated")([tensor, L.Activation("sigmoid", name="gate")(tensor)])
    tensor = L.PReLU(shared_axes=[1, 2], name="prelu")(tensor)
    tensor = L.Flatten(name="flatten")(tensor)
    tensor = L.Concatenate(name="join")([tensor, L.Flatten(name="flat")(shared(image - 128.0))])
    return keras.Model(image, L.Dense(3, name="classifier")(tensor), name="layers")


MODELS = {"layers": layers_model}


@functools.cache
def trained(policy: sat_tf.BitPolicy) -> tuple[keras.Model, np.ndarray]:
    """A quantized model after a few steps, and pixels as it takes them; not to be changed."""
    name = next(name for name, known in POLICIES.items() if known == policy)
    keras.utils.set_random_seed(7)
    draw = np.random.default_rng(7)
    images = policy.range_of("image").fed(draw.integers(0, 256, (64, 4, 4, 3)))
    images = images.astype(np.float32)
    model = sat_tf.calibrate(sat_tf.quantize_model(MODELS.get(name, tiny_model)(), policy), images)
    model.get_layer("quant_depthwise").trainable = False
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    model.fit(images, draw.integers(0, 3, 64), batch_size=32, verbose=0)
    return model, images[:8]


def unpack(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The file as Keras has written it, in another folder."""
    if path.suffix != ".gz":
        return path
    whole = folder / path.stem
    whole.write_bytes(gzip.decompress(path.read_bytes()))
    return whole


def main(names: Sequence[str]) -> None:
    """Writes files of the present format, of the policies with these names."""
    for name in names:
        model, images = trained(POLICIES[name])
        expected = model(images).numpy()
        # A code that rounding decides otherwise elsewhere would show: it is a whole step.
        compiled = tf.function(model, jit_compile=True)(images).numpy()
        np.testing.assert_allclose(compiled, expected, rtol=1e-5, atol=1e-5)
        path = FOLDER / f"format{FORMAT}_{name}"
        # As if it had never been compiled, which makes smaller files.
        copy = keras.Model.from_config(model.get_config())
        copy.set_weights(model.get_weights())
        with tempfile.TemporaryDirectory() as folder:
            for suffix in (".keras", ".h5"):
                copy.save(f"{folder}/model{suffix}")
            # The same archive, compressed: Keras stores its parts as they are, and reads both.
            shutil.unpack_archive(f"{folder}/model.keras", f"{folder}/parts", "zip")
            shutil.make_archive(f"{folder}/packed", "zip", f"{folder}/parts")
            shutil.copy(f"{folder}/packed.zip", path.with_suffix(".keras"))
            whole = pathlib.Path(folder, "model.h5").read_bytes()
            path.with_suffix(".h5.gz").write_bytes(gzip.compress(whole, mtime=0))
        values = {f"weight{index}": value for index, value in enumerate(model.get_weights())}
        np.savez_compressed(path.with_suffix(".npz"), images=images, expected=expected, **values)


if __name__ == "__main__":
    main(sys.argv[1:])
