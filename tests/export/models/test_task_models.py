import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import sat_tf
from sat_tf.qat.calibrate import estimate_statistics
from tests.export.task_models import detector, unet

FLOAT_ENDS = {
    unet: ["DEQUANTIZE mask_float", "SOFTMAX mask"],
    detector: ["DEQUANTIZE boxes", "DEQUANTIZE classes_float", "LOGISTIC classes"],
}


@pytest.fixture(scope="module", params=[unet, detector])
def build(request):
    return request.param


@pytest.fixture(scope="module")
def images(build):
    """Smooth pictures, uint8: noise at a quarter of their size, enlarged."""
    size = build().input_shape[1]
    noise = np.random.default_rng(5).uniform(0.0, 255.0, (64, size // 4, size // 4, 3))
    return tf.image.resize(noise, (size, size), "bicubic").numpy().clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def model(build, images):
    tf_keras.utils.set_random_seed(3)
    made = build()
    estimate_statistics(made, images.astype(np.float32))
    return made


@pytest.fixture(scope="module", params=[8, 4])
def quantized(request, model, images):
    """It and its bits."""
    made = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(request.param))
    return sat_tf.calibrate(made, images.astype(np.float32)), request.param


@pytest.mark.thorough
def test_the_file_is_all_integer_but_its_ends_and_exact(quantized, build, images, path):
    model, _ = quantized
    report = sat_tf.export_tflite(model, path)
    assert sorted(report.float_operators) == FLOAT_ENDS[build]
    found = sat_tf.verify_tflite(model, path, images[:2])
    assert found.codes_compared > 1000
    assert found.codes_differing == 0


@pytest.mark.thorough
def test_at_8_bits_it_does_what_the_float_model_does_and_at_4_it_trains(quantized, model, images):
    made, bits = quantized
    if bits == 8:
        outputs = (tf.nest.flatten(each(images.astype(np.float32))) for each in (model, made))
        for one, other in zip(*outputs, strict=True):
            assert np.corrcoef(np.ravel(one), np.ravel(other))[0, 1] > 0.99
        return
    pixels = images[:8].astype(np.float32)
    targets = tf.nest.map_structure(lambda tensor: tensor.numpy(), model(pixels[:, :, ::-1]))
    made.compile(tf_keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    losses = made.fit(pixels, targets, batch_size=8, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
