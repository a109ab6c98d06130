"""Policies of every grid and method: exported exactly, or said before the training not to be."""

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.core.grid import GRIDS
from sat_tf.exact.operations.linear import Linear
from sat_tf.exact.tflite.tensors import Storage
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import GRID_NAMES
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.training import models
from tests.export.proofs import calibrated, proved
from tests.export.zoo import (
    block,
    chain,
    convolution,
    depthwise,
    images_for,
    make_realistic,
    normalization,
)
from tests.methods import METHODS
from tests.training.small_networks import build_small

L = keras.layers
_PRESETS = {"mobile": BitPolicy.mobile, "paper": BitPolicy.paper}


def _of_layers(*names: str, size: int = 3) -> keras.Model:
    """A first layer, those of these names, and a last one."""
    keras.utils.set_random_seed(5)
    stem = L.Conv2D(4, 3, activation="relu", name="stem")
    inner = [L.Conv2D(4, size, activation="relu", name=name) for name in names]
    return chain((6, 6, 3), stem, *inner, L.Flatten(), L.Dense(3, name="classifier"))


@pytest.mark.thorough
@pytest.mark.parametrize("preset", _PRESETS)
@pytest.mark.parametrize("grid", GRID_NAMES)
@pytest.mark.parametrize("weight_range", ["layer", "channel"])
@pytest.mark.filterwarnings("ignore:weight_grid=")  # grids that train badly
def test_layers_of_all_bits_are_exported_exactly_on_every_grid(grid, preset, weight_range, path):
    bits = {f"inner_{bits}": {"weight_bits": bits} for bits in range(1, 9)}
    if grid in GRIDS and GRIDS[grid].fewest_bits > 1:
        bits["inner_1"] = {"weight_bits": 1, "weight_grid": "dorefa"}
    fields = {"first_last_weight_grid": "auto"} if preset == "paper" else {}
    policy = _PRESETS[preset](
        4, weight_grid=grid, weight_range=weight_range, overrides=bits, **fields
    )
    proved(calibrated(_of_layers(*bits, size=1), policy), path)


@pytest.mark.parametrize(("bits", "grid"), [(2, "rounded"), (4, "dorefa"), (3, "modified")])
@pytest.mark.filterwarnings("ignore:weight_grid='modified' rounds")
def test_first_and_last_layers_are_on_a_grid_that_fits(bits, grid, path):
    policy = BitPolicy.mobile(bits, weight_grid=grid)
    proved(calibrated(_of_layers("inner"), policy), path)
    plan = sat_tf.explain(_of_layers("inner"), policy)
    assert plan.export_problems == ()
    kernels = {row.name: row.weights for row in plan.rows if row.weights}
    assert {name: (kernel.bits, kernel.grid) for name, kernel in kernels.items()} == {
        "stem": (8, "narrow"),
        "inner": (bits, grid),
        "classifier": (8, "narrow"),
    }
    assert f"{grid} does not fit int8" in kernels["stem"].bits_reason
    assert kernels["inner"].bits_reason == ""


def test_a_model_for_training_alone_says_which_layers_keep_it_from_being_exported(path):
    with pytest.warns(UserWarning, match="not exported"):
        policy = BitPolicy.paper(4, weight_grid="dorefa")
    with pytest.warns(
        UserWarning, match=r"not exported.*: .*stem \(8 bits, dorefa\), classifier \(8 bits"
    ):
        quantized = sat_tf.quantize_model(_of_layers("inner"), policy)
    wrappers = [layer for layer in quantized.layers if isinstance(layer, QuantizedLayer)]
    kernels = [wrapper.quantize_config.weights for wrapper in wrappers]
    assert [kernel.grid for kernel in kernels if kernel] == ["dorefa"] * 3
    with pytest.raises(ValueError, match="weight_grid='auto' or 'narrow'"):
        sat_tf.export_tflite(quantized, path)


