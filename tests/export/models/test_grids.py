"""Policies of every grid and method, and random graphs: exported exactly, or refused before."""

import pathlib
import tempfile
import types
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import HealthCheck, given, reject
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import sat_tf
from sat_tf.core.grid import GRIDS
from sat_tf.exact.operations.linear import Linear
from sat_tf.exact.tflite.tensors import Storage
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import GRID_NAMES
from sat_tf.training import models
from tests.export.proofs import calibrated, deployed, proved
from tests.export.zoo import chain, images_for, make_realistic, through
from tests.methods import METHODS
from tests.training.small_networks import build_small

L = keras.layers


def _of_layers(*names: str, size: int = 3) -> keras.Model:
    """A first layer, those of these names, and a last one."""
    keras.utils.set_random_seed(5)
    stem = L.Conv2D(4, 3, activation="relu", name="stem")
    inner = [L.Conv2D(4, size, activation="relu", name=name) for name in names]
    return chain((6, 6, 3), stem, *inner, L.Flatten(), L.Dense(3, name="classifier"))


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["mobile", "paper"])
@pytest.mark.parametrize("grid", GRID_NAMES)
@pytest.mark.parametrize("weight_range", ["layer", "channel"])
@pytest.mark.filterwarnings("ignore:weight_grid=")  # grids that train badly
def test_layers_of_all_bits_are_exported_exactly_on_every_grid(grid, preset, weight_range, path):
    bits = {f"inner_{bits}": {"weight_bits": bits} for bits in range(1, 9)}
    if grid in GRIDS and GRIDS[grid].fewest_bits > 1:
        bits["inner_1"] = {"weight_bits": 1, "weight_grid": "dorefa"}
    fields = {"weight_grid": grid, "weight_range": weight_range, "overrides": bits}
    fields |= {"first_last_weight_grid": "auto"} if preset == "paper" else {}
    policy = getattr(BitPolicy, preset)(4, **fields)
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
    configs = [getattr(layer, "quantize_config", None) for layer in quantized.layers]
    kernels = [config.weights for config in configs if config]
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
    quantized = calibrated(model, BitPolicy.mobile(bits, **METHODS[method]), images)
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
    image = keras.Input((32, 32, 3), name="image")
    first = through(image, "block conv 6 strides=2")
    x = through(first, "block conv 12 1 | block depthwise | conv 6 1 | norm")
    model = keras.Model(image, L.Dense(10)(L.GlobalAveragePooling2D()(L.Add()([first, x]))))
    quantized = _trained(model, method, 4, images.astype(np.float32))
    before = proved(quantized, path, images[:4])[1].trained_differing
    sat_tf.export.snap_biases(quantized)
    assert proved(quantized, path, images[:4])[1].trained_differing < before


# LSQ's codes need as many bits as they have, but where a negative γ turns -8 into 8, or -2 into 2.
@pytest.mark.thorough
@pytest.mark.parametrize(("bits", "pack"), [(2, "int2"), (3, "auto"), (4, "auto")])
def test_weights_of_lsq_are_stored_in_their_own_bits(bits, pack):
    model = build_small("mobilenet_v2")
    policy = BitPolicy.mobile(bits, **METHODS["lsq"])
    graph = deployed(sat_tf.quantize_model(model, policy), pack=pack)
    linear = [operation for operation in graph.operations if isinstance(operation, Linear)]
    storages = [operation.storage for operation in linear if operation.is_product]
    assert storages.count(Storage.INT8) <= 1  # the classifier has 8 bits
    assert {*storages} - {Storage.INT8} == {Storage.INT2 if pack == "int2" else Storage.INT4}


def _conv(x: Any, filters: int, strides: int = 1, *, size: int = 3, rectified: bool = True) -> Any:
    x = through(x, f"conv {filters} {size} strides={strides} | norm")
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
    policy = BitPolicy.mobile(bits)
    assert sat_tf.explain(model, policy).problems == ()
    report, proof = proved(calibrated(model, policy), path)
    assert [line.split()[0] for line in report.float_operators] == ["DEQUANTIZE"]
    assert proof.runtimes["xnnpack"].outputs_differing == 0


Draw = Any

_MOST_CHANNELS = 24
_LARGEST_SIZE = 12


