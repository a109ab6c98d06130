"""Small models of many kinds, as users bring them, and what the export makes of each.

Weights are random and nothing is trained, but normalizations are as hard as trained ones get: γ is
negative, zero, next to zero and huge, some channels are dead, some biases are large.
"""

import ast
import dataclasses
import functools
import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy

layers = keras.layers
ReLU, Dense, normalization = layers.ReLU, layers.Dense, layers.BatchNormalization
Builder = Callable[[], keras.Model]

# The first channels of every normalization have these; the others are plain.
_EXTREME_GAMMAS = (0.0, 1e-7, -1e-12, 40.0)


def convolution(filters: int, size=3, **settings) -> keras.layers.Layer:
    return layers.Conv2D(filters, size, **{"padding": "same", "use_bias": False, **settings})


def depthwise(size=3, **settings) -> keras.layers.Layer:
    return layers.DepthwiseConv2D(size, **{"padding": "same", "use_bias": False, **settings})


@dataclasses.dataclass(frozen=True)
class Specimen:
    """A model of the zoo."""

    build: Builder  # Makes the float model.
    policy: BitPolicy = dataclasses.field(default_factory=lambda: BitPolicy.mobile(4))
    float_head: bool = False  # Exported with a float head.
    calibrated: bool = True  # Clipping levels, statistics and ranges come from images.
    annotated: bool = False  # The model is annotated by hand.
    change: Callable[[keras.Model], None] = lambda model: None  # Changes the quantized model.
    differing: float = 0.02  # The share of a tensor's codes that may differ, by biases.
    combines_many: bool = False  # A sum or a product is of more than two tensors.
    largest: int = 1  # By how many codes they may differ.
    functions: tuple[str, ...] = ()  # The layers that are computed in float32.

    def quantized(self) -> keras.Model:
        """The model as it is exported."""
        keras.utils.set_random_seed(1)
        model = self.build()
        make_realistic(model)
        if self.annotated:
            scheme = sat_tf.SatQuantizeScheme(self.policy)
            model = tfmot.quantization.keras.quantize_apply(model, scheme=scheme)
        else:
            model = sat_tf.quantize_model(model, self.policy)
        if self.calibrated:
            input_range = self.policy.range_of(model.input_names[0])
            sat_tf.calibrate(model, input_range.fed(images_for(model)))
        self.change(model)
        return model


def images_for(model: keras.Model, count: int = 32) -> np.ndarray:
    """Random uint8 images."""
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (count, *model.input_shape[1:])).astype(np.uint8)


def make_realistic(model: keras.Model, seed: int = 1) -> None:
    """Gives a float model weights that are hard to export."""
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        layer = getattr(layer, "layer", layer)  # inside an annotation
        for variable in layer.weights:
            name = variable.name.split("/")[-1].split(":")[0]
            variable.assign(_realistic(name, tuple(variable.shape), rng))


