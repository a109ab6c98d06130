import re
from collections.abc import Callable

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.pact import StreamQuantizer
from tests.export.zoo import block, chain, convolution, head, separable, set_clipping_levels

layers = keras.layers
quantize = sat_tf.quantize_model


def _ending_in(*end: keras.layers.Layer) -> keras.Model:
    return chain((6, 7, 3), layers.Conv2D(4, 3, activation="relu"), *end)


def _sum(count: int = 2, *, behind: tuple[keras.layers.Layer, ...] = ()) -> keras.Model:
    """A sum of convolutions, and layers behind it."""
    image = layers.Input((6, 6, 3))
    x = layers.Add(name="sum")([layers.Conv2D(4, 3, name=f"part_{i}")(image) for i in range(count)])
    for layer in (*behind, layers.Flatten(), layers.Dense(3)):
        x = layer(x)
    return keras.Model(image, x)


def _sum_of_unequal_ranks() -> keras.Model:
    image = layers.Input((6, 6, 3))
    x = layers.Conv2D(4, 3)(image)
    x = layers.Add(name="sum")([x, layers.GlobalAveragePooling2D()(x)])
    return keras.Model(image, layers.Dense(3)(layers.Flatten()(x)))


def _always_training() -> keras.Model:
    image = layers.Input((6, 6, 3))
    x = layers.BatchNormalization(name="norm")(layers.Conv2D(4, 3)(image), training=True)
    x = layers.Dropout(0.2, name="dropout")(layers.Flatten()(x), training=True)
    return keras.Model(image, layers.Dense(3)(x))


def _with_weights(part_of_name: str, value: float) -> keras.Model:
    model = quantize(separable())
    for weight in model.weights:
        if part_of_name in weight.name:
            weight.assign(np.full(weight.shape, value))
    return model


def _with_clipping_levels(value: float) -> keras.Model:
    model = quantize(separable())
    set_clipping_levels(value)(model)
    return model


def _with_a_small_sum() -> keras.Model:
    model = quantize(_sum())
    model.get_layer("quant_sum").output_variables["clipping_level"].assign(1e-3)
    return model


def _with_stream_bits(model: keras.Model, num_bits: int) -> keras.Model:
    """A model as some were saved that are refused today when they are quantized."""
    for layer in model.layers:
        config = getattr(layer, "quantize_config", None)
        if config is not None and isinstance(config.output, StreamQuantizer):
            config.output = StreamQuantizer(**{**config.output.get_config(), "num_bits": num_bits})
    return model


def _with_setting(layer: keras.layers.Layer, setting: str, value: object) -> keras.Model:
    """A model as some were saved that are refused today when they are quantized."""
    model = quantize(_ending_in(layer, layers.Dense(3)))
    setattr(inner_layer(model.get_layer(f"quant_{layer.name}")), setting, value)
    return model


def _called_twice() -> keras.Model:
    model = quantize(chain((8, 8, 3), layers.Conv2D(3, 3, padding="same", name="again")))
    layer = model.get_layer("quant_again")
    return keras.Model(model.input, layer(model.output))