@st.composite
def settings(draw: Draw) -> types.SimpleNamespace:
    """Any policy whose weights fit int8 and whose streams are signed or float."""
    grid = draw(st.sampled_from(["auto", "dorefa", "narrow", "rounded"]))
    widest = {"auto": 8, "narrow": 8}.get(grid, 7)
    bits = draw(st.integers(2 if grid in ("narrow", "rounded") else 1, widest))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # narrow at 2 bits trains badly
        policy = BitPolicy(
            weight_bits=bits,
            activation_bits=draw(st.integers(2, 8)),
            stream_bits=draw(st.sampled_from([8, 8, None])),
            weight_grid=grid,
            weight_range=draw(st.sampled_from(["layer", "channel"])),
            first_last_weight_bits=None if grid == "dorefa" or grid == "rounded" else 8,
            rescale=draw(st.sampled_from(["constant", "stddev", "none"])),
        )
    return types.SimpleNamespace(
        policy=policy,
        # The range of codes that are made of float streams is known from data alone.
        calibrated=policy.stream_bits is None or draw(st.booleans()),
        level_factor=draw(st.sampled_from([1.0, 1.0, 0.3, 1e-2, 1e3])),
        seed=draw(st.integers(0, 10_000)),
        float_head=draw(st.booleans()),
        pack=draw(st.sampled_from(["auto", "auto", "none", "int2"])),
    )


@st.composite
def float_models(draw: Draw) -> keras.Model:
    """A graph of up to eight blocks, from the whole set of operations."""
    keras.backend.clear_session()
    shape = (draw(st.integers(4, _LARGEST_SIZE)), draw(st.integers(4, _LARGEST_SIZE)))
    image = L.Input((*shape, draw(st.sampled_from([1, 3, 4]))))
    tensors = [image]
    for _ in range(draw(st.integers(1, 8))):
        made = draw(st.sampled_from(_PARTS))(draw, tensors)
        if made is not None and made.shape[-1] <= _MOST_CHANNELS:
            tensors.append(made)
    return keras.Model(image, _end(draw, tensors[-1]))


def quantized(model: keras.Model, chosen: types.SimpleNamespace) -> keras.Model:
    """The model with random weights and statistics, as it is exported."""
    keras.utils.set_random_seed(chosen.seed)
    make_realistic(model, chosen.seed)
    found = sat_tf.quantize_model(model, chosen.policy)
    if chosen.calibrated:
        sat_tf.calibrate(found, images_for(found, 8).astype(np.float32))
    rng = np.random.default_rng(chosen.seed)
    for layer in found.layers:
        variables = getattr(layer, "output_variables", {})
        level, skew = variables.get("clipping_level"), variables.get("skew")
        if level is not None and chosen.level_factor != 1.0:
            level.assign(max(float(level) * chosen.level_factor * rng.uniform(0.5, 2.0), 1e-3))
        if skew is not None:
            skew.assign(rng.choice([float(skew), -1.0, -0.4, 0.02, 0.7, 1.0]))
    return found


# -- blocks: each takes the tensors so far, and returns another one, or None where nothing fits --


def _any(draw: Draw, tensors: list[Any]) -> Any:
    return tensors[draw(st.integers(max(len(tensors) - 3, 0), len(tensors) - 1))]


_RECTIFIERS = {
    "r": L.ReLU,
    "6": lambda: L.ReLU(6.0),
    "a": lambda: L.Activation("relu"),
}


def _finish(draw: Draw, x: Any) -> Any:
    """Adds normalizations and rectifiers, in any order, behind a linear layer."""
    for part in draw(st.sampled_from(["", "n", "nr", "r", "rn", "n6", "nnr", "a"])):
        if part == "n":
            settings = {"scale": draw(st.booleans()), "center": draw(st.booleans())}
            x = L.BatchNormalization(epsilon=1e-3, **settings)(x)
        else:
            x = _RECTIFIERS[part]()(x)
    return x


def _window(draw: Draw, x: Any) -> dict[str, Any] | None:
    """Kernel, strides, padding and dilation that fit the tensor."""
    size = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    dilation = draw(st.sampled_from([1, 1, 1, 2]))
    stride = 1 if dilation > 1 else draw(st.sampled_from([1, 1, 2, 3]))
    padding = draw(st.sampled_from(["same", "valid"]))
    extent = [(k - 1) * dilation + 1 for k in size]
    if padding == "valid" and any(e > n for e, n in zip(extent, x.shape[1:3], strict=True)):
        return None
    return {"kernel_size": size, "strides": stride, "padding": padding, "dilation_rate": dilation}