def _realistic(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name == "gamma":
        gamma = rng.normal(1.0, 0.4, shape) * rng.choice([-1.0, 1.0], shape)
        if len(gamma) > len(_EXTREME_GAMMAS):
            gamma[: len(_EXTREME_GAMMAS)] = _EXTREME_GAMMAS
        return gamma
    if name == "moving_variance":
        return rng.uniform(0.3, 2.0, shape)
    if name == "bias":
        return rng.normal(0.0, 1.0, shape) * rng.choice([0.1, 1.0, 20.0], shape)
    if name in ("beta", "moving_mean"):
        return rng.normal(0.0, 0.7, shape)
    kernel = rng.normal(0.0, 1.0 / np.sqrt(np.prod(shape[:-1])), shape)
    if len(shape) == 4 and shape[-1] > 1:
        kernel[..., -1] = 0.0  # on grids with a zero this channel is dead, its variance zero
    return kernel


def move_clipping_levels(
    level_of: Callable[[tf.Variable], Any], name: str = ""
) -> Callable[[keras.Model], None]:
    """Moves the clipping levels of a model, or the one of the layer of a name."""

    def change(model: keras.Model) -> None:
        for layer in model.layers:
            level = getattr(layer, "output_variables", {}).get("clipping_level")
            if level is not None and layer.name.endswith(name):
                level.assign(level_of(level))

    return change


def forget_variances(model: keras.Model) -> None:
    """Sets the moving variance of some channels to zero, as dead ones have it."""
    for layer in map(inner_layer, model.layers):
        if isinstance(layer, layers.BatchNormalization):
            layer.moving_variance.assign([*layer.moving_variance[:-2], 0.0, 0.0])


_SHORT_NAMES = {"conv": convolution, "depthwise": depthwise, "norm": normalization}


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


def layers_of(text: str) -> list[keras.layers.Layer]:
    """Layers by their names and arguments, with a normalization and a rectifier behind a `block`.

    >>> [type(layer).__name__ for layer in layers_of("block conv 8 strides=2 | MaxPooling2D (1,2)")]
    ['Conv2D', 'BatchNormalization', 'ReLU', 'MaxPooling2D']
    """
    made = []
    for part in text.split(" | "):
        name, *words = part.removeprefix("block ").split()
        settings = dict(word.split("=") for word in words if "=" in word)
        settings = {key: _value(setting) for key, setting in settings.items()}
        arguments = [_value(word) for word in words if "=" not in word]
        kind = _SHORT_NAMES.get(name) or getattr(layers, name)
        made += [kind(*arguments, **settings)]
        made += [normalization(), ReLU()] if part.startswith("block ") else []
    return made


def through(tensor: Any, text: str) -> Any:
    """What layers in a row make of a tensor."""
    return functools.reduce(lambda made, layer: layer(made), layers_of(text), tensor)


def chain(shape: tuple[int, ...], *rest: keras.layers.Layer | str) -> keras.Model:
    """A sequential model of layers, which texts may stand for."""
    parts = (layers_of(part) if isinstance(part, str) else [part] for part in rest)
    return keras.Sequential([layers.Input(shape), *itertools.chain(*parts)])


def block(*rest: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Layers with a normalization and a rectifier behind each."""
    return [part for layer in rest for part in (layer, normalization(), ReLU())]


def head(classes: int = 4) -> list[keras.layers.Layer]:
    return [layers.GlobalAveragePooling2D(), Dense(classes)]


_HEAD, _FLAT_HEAD = "GlobalAveragePooling2D | Dense 4", "Flatten | Dense 3"


def windows(shape: tuple[int, ...], size: int, stride: int, dilation: int = 1) -> Builder:
    """The same kernel with and without padding, beside each other."""

    def build() -> keras.Model:
        image = layers.Input(shape)
        pooled = []
        for padding in ("same", "valid"):
            settings = {"strides": stride, "padding": padding, "dilation_rate": dilation}
            x = layers.Conv2D(6, size, activation="relu", **settings)(image)
            pooled.append(layers.GlobalAveragePooling2D()(x))
        return keras.Model(image, Dense(3)(layers.Add()(pooled)))

    return build


# Models of layers in a row: the name, the shape of an image, and the layers; lines go on where they
# are indented. `mean` stands for the end with a global mean, and `flat` for that with a Flatten.
_CHAINS = """
# Windows.
depthwise: 15,12,4 | block depthwise 5 | block depthwise strides=2 padding=valid
    | block depthwise strides=2 | mean
uneven_windows: 18,19,3 | block conv 8 (1,5) strides=(2,1) | MaxPooling2D (3,2) (1,2) same
    | block conv 7 (4,2) dilation_rate=(1,3) | AveragePooling2D (1,3) (2,1) | flat
depth_multiplier: 9,9,3 | block depthwise depth_multiplier=2
    | block depthwise depth_multiplier=3 strides=2 | block conv 5 1 | mean
depth_multiplier_of_one_channel: 9,10,1
    | DepthwiseConv2D 3 depth_multiplier=6 strides=2 activation=relu | flat
# Dense layers.
flat_pixels: 20, | Dense 12 relu | Dense 5
flat_pixels_normalized: 20, | norm | block Dense 12 | block Dense 9 | Dense 5 | norm
flattened: 6,7,1 | Flatten | Dense 12 relu | Dense 5
dense_on_pixels: 6,5,3 | block Dense 8 | Dense 7 relu | mean
dense_on_a_sequence: 6,5,3 | conv 8 | Reshape (30,8) | block Dense 8 | Dense 6 | norm
    | Reshape (5,6,6) | ReLU | mean
# Normalizations and rectifiers: behind the image, a rectifier, each other and a pooling.
rectified_convolutions: 8,8,3 | Conv2D 6 3 activation=relu | DepthwiseConv2D 3 activation=relu
    | Conv2D 6 1 activation=relu | flat
normalizations_alone: 8,8,6 | norm | Conv2D 8 3 activation=relu | norm | norm scale=False | ReLU
    | conv 8 | norm center=False epsilon=1e-5 | MaxPooling2D | ReLU | norm scale=False center=False
    | Flatten | Dense 3 use_bias=False
relu6: 8,8,3 | conv 8 | norm | ReLU 6.0 | conv 8 | norm | ReLU 1.0 | Activation relu6 | mean
# A convolution and a depthwise separable one; only rectifiers enter linear layers.
activations_of_8_bits: 8,9,3 | block conv 8 | block depthwise | block conv 8 1 | mean
# Averages that can be negative, and nothing but a rectifier or a dense layer behind.
signed_mean_float_streams: 8,9,3 | conv 8 | norm | GlobalAveragePooling2D | Dense 4
rectified_mean_float_streams: 8,9,3 | conv 8 | norm | GlobalAveragePooling2D | ReLU | Dense 4
# Data movement.
max_pooling: 15,17,3 | MaxPooling2D 2 | block conv 8 | MaxPooling2D 3 2 same | conv 8 1 | norm
    | MaxPooling2D 2 1 | conv 6 1 | mean
average_pooling: 9,12,3 | AveragePooling2D 2 | block conv 8 | AveragePooling2D (2,3) (1,2)
    | conv 8 1 | norm | AveragePooling2D (3,1) 1 | AveragePooling2D 1 2 same | conv 6 1 | flat
# Windows that reach beyond the image, of coarse codes, of fine ones and of signed ones.
padded_average_pooling: 9,12,3 | AveragePooling2D 3 2 same | block conv 8
    | AveragePooling2D 3 1 same | block conv 8 1 | conv 8 1 | norm | AveragePooling2D (2,3) 2 same
    | flat
padded_average_pooling_float_streams: 9,8,3 | block conv 8 | AveragePooling2D 3 2 same
    | AveragePooling2D 2 | conv 6 1 | flat
# An end like that of VGG: dense layers with biases, rectifiers and dropout.
several_dense: 8,8,3 | Conv2D 6 3 padding=same activation=relu
    | Conv2D 6 3 padding=same activation=relu | MaxPooling2D | Flatten | Dense 16 relu
    | Dropout 0.5 | Dense 16 relu | Dropout 0.5 | Dense 5
pooled_features_convolved: 8,8,3 | block conv 8 | GlobalAveragePooling2D keepdims=True
    | Dropout 0.1 | Conv2D 5 1 | Reshape (5,) | Softmax
# Padding as keras.applications has it, and a stream that is padded.
zero_padding: 9,8,4 | ZeroPadding2D ((0,1),(0,1)) | conv 8 strides=2 padding=valid | norm
    | ReLU 6.0 | ZeroPadding2D 1 | depthwise strides=2 padding=valid | norm
    | ZeroPadding2D ((1,0),(0,2)) | block conv 8 | mean
# Ends; of the second, a softmax over the channels, whose result is moved.
softmax: 8,8,3 | block conv 8 | GlobalAveragePooling2D | Dense 4 softmax
softmax_of_pixels: 6,7,3 | block conv 8 | Conv2D 4 1 | Softmax | Flatten
output_rectified: 8,8,3 | block conv 8
output_pooled: 8,8,3 | block conv 8 | GlobalAveragePooling2D
output_normalized: 8,8,3 | block conv 8 | Dense 5 | norm
output_moved: 8,8,3 | block conv 8 | MaxPooling2D | Flatten
output_never_observed: 8,8,3 | conv 8 | norm | ReLU 6.0
"""


def _builder(shape: str, rest: str) -> Builder:
    text = rest.replace("| mean", f"| {_HEAD}").replace("| flat", f"| {_FLAT_HEAD}")
    return lambda: chain(ast.literal_eval(shape), text.removeprefix("| "))


_BUILDERS = {
    name: _builder(*layers)
    for name, *layers in re.findall(
        r"^(\w+): ([\d,]+) (.*)$", _CHAINS.replace("\n    ", " "), re.MULTILINE
    )
}


def bottleneck() -> keras.Model:
    """The same with a linear bottleneck, whose codes are signed."""
    linear, first = layers_of("conv 8 1 | norm"), "block conv 8 | block depthwise"
    return chain((8, 9, 3), first, *linear, f"block conv 9 1 | {_HEAD}")


def dilated_depthwise() -> keras.Model:
    narrow = depthwise(3, dilation_rate=3, padding="valid")
    wide = depthwise((5, 3), dilation_rate=2)
    return chain((14, 15, 3), *block(wide, narrow), _FLAT_HEAD)


def residual(*, rectified: bool) -> Builder:
    def build() -> keras.Model:
        image = layers.Input((8, 9, 3))
        x = ReLU()(normalization()(convolution(8)(image)))
        wide = normalization(name="wide")(convolution(8, 1)(x))
        x = layers.Add(name="first_sum")([normalization(name="deep")(convolution(8)(x)), wide])
        x = ReLU()(x) if rectified else x
        x = layers.Add()([x, normalization()(convolution(8)(x))])
        return keras.Model(image, through(x, f"ReLU | {_HEAD}" if rectified else _HEAD))

    return build


def sum_with_image(*, rectified: bool) -> Builder:
    def build() -> keras.Model:
        image = layers.Input((8, 9, 3))
        x = layers.Add()([image, layers.Conv2D(3, 3, padding="same")(image)])
        end = f"block conv 8 | {_HEAD}"
        return keras.Model(image, through(x, f"ReLU | {end}" if rectified else end))

    return build


def sums_of_other_shapes() -> keras.Model:
    """Sums of a tensor with itself and with its own mean in every pixel, and of vectors."""
    image = layers.Input((7, 8, 3))
    x = normalization()(convolution(8)(image))
    x = layers.Add()([x, x])
    x = layers.Add()([x, layers.GlobalAveragePooling2D(keepdims=True)(x)])
    x = layers.Add()([layers.GlobalAveragePooling2D(keepdims=True)(x), x])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, Dense(3)(layers.Add()([x, Dense(8, activation="relu")(x)])))


def preactivation() -> keras.Model:
    image = layers.Input((8, 8, 3))
    x = convolution(8)(image)
    for _ in range(2):
        y = convolution(8)(ReLU()(normalization()(x)))
        x = layers.Add()([x, convolution(8)(ReLU()(normalization()(y)))])
    return keras.Model(image, through(x, f"norm | ReLU | {_HEAD}"))


def two_readers() -> keras.Model:
    image = layers.Input((8, 8, 3))
    x = ReLU()(normalization()(convolution(8)(image)))
    coarse, fine = convolution(5, name="coarse")(x), convolution(5, name="fine")(x)
    x = layers.Add()([normalization()(coarse), normalization()(fine)])
    return keras.Model(image, Dense(4)(layers.GlobalAveragePooling2D()(ReLU()(x))))


def average_of_a_float_sum() -> keras.Model:
    image = layers.Input((8, 9, 3))
    x = layers.Add()([convolution(4)(image), convolution(4, 5)(image)])
    return keras.Model(image, through(x, f"AveragePooling2D 3 2 same | {_FLAT_HEAD}"))


def inception() -> keras.Model:
    """Branches that only a concatenation reads, one of them pooled, and two of them twice."""
    image = layers.Input((8, 9, 3))
    x = ReLU()(normalization()(convolution(6)(image)))
    first = layers.Conv2D(4, 1, activation="relu")(x)
    second = ReLU()(normalization()(convolution(5)(x)))
    pooled = layers.MaxPooling2D(3, 1, "same")(x)
    x = layers.Concatenate()([first, second, pooled, x])
    x = ReLU()(normalization()(convolution(6)(x)))
    linear = normalization()(convolution(4)(x))
    summed = layers.Add()([linear, convolution(4, 1)(x)])
    y = layers.Concatenate(axis=3)([summed, ReLU()(normalization()(convolution(3)(x))), summed])
    y = convolution(6)(ReLU()(y))
    z = layers.Concatenate(axis=1)([y, ReLU(6.0)(normalization()(convolution(6)(x)))])
    pooled = [layers.GlobalAveragePooling2D()(z), Dense(3)(layers.Flatten()(z))]
    return keras.Model(image, Dense(4)(layers.Concatenate()(pooled)))


def densely_connected() -> keras.Model:
    """Every convolution reads all that the ones before it have made."""
    image = layers.Input((8, 8, 3))
    x = convolution(4)(image)
    for _ in range(3):
        y = convolution(4)(ReLU()(normalization()(x)))
        x = layers.Concatenate()([x, y])
    end = f"norm | ReLU | conv 6 1 | AveragePooling2D | ReLU | {_HEAD}"
    return keras.Model(image, through(x, end))


def output_concatenated() -> keras.Model:
    image = layers.Input((8, 8, 3))
    x = ReLU()(normalization()(convolution(8)(image)))
    return keras.Model(image, layers.Concatenate()([x, convolution(3, 1)(x), image]))


def sums_of_many(count: int = 4) -> keras.Model:
    """One of them negative, one the image, one shared with a rectifier."""
    image = layers.Input((8, 8, 3))
    parts = [normalization()(convolution(3, size)(image)) for size in range(1, count)]
    x = ReLU()(layers.Add()([*parts, image]))
    y = layers.Add()([x, *(normalization()(convolution(3)(x)) for _ in range(count))])
    return keras.Model(image, Dense(4)(layers.GlobalAveragePooling2D()(ReLU()(y))))


def pooled_stem() -> keras.Model:
    """A stem whose sums are pooled before anything normalizes or rectifies them."""
    image = layers.Input((16, 16, 3))
    stem = "ZeroPadding2D 3 | Conv2D 8 7 strides=2 use_bias=False | ZeroPadding2D 1"
    x = through(image, f"{stem} | MaxPooling2D 3 2")
    for _ in range(2):
        y = through(x, "norm | ReLU | block conv 4 1")
        x = layers.Add()([x, convolution(8, 1)(ReLU()(normalization()(convolution(4)(y))))])
    return keras.Model(image, through(x, f"norm | ReLU | {_HEAD}"))


def average_of_a_convolution() -> keras.Model:
    """A flattening, another average and a sum read an average as it is."""
    image = layers.Input((9, 12, 3))
    x = layers.AveragePooling2D(3)(layers.Conv2D(8, 3, padding="same")(image))
    y = layers.AveragePooling2D(3)(layers.Conv2D(8, 3, padding="same")(image))
    flat = Dense(4)(layers.Flatten()(x))
    mean = Dense(4)(layers.GlobalAveragePooling2D()(x))
    total = Dense(4)(layers.Flatten()(layers.Add()([x, y])))
    return keras.Model(image, layers.Add()([layers.Add()([flat, mean]), total]))


def output_sum() -> keras.Model:
    image = layers.Input((8, 8, 3))
    x = through(image, "block conv 8")
    return keras.Model(image, layers.Add()([x, convolution(8, 1)(x)]))


def by_hand() -> keras.Model:
    annotate, config = tfmot.quantization.keras.quantize_annotate_layer, sat_tf.configs.LayerConfig
    image = layers.Input((8, 8, 3))
    x = annotate(convolution(8), config(weight_bits=8))(image)
    x = annotate(ReLU())(annotate(normalization())(x))
    y = annotate(convolution(8), config(weight_bits=2, activation_bits=3))(layers.MaxPooling2D()(x))
    y = annotate(ReLU())(annotate(normalization())(y))
    y = layers.GlobalAveragePooling2D()(y)  # not annotated: float
    y = annotate(Dense(4), config(weight_bits=3, weight_grid="narrow"))(y)
    return keras.Model(image, layers.Softmax()(y))


def names_that_meet() -> keras.Model:
    """Layers named like the tensors and constants that the export adds."""
    image = layers.Input((8, 8, 3), name="x")
    x = convolution(8, name="probabilities")(image)
    x = ReLU(name="a/bias")(normalization(name="a/kernel")(x))
    y = normalization(name="x_image_float")(convolution(8, name="a/kernel_", use_bias=True)(x))
    x = convolution(5, 1, name="s_float")(layers.Add(name="s")([x, y]))
    x = layers.Flatten(name="d_input")(layers.GlobalAveragePooling2D(name="d_image")(x))
    x = normalization(name="d")(layers.Dropout(0.1, name="y_float")(x))
    return keras.Model(image, Dense(4, activation="softmax", name="y")(x))


# Streams are summed at 8 bits, and read so. Where they are requantized, a depthwise convolution
# gives them fewer bits before each linear layer; that of a vector stands between two reshapes.
_REQUANTIZED = BitPolicy.mobile(4, requantize_streams=True)


def _grids() -> dict[str, Specimen]:
    """Every grid at every width that fits int8; activations have as many bits."""
    widths = {"dorefa": range(1, 8), "narrow": range(2, 9), "rounded": range(2, 8)}
    zoo = {}
    for grid, bits in [(grid, bits) for grid, every in widths.items() for bits in every]:
        fields = {"first_last_weight_bits": None, "weight_range": ("layer", "channel")[bits % 2]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # narrow at 2 bits trains badly
            policy = BitPolicy.mobile(bits, weight_grid=grid, **fields)
        build = _builder("6,7,3", "| block conv 8 | block depthwise | mean")
        zoo[f"{grid}_{bits}_bits"] = Specimen(build, policy)
    return zoo


_OF_FLOAT_STREAMS = ("signed_mean", "rectified_mean", "padded_average_pooling")
_SETTINGS: dict[str, dict[str, Any]] = {
    # A coarse channel's scale is moved to give its constant: far from that, codes are others.
    "dense_on_a_sequence": {"largest": 6},
    "activations_of_8_bits": {"policy": BitPolicy.mobile(2, activation_bits=8)},
    **{name: {"policy": _REQUANTIZED} for name in ("max_pooling", "padded_average_pooling")},
    **{f"{name}_float_streams": {"policy": BitPolicy.paper(4)} for name in _OF_FLOAT_STREAMS},
    "output_never_observed": {"calibrated": False},
}
_TWO_READERS = {"coarse": {"activation_bits": 2}, "fine": {"activation_bits": 5}}

ZOO: dict[str, Specimen] = {
    **{
        f"kernel_{size}_stride_{stride}": Specimen(windows(shape, size, stride))
        for size in (1, 3, 5, 7)
        for stride, shape in enumerate([(12, 13, 1), (11, 16, 3), (15, 10, 4)], start=1)
    },
    **_grids(),
    **{name: Specimen(build, **_SETTINGS.get(name, {})) for name, build in _BUILDERS.items()},
    # Windows.
    "dilated": Specimen(windows((16, 15, 3), 3, 1, dilation=3)),
    "dilated_depthwise": Specimen(dilated_depthwise),
    # The statistics say that these channels are dead, which they are not: their scales are moved
    # to give their constants, and all other sums may be off by half of the codes.
    "no_variance": Specimen(bottleneck, _REQUANTIZED, change=forget_variances, largest=128),
    # Bits.
    "activations_of_1_bit": Specimen(
        _BUILDERS["activations_of_8_bits"], BitPolicy.mobile(5, activation_bits=1)
    ),
    "bottleneck": Specimen(bottleneck),
    "bottleneck_of_3_bits": Specimen(bottleneck, BitPolicy.mobile(3, stream_bits=3)),
    "bottleneck_of_2_bits": Specimen(
        bottleneck, BitPolicy.mobile(2, requantize_streams=True), differing=0.1
    ),
    "channels_of_their_own_range": Specimen(
        bottleneck, BitPolicy.mobile(3, weight_range="channel", rescale="stddev")
    ),
    "pixels_to_one": Specimen(bottleneck, BitPolicy.mobile(4, input_max=1.0)),
    "tiny_clipping_levels": Specimen(bottleneck, change=move_clipping_levels(lambda level: 1e-3)),
    "huge_clipping_levels": Specimen(bottleneck, change=move_clipping_levels(lambda level: 1e6)),
    "never_calibrated": Specimen(bottleneck, _REQUANTIZED, calibrated=False),
    # Sums.
    "residual": Specimen(residual(rectified=False), differing=0.1),
    "residual_rectified": Specimen(residual(rectified=True), differing=0.1),
    "residual_of_unequal_levels": Specimen(
        residual(rectified=False),
        _REQUANTIZED,
        change=move_clipping_levels(lambda level: 1e-2 * level, "wide"),
        differing=0.15,  # a bias in units of weights of 4 bits, on steps a hundredth of usual
    ),
    "residual_with_a_branch_next_to_nothing": Specimen(
        residual(rectified=False),
        _REQUANTIZED,
        change=move_clipping_levels(lambda level: 1e-4 * level, "wide"),
        largest=2,
    ),
    "sum_with_image": Specimen(sum_with_image(rectified=False), _REQUANTIZED),
    "sum_with_image_rectified": Specimen(sum_with_image(rectified=True)),
    "sums_of_other_shapes": Specimen(sums_of_other_shapes, _REQUANTIZED, differing=0.1),
    "preactivation": Specimen(preactivation),
    "preactivation_of_1_bit": Specimen(preactivation, BitPolicy.mobile(1)),
    "two_readers": Specimen(two_readers, BitPolicy.mobile(4, overrides=_TWO_READERS)),
    # Float streams.
    "residual_float_streams": Specimen(residual(rectified=False), BitPolicy.paper(3)),
    # Rectified sums are observed, and then integers.
    "residual_rectified_float_streams": Specimen(residual(rectified=True), BitPolicy.paper(5)),
    "preactivation_float_streams": Specimen(preactivation, BitPolicy.paper(4)),
    "average_float_streams": Specimen(average_of_a_convolution, BitPolicy.paper(4)),
    # Partial sums are rounded to 8 bits too.
    "sums_of_many": Specimen(sums_of_many, differing=0.5, largest=2, combines_many=True),
    "pooled_stem": Specimen(pooled_stem),
    # Concatenations.
    "inception": Specimen(inception, _REQUANTIZED),
    "inception_float_streams": Specimen(inception, BitPolicy.paper(4)),
    "densely_connected": Specimen(densely_connected),
    "output_concatenated": Specimen(output_concatenated),
    "average_of_a_float_sum": Specimen(average_of_a_float_sum, BitPolicy.paper(4)),
    # Ends.
    "float_head": Specimen(bottleneck, float_head=True),
    "float_head_with_softmax": Specimen(_BUILDERS["softmax"], float_head=True),
    "annotated_by_hand": Specimen(by_hand, annotated=True),
    "output_sum": Specimen(output_sum),
    "names_that_meet": Specimen(names_that_meet, _REQUANTIZED),
}

# These have every operator, storage and kind of stream.
FEW = (
    *("residual", "bottleneck", "inception_float_streams", "float_head_with_softmax"),
    *("dorefa_1_bits", "narrow_2_bits", "rounded_3_bits", "narrow_8_bits", "never_calibrated"),
    *("preactivation_float_streams", "average_of_a_float_sum", "pooled_stem", "annotated_by_hand"),
    "padded_average_pooling_float_streams",
)
# For `pytest.mark.parametrize`: all of them, most among the thorough tests.
EACH = [name if name in FEW else pytest.param(name, marks=pytest.mark.thorough) for name in ZOO]


@functools.cache
def quantized(name: str) -> keras.Model:
    """A model of the zoo, built once; nobody changes it."""
    return ZOO[name].quantized()