# Models by what is wrong with them, and for each problem what its line says.
REFUSED: dict[str, tuple[Callable[[], keras.Model], list[str]]] = {
    "8-bit DoReFa weights": (
        lambda: quantize(separable(), BitPolicy.paper(8, weight_grid="dorefa")),
        [
            r"conv2d.*: received 8-bit weights on the dorefa grid, whose codes reach 255",
            r"depthwise_conv2d.*: received 8-bit weights",
            r"conv2d.*: received 8-bit weights",
            r"dense.*: received 8-bit weights .* or with 7 bits",
        ],
    ),
    "8-bit rounded weights": (
        lambda: quantize(
            _ending_in(*head()), BitPolicy(first_last_weight_grid="rounded", stream_bits=None)
        ),
        [
            r"conv2d.*: received 8-bit weights on the rounded grid, whose codes reach 128",
            r"dense.*: received 8-bit weights",
        ],
    ),
    "float weights": (
        lambda: quantize(_ending_in(*head()), BitPolicy(weight_bits=None)),
        [r"conv2d.*: .* weights are not quantized", r"dense.*: .* sat_tf.requantize"],
    ),
    "signed streams of 4 bits in sums": (
        lambda: _with_stream_bits(quantize(_sum()), 4),
        [rf"{name}: received a signed stream of 4 bits" for name in ("part_0", "part_1", "sum")],
    ),
    "a sum of unequal ranks": (
        lambda: quantize(_sum_of_unequal_ranks()),
        [r"sum: received tensors with 1 and 3 axes .* put a Reshape"],
    ),
    "layers that always train": (
        lambda: quantize(_always_training()),
        [r"norm: .* training=True, .* without it", r"dropout: .* training=True, .* without it"],
    ),
    "channels first": (
        lambda: _with_setting(layers.Flatten(name="flatten"), "data_format", "channels_first"),
        [r"flatten: received data_format='channels_first', expected 'channels_last'"],
    ),
    "a softmax over rows": (
        lambda: _with_setting(layers.Softmax(name="softmax"), "axis", 1),
        [r"softmax: received axis=1, expected the last one; use axis=-1"],
    ),
    "negative variances": (
        lambda: _with_weights("moving_variance", -1.0),
        [r"batch_normalization.*: .* variance plus epsilon of -0.9\d+, .* sat_tf.calibrate"] * 3,
    ),
    "NaN weights": (
        lambda: _with_weights("kernel", np.nan),
        [r"kernel:0: received \d+ values of \d+ that are NaN .* checkpoint"] * 4,
    ),
    "clipping levels next to zero": (
        lambda: _with_clipping_levels(1e-42),
        [r"(re_lu|global).*: received the clipping level 1.\d*e-42, expected one from"] * 4,
    ),
    "clipping levels beyond float32": (
        lambda: _with_clipping_levels(1e33),
        [r"(re_lu|global).*: received the clipping level 1e\+33, expected one from"] * 4,
    ),
    "a sum much smaller than what it adds": (
        _with_a_small_sum,
        [r"sum: received a sum with scales .* times smaller .* sat_tf.calibrate"],
    ),
    "a float model": (
        separable,
        [r"received a model without quantized layers, .* sat_tf.quantize_model"],
    ),
    "a model in a model": (
        lambda: keras.Sequential([quantize(separable()), layers.Softmax()]),
        [r"received a model inside the model, .* sat_tf.graph.flatten.flatten\(model\)"],
    ),
    "a layer called twice": (
        _called_twice,
        [r"again: received a layer that is called more than once"],
    ),
    "images of any size": (
        lambda: quantize(chain((None, None, 3), *block(convolution(4)), *head())),
        [r"input.*: received the input shape \(None, None, 3\), expected fixed sizes"],
    ),
    "no model": (lambda: None, [r"received builtins.NoneType, expected a tf_keras model"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_exact_integer_form_is_refused_by_layer_with_the_fix(case, tmp_path):
    build, expected = REFUSED[case]
    model, path = build(), tmp_path / "model.tflite"
    path.write_bytes(b"older")
    with pytest.raises(ValueError, match=r"received (.|\n)*expected") as refusal:
        sat_tf.export_tflite(model, path)
    lines = str(refusal.value).splitlines()
    problems = [line for line in lines if line.startswith("  - ")] or lines
    assert len(problems) == len(expected)
    for pattern, problem in zip(expected, problems, strict=True):
        assert re.search(pattern, problem)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_float_head_needs_a_dense_layer_at_the_end(tmp_path):
    model = quantize(_ending_in(layers.Conv2D(4, 1)))
    with pytest.raises(ValueError, match=r"float_head=True: received .* float_head=False"):
        sat_tf.export_tflite(model, tmp_path / "model.tflite", float_head=True)
    assert not list(tmp_path.iterdir())


def test_the_converter_route_refuses_the_same_models():
    with pytest.raises(ValueError, match=r"sum: received tensors with 1 and 3 axes"):
        sat_tf.export.to_keras(quantize(_sum_of_unequal_ranks()))