def test_a_layer_s_own_8_bits_fall_back_when_only_bits_are_asked_of_it(path):
    policy = BitPolicy.mobile(2, weight_grid="rounded", overrides={"inner": {"weight_bits": 8}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated below
        quantized = sat_tf.quantize_model(_of_layers("inner"), policy)
    again = sat_tf.requantize(quantized, BitPolicy.mobile(4, weight_grid="dorefa"))
    for model in (quantized, again):
        sat_tf.calibrate(model, images_for(model))
        sat_tf.export_tflite(model, path)


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
    # All that MobileNet-V2 repeats, once.
    image = x = keras.Input((32, 32, 3), name="image")
    for layer in block(convolution(6, strides=2)):
        first = x = layer(x)
    for layer in [*block(convolution(12, 1), depthwise()), convolution(6, 1), normalization()]:
        x = layer(x)
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Add()([first, x]))
    model = keras.Model(image, keras.layers.Dense(10, name="classifier")(x))
    quantized = _trained(model, method, 4, images.astype(np.float32))
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
    graph = deployed_graph(Network(quantized), pack=pack)
    products = {
        operation.output: operation
        for operation in graph.operations
        if isinstance(operation, Linear) and operation.is_product
    }
    inner = {name: one for name, one in products.items() if one.storage is not Storage.INT8}
    assert len(inner) >= len(products) - 1  # the classifier has 8 bits
    assert {operation.storage for operation in inner.values()} == {narrow}


def _conv(x: Any, filters: int, strides: int = 1, *, size: int = 3, rectified: bool = True) -> Any:
    x = L.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
    x = L.BatchNormalization()(x)
    return tf.nn.relu(x) if rectified else x


def _classes(x: Any) -> Any:
    return L.Dense(4)(tf.reduce_mean(x, axis=[1, 2]))


def cbam(image: Any) -> Any:
    x = _conv(image, 8)
    reduce, expand = L.Dense(2, activation="relu"), L.Dense(8)
    pooled = [expand(reduce(pool(x, axis=[1, 2]))) for pool in (tf.reduce_mean, tf.reduce_max)]
    x *= tf.reshape(tf.sigmoid(pooled[0] + pooled[1]), [-1, 1, 1, 8])
    maps = [pool(x, axis=-1, keepdims=True) for pool in (tf.reduce_mean, tf.reduce_max)]
    x *= L.Conv2D(1, 7, padding="same", activation="sigmoid")(tf.concat(maps, -1))
    return _classes(_conv(x, 8))


def resnet_option_a(image: Any) -> Any:
    x = _conv(image, 4)
    for filters in (8, 16):
        branch = _conv(_conv(x, filters, 2), filters, rectified=False)
        more = (filters - x.shape[-1]) // 2
        x = tf.nn.relu(branch + tf.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [more, more]]))
    return _classes(x)


def super_resolution(image: Any) -> Any:
    x = L.Conv2D(8, 5, padding="same", activation="tanh")(image)
    x = x + 0.1 * L.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = tf.nn.depth_to_space(L.Conv2D(12, 3, padding="same")(x), 2)
    return tf.clip_by_value(x + tf.image.resize(image, (16, 16), "nearest"), 0.0, 255.0)


def channel_shuffle(image: Any) -> Any:
    x = _conv(image, 8)
    for _ in range(2):
        kept, branch = tf.split(x, 2, axis=-1)
        branch = L.DepthwiseConv2D(3, padding="same")(_conv(branch, 4, size=1))
        x = tf.concat([kept, _conv(branch, 4, size=1)], -1)
        x = tf.transpose(tf.reshape(x, [-1, 8, 8, 2, 4]), [0, 1, 2, 4, 3])
        x = tf.reshape(x, [-1, 8, 8, 8])
    return _classes(x)


def gated_rows(image: Any) -> Any:
    x, skips = L.Reshape((64, 3))(image), []
    for dilation in (1, 2):
        gated = L.SeparableConv1D(8, 2, padding="causal", dilation_rate=dilation)(x)
        signal, gate = tf.split(gated, 2, axis=-1)
        x = L.Conv1D(4, 1)(tf.tanh(signal) * tf.sigmoid(gate))
        skips.append(L.DepthwiseConv1D(3, padding="same")(x))
    return L.Dense(4)(tf.reduce_mean(tf.nn.relu(tf.add_n(skips)), axis=1))


def encoder_decoder(image: Any) -> Any:
    fine = _conv(image, 6)
    x = _conv(tf.nn.max_pool2d(fine, 2, 2, "VALID"), 8)
    up = {"strides": 2, "padding": "same", "output_padding": 1}
    x = tf.concat([L.Conv2DTranspose(6, 3, activation="relu", **up)(x), fine], axis=-1)
    return L.Conv2D(2, 1)(_conv(x, 6))


def patches(image: Any) -> Any:
    positions = np.random.default_rng(0).normal(size=(1, 16, 8)).astype(np.float32)
    x = tf.reshape(L.Conv2D(8, 2, 2)(image), [-1, 16, 8]) + positions
    x = x + L.Dense(8)(L.Dense(16, activation="gelu")(x))
    return L.Dense(4)(tf.reduce_mean(x, axis=1))


def hard_swish(image: Any) -> Any:
    x = _conv(image, 6, rectified=False)
    x = x * tf.minimum(tf.maximum(x + 3, 0), 6) / 6
    x = _conv(x, 6, rectified=False)
    return _classes(x * keras.backend.relu(x + 3.0, max_value=6.0) / 6)


BLOCKS = (
    *(cbam, resnet_option_a, super_resolution, channel_shuffle),
    *(gated_rows, encoder_decoder, patches, hard_swish),
)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_blocks_are_integers_from_end_to_end(block, bits, path):
    keras.utils.set_random_seed(bits)
    image = keras.Input((8, 8, 3), name="image")
    model = keras.Model(image, block(image))
    make_realistic(model)
    policy = sat_tf.BitPolicy.mobile(bits)
    assert sat_tf.explain(model, policy).problems == ()
    report, proof = proved(calibrated(model, policy), path)
    assert [line.split()[0] for line in report.float_operators] == ["DEQUANTIZE"]
    assert proof.runtimes["xnnpack"].outputs_differing == 0
