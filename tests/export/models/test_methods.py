"""Every family of models and every method as an integer file: no code differs, trained or not."""

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.linear import Linear
from sat_tf.export.tflite.tensors import Storage
from sat_tf.training import models
from tests.export.proofs import calibrated, proved
from tests.export.zoo import block, convolution, depthwise, make_realistic, normalization
from tests.methods import METHODS
from tests.training.small_networks import build_small


@pytest.mark.thorough
@pytest.mark.parametrize("name", models.MODELS)
def test_xnnpack_computes_the_simulated_integers_of_every_family(name, images, path):
    keras.utils.set_random_seed(0)
    model = build_small(name)
    make_realistic(model)
    report, found = proved(calibrated(model, images=images), path, images[:4])
    assert report.float_operators == ["DEQUANTIZE classifier"]
    assert found.runtimes["xnnpack"].codes_compared > 0
    assert found.runtimes["xnnpack"].codes_differing == 0
    assert found.runtimes["xnnpack"].delegation.partitions == 1


def _trained(model, method, bits, images):
    keras.utils.set_random_seed(0)
    make_realistic(model)
    quantized = calibrated(model, sat_tf.BitPolicy.mobile(bits, **METHODS[method]), images)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    quantized.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss)
    labels = np.arange(len(images)) % 10
    losses = quantized.fit(images, labels, batch_size=16, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    return quantized


def _inverted_residual() -> keras.Model:
    """All that MobileNet-V2 repeats, once."""
    image = x = keras.Input((32, 32, 3), name="image")
    for layer in block(convolution(6, strides=2)):
        first = x = layer(x)
    for layer in [*block(convolution(12, 1), depthwise()), convolution(6, 1), normalization()]:
        x = layer(x)
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Add()([first, x]))
    return keras.Model(image, keras.layers.Dense(10, name="classifier")(x))


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (32, 32, 32, 3)).astype(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18"])
def test_the_file_computes_the_integers_that_were_trained(name, bits, method, images, path):
    quantized = _trained(build_small(name), method, bits, images.astype(np.float32))
    report, found = proved(quantized, path, images[:4])
    assert report.float_operators == ["DEQUANTIZE classifier"]
    assert found.codes_compared > 100_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method", ["lsq", "lsq_plus", "l1", "kmeans", "lq_nets", "channel_bits", "qil"]
)
def test_biases_are_snapped(method, images, path):
    quantized = _trained(_inverted_residual(), method, 4, images.astype(np.float32))
    differing = []
    for snap in (False, True):
        if snap:
            sat_tf.export.snap_biases(quantized)
        _, found = proved(quantized, path, images[:4])
        differing.append(found.trained_differing)
    assert differing[1] < differing[0]


# LSQ's codes need as many bits as they have, but where a negative γ turns -8 into 8, or -2 into 2.
@pytest.mark.thorough
@pytest.mark.parametrize(("bits", "pack"), [(2, "int2"), (3, "auto"), (4, "auto")])
def test_weights_of_lsq_are_stored_in_their_own_bits(bits, pack):
    model = build_small("mobilenet_v2")
    policy = sat_tf.BitPolicy.mobile(bits, **METHODS["lsq"])
    quantized = sat_tf.quantize_model(model, policy)
    narrow = Storage.INT2 if pack == "int2" else Storage.INT4
    graph = deployed_graph(quantized, pack=pack)
    products = {
        operation.output: operation
        for operation in graph.operations
        if isinstance(operation, Linear) and operation.is_product
    }
    inner = {name: one for name, one in products.items() if one.storage is not Storage.INT8}
    assert len(inner) >= len(products) - 1  # the classifier has 8 bits
    assert {operation.storage for operation in inner.values()} == {narrow}