def _convolution(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    window = _window(draw, x)
    if window is None:
        return None
    filters = draw(st.integers(1, 9))
    return _finish(draw, L.Conv2D(filters, use_bias=draw(st.booleans()), **window)(x))


def _depthwise(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    window = _window(draw, x)
    multiplier = draw(st.sampled_from([1, 1, 2]))
    if window is None or x.shape[-1] * multiplier > _MOST_CHANNELS:
        return None
    settings = {"depth_multiplier": multiplier, "use_bias": draw(st.booleans()), **window}
    return _finish(draw, L.DepthwiseConv2D(**settings)(x))


def _of_channels(draw: Draw, tensors: list[Any]) -> Any:
    dense = L.Dense(draw(st.integers(1, 9)))
    layer = draw(st.sampled_from([dense, L.BatchNormalization()]))
    return _finish(draw, layer(_any(draw, tensors)))


def _pooling(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    size = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    padding = draw(st.sampled_from(["same", "valid"]))
    if padding == "valid" and any(k > n for k, n in zip(size, x.shape[1:3], strict=True)):
        return None
    kind = draw(st.sampled_from([L.MaxPooling2D, L.AveragePooling2D]))
    return kind(size, draw(st.integers(1, 2)), padding)(x)


def _sum(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    fitting = [tensor for tensor in tensors if tensor.shape == x.shape]
    if len(fitting) < 2:
        window = {"kernel_size": 3, "padding": "same"}
        fitting.append(_finish(draw, L.Conv2D(x.shape[-1], **window)(x)))
    count = draw(st.integers(2, min(len(fitting), 4)))
    x = L.Add()(draw(st.permutations(fitting))[:count])
    return L.ReLU()(x) if draw(st.booleans()) else x


def _concatenation(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    fitting = [tensor for tensor in tensors if tensor.shape[1:3] == x.shape[1:3]]
    parts = draw(st.permutations(fitting))[: draw(st.integers(1, 3))]
    branches = [
        _finish(draw, L.Conv2D(draw(st.integers(1, 5)), 1)(x))
        for _ in range(draw(st.integers(0 if len(parts) > 1 else 1, 2)))
    ]
    x = L.Concatenate(axis=draw(st.sampled_from([-1, 3])))([*parts, *branches])
    return L.ReLU()(x) if draw(st.booleans()) else x


def _movement(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    kind = draw(st.sampled_from(["pad", "reshape", "dropout"]))
    if kind == "pad":
        margins = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(2))
        return L.ZeroPadding2D(margins)(x) if max(x.shape[1:3]) <= _LARGEST_SIZE else None
    if kind == "reshape":
        return L.Reshape((x.shape[2], x.shape[1], x.shape[3]))(x)
    return L.Dropout(0.3)(x)


_PARTS = (
    *(_convolution, _convolution, _depthwise, _of_channels, _of_channels, _pooling, _sum, _sum),
    *(_concatenation, _movement),
)


def _end(draw: Draw, x: Any) -> Any:
    pool = draw(st.sampled_from(["mean", "keep", "flat", "none"]))
    if pool == "none":
        return L.Dense(3)(x)
    mean = L.GlobalAveragePooling2D(keepdims=pool == "keep")
    x = L.Flatten()(x) if pool == "flat" else mean(x)
    for _ in range(draw(st.integers(0, 2))):
        x = L.Dense(draw(st.integers(2, 8)), draw(st.sampled_from([None, "relu"])))(x)
    return L.Dense(3, draw(st.sampled_from([None, "softmax"])))(x)


# A summand of which every code but 0 is beyond all that the sum can be.
_NO_KERNEL = "times smaller than those of a tensor it adds"
_NOTHING_FITS = "received no kernel that fits into 4 bits"


def _no_code_differs(model, chosen) -> None:
    exported = quantized(model, chosen)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        float_head = chosen.float_head and len(exported.output_shape) == 2
        try:
            sat_tf.export_tflite(exported, path, float_head=float_head, pack=chosen.pack)
        except ValueError as refusal:
            if _NO_KERNEL not in str(refusal) and _NOTHING_FITS not in str(refusal):
                raise
            reject()
        certificate = sat_tf.verify_tflite(exported, path, images_for(exported, 4))
    xnnpack = certificate.runtimes["xnnpack"]
    assert xnnpack.codes_compared > 0
    assert {t.name: t.codes_differing for t in xnnpack.tensors if t.codes_differing} == {}
    assert xnnpack.outputs_differing == 0


def _examples(count: int, **more: bool):
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    more |= {"deadline": None, "suppress_health_check": checks, "print_blob": True}
    return hypothesis_settings(max_examples=count, **more)


@pytest.mark.thorough
@_examples(25, derandomize=True)
@given(float_models(), settings())
def test_a_few_random_models_are_computed_exactly(model, chosen):
    _no_code_differs(model, chosen)


@pytest.mark.slow
@_examples(3000, derandomize=False)
@given(float_models(), settings())
def test_thousands_of_random_models_are_computed_exactly(model, chosen):
    _no_code_differs(model, chosen)
