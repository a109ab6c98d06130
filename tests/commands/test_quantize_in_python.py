"""The lines of Python that the README opens with make the file of `sat-tf quantize`."""

import numpy as np
import pytest
import tf_keras

import sat_tf
from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.tflite.preprocessing import COVERING
from sat_tf.training.data.digits import load_digits
from tests.training.small import write_pictures

_IMAGES = 64


def _trained(keras):
    """A small network of either Keras whose statistics are those of the digits."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="first")(image)
    x = layers.BatchNormalization(momentum=0.5, name="norm")(x)
    x = layers.ReLU(name="relu")(x)
    x = layers.Conv2D(8, 3, activation="relu", name="second")(x)
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    model = keras.Model(image, layers.Dense(10, name="logits")(x), name="net")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    digits = load_digits(8)
    model.fit(digits.train_images[:512].astype(np.float32), digits.train_labels[:512], verbose=0)
    return model


@pytest.fixture(params=["tf_keras", "keras"])
def keras(request):
    """Keras 2 and Keras 3."""
    return pytest.importorskip(request.param)


@pytest.fixture
def photos(tmp_path):
    """A folder of pictures, and the same as an array."""
    folder = tmp_path / "photos"
    images = load_digits(8).test_images[:_IMAGES]
    write_pictures(folder, images)
    return folder, images


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [8, 4])
def test_python_and_the_command_make_the_same_file_and_model(keras, bits, photos, tmp_path, sat):
    folder, images = photos
    model = _trained(keras)
    model.save(tmp_path / "model.keras")
    words = f"{tmp_path}/model.keras --images {folder} --input_range 0,255 --bits {bits} --epochs 0"
    # 4 bits may cost this small model so much that the headline is red.
    sat(f"quantize {words} --out {tmp_path}/out", status=(0, 1) if bits < 8 else 0)
    headline = read_certificate(tmp_path / "out" / "certificate.json").verdict
    assert sat.status == (headline.kind == "bad")

    quantized = sat_tf.quantize_model(model, bits)
    sat_tf.calibrate(quantized, images.astype(np.float32))
    path = tmp_path / "model.tflite"
    # The command writes how it has read the folder.
    report = sat_tf.export_tflite(quantized, path, snap_biases=True, preprocessing=COVERING)
    if keras is tf_keras:
        assert path.read_bytes() == (tmp_path / "out" / "model.tflite").read_bytes()
    assert report.moved_biases == 3
    for file in (path, tmp_path / "out" / "model.tflite"):  # operators, settings and constants
        certificate = sat_tf.verify_tflite(quantized, file, images, progress=False)
        assert certificate.codes_differing == 0
        # A tie of the first layer moves a dozen codes of those that read it: nothing differs alone.
        assert certificate.trained_differing < 1e-3
        assert not any(tensor.alone_differing for tensor in certificate.trained)

    saved = tf_keras.models.load_model(tmp_path / "out" / "quantized.keras")
    given = images.astype(np.float32)
    np.testing.assert_allclose(np.asarray(quantized(given)), saved(given).numpy(), atol=1e-4)
