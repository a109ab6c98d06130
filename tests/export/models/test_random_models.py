"""Graphs nobody has thought of, from the whole set of operations: no code differs."""

import dataclasses
import pathlib
import tempfile
import warnings
from typing import Any

import numpy as np
import pytest
import tf_keras as keras
from hypothesis import HealthCheck, given, reject
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import sat_tf
from sat_tf.qat.policy import BitPolicy
from tests.export.zoo import images_for, make_realistic

layers = keras.layers
Draw = Any

_MOST_CHANNELS = 24
_LARGEST_SIZE = 12


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a random model is quantized and exported."""

    policy: BitPolicy
    calibrated: bool
    level_factor: float
    seed: int
    float_head: bool
    pack: str


@st.composite
def settings(draw: Draw) -> Settings:
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
    return Settings(
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
    image = layers.Input((*shape, draw(st.sampled_from([1, 3, 4]))))
    tensors = [image]
    for _ in range(draw(st.integers(1, 8))):
        block = draw(st.sampled_from(_BLOCKS))
        made = block(draw, tensors)
        if made is not None and made.shape[-1] <= _MOST_CHANNELS:
            tensors.append(made)
    return keras.Model(image, _end(draw, tensors[-1]))


def quantized(model: keras.Model, chosen: Settings) -> keras.Model:
    """The model with random weights and statistics, as it is exported."""
    keras.utils.set_random_seed(chosen.seed)
    make_realistic(model, chosen.seed)
    found = sat_tf.quantize_model(model, chosen.policy)
    if chosen.calibrated:
        sat_tf.calibrate(found, images_for(found, 8).astype(np.float32))
    rng = np.random.default_rng(chosen.seed)
    for layer in found.layers:
        level = getattr(layer, "output_variables", {}).get("clipping_level")
        if level is not None and chosen.level_factor != 1.0:
            level.assign(max(float(level) * chosen.level_factor * rng.uniform(0.5, 2.0), 1e-3))
        skew = getattr(layer, "output_variables", {}).get("skew")
        if skew is not None:
            skew.assign(rng.choice([float(skew), -1.0, -0.4, 0.02, 0.7, 1.0]))
    return found


# -- blocks: each takes the tensors so far, and returns another one, or None where nothing fits --


def _any(draw: Draw, tensors: list[Any]) -> Any:
    return tensors[draw(st.integers(max(len(tensors) - 3, 0), len(tensors) - 1))]


def _finish(draw: Draw, x: Any) -> Any:
    """Adds normalizations and rectifiers, in any order, behind a linear layer."""
    for part in draw(st.sampled_from(["", "n", "nr", "r", "rn", "n6", "nnr", "a"])):
        if part == "n":
            x = layers.BatchNormalization(
                scale=draw(st.booleans()), center=draw(st.booleans()), epsilon=1e-3
            )(x)
        elif part == "r":
            x = layers.ReLU()(x)
        elif part == "6":
            x = layers.ReLU(6.0)(x)
        else:
            x = layers.Activation("relu")(x)
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
    return _finish(draw, layers.Conv2D(filters, use_bias=draw(st.booleans()), **window)(x))


def _depthwise(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    window = _window(draw, x)
    multiplier = draw(st.sampled_from([1, 1, 2]))
    if window is None or x.shape[-1] * multiplier > _MOST_CHANNELS:
        return None
    layer = layers.DepthwiseConv2D(
        depth_multiplier=multiplier, use_bias=draw(st.booleans()), **window
    )
    return _finish(draw, layer(x))


def _pointwise(draw: Draw, tensors: list[Any]) -> Any:
    return _finish(draw, layers.Dense(draw(st.integers(1, 9)))(_any(draw, tensors)))


def _normalization(draw: Draw, tensors: list[Any]) -> Any:
    return _finish(draw, layers.BatchNormalization()(_any(draw, tensors)))


def _pooling(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    size = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    padding = draw(st.sampled_from(["same", "valid"]))
    if padding == "valid" and any(k > n for k, n in zip(size, x.shape[1:3], strict=True)):
        return None
    kind = draw(st.sampled_from([layers.MaxPooling2D, layers.AveragePooling2D]))
    return kind(size, draw(st.integers(1, 2)), padding)(x)


def _sum(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    fitting = [tensor for tensor in tensors if tensor.shape == x.shape]
    if len(fitting) < 2:
        window = {"kernel_size": 3, "padding": "same"}
        fitting.append(_finish(draw, layers.Conv2D(x.shape[-1], **window)(x)))
    count = draw(st.integers(2, min(len(fitting), 4)))
    x = layers.Add()(draw(st.permutations(fitting))[:count])
    return layers.ReLU()(x) if draw(st.booleans()) else x


def _concatenation(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    fitting = [tensor for tensor in tensors if tensor.shape[1:3] == x.shape[1:3]]
    parts = draw(st.permutations(fitting))[: draw(st.integers(1, 3))]
    branches = [
        _finish(draw, layers.Conv2D(draw(st.integers(1, 5)), 1)(x))
        for _ in range(draw(st.integers(0 if len(parts) > 1 else 1, 2)))
    ]
    x = layers.Concatenate(axis=draw(st.sampled_from([-1, 3])))([*parts, *branches])
    return layers.ReLU()(x) if draw(st.booleans()) else x


def _movement(draw: Draw, tensors: list[Any]) -> Any:
    x = _any(draw, tensors)
    kind = draw(st.sampled_from(["pad", "reshape", "dropout"]))
    if kind == "pad":
        margins = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(2)]
        if any(n > _LARGEST_SIZE for n in x.shape[1:3]):
            return None
        return layers.ZeroPadding2D(tuple(margins))(x)
    if kind == "reshape":
        return layers.Reshape((x.shape[2], x.shape[1], x.shape[3]))(x)
    return layers.Dropout(0.3)(x)


_BLOCKS = (
    *(_convolution, _convolution, _depthwise, _pointwise, _normalization, _pooling, _sum, _sum),
    *(_concatenation, _movement),
)


def _end(draw: Draw, x: Any) -> Any:
    pool = draw(st.sampled_from(["mean", "keep", "flat", "none"]))
    if pool == "none":
        return layers.Dense(3)(x)
    if pool == "flat":
        x = layers.Flatten()(x)
    else:
        x = layers.GlobalAveragePooling2D(keepdims=pool == "keep")(x)
    for _ in range(draw(st.integers(0, 2))):
        x = layers.Dense(draw(st.integers(2, 8)), activation=draw(st.sampled_from([None, "relu"])))(
            x
        )
    return layers.Dense(3, activation=draw(st.sampled_from([None, "softmax"])))(x)


_MANY = 3000
_FEW = 25
# A summand of which every code but 0 is beyond all that the sum can be.
_NO_KERNEL = "times smaller than those of a tensor it adds"
_NOTHING_FITS = "received no kernel that fits into 4 bits"
_SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


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


def _check(count: int):
    return hypothesis_settings(
        max_examples=count,
        deadline=None,
        derandomize=count == _FEW,
        suppress_health_check=_SLOW_TO_DRAW,
        print_blob=True,
    )


@pytest.mark.thorough
@_check(_FEW)
@given(float_models(), settings())
def test_a_few_random_models_are_computed_exactly(model, chosen):
    _no_code_differs(model, chosen)


@pytest.mark.slow
@_check(_MANY)
@given(float_models(), settings())
def test_thousands_of_random_models_are_computed_exactly(model, chosen):
    _no_code_differs(model, chosen)
