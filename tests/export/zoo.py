"""Small models of many kinds, as users bring them, and what the export makes of each.

Weights are random and nothing is trained, but normalizations are as hard as trained ones get: γ is
negative, zero, next to zero and huge, some channels are dead, some biases are large.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy

layers = keras.layers
ReLU, Dense = layers.ReLU, layers.Dense

# The first channels of every normalization have these; the others are plain.
_EXTREME_GAMMAS = (0.0, 1e-7, -1e-12, 40.0)


def normalization(**settings) -> keras.layers.Layer:
    return layers.BatchNormalization(**settings)


def convolution(filters: int, size=3, **settings) -> keras.layers.Layer:
    return layers.Conv2D(filters, size, **{"padding": "same", "use_bias": False, **settings})


def depthwise(size=3, **settings) -> keras.layers.Layer:
    return layers.DepthwiseConv2D(size, **{"padding": "same", "use_bias": False, **settings})


@dataclasses.dataclass(frozen=True)
class Specimen:
    """A model of the zoo."""

    build: Callable[[], keras.Model]  # Makes the float model.
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


def set_clipping_levels(value: float) -> Callable[[keras.Model], None]:
    """Sets all clipping levels of a model."""

    def change(model: keras.Model) -> None:
        for layer in model.layers:
            if "clipping_level" in getattr(layer, "output_variables", {}):
                layer.output_variables["clipping_level"].assign(value)

    return change


def scale_clipping_level(name: str, factor: float) -> Callable[[keras.Model], None]:
    """Multiplies the clipping level of one layer."""

    def change(model: keras.Model) -> None:
        level = model.get_layer(f"quant_{name}").output_variables["clipping_level"]
        level.assign(level * factor)

    return change


def forget_variances(model: keras.Model) -> None:
    """Sets the moving variance of some channels to zero, as dead ones have it."""
    for layer in map(inner_layer, model.layers):
        if isinstance(layer, layers.BatchNormalization):
            variance = layer.moving_variance.numpy()
            variance[-2:] = 0.0
            layer.moving_variance.assign(variance)


def chain(shape: tuple[int, ...], *rest: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([layers.Input(shape), *rest])


def block(*rest: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Layers with a normalization and a rectifier behind each."""
    return [part for layer in rest for part in (layer, normalization(), ReLU())]


def head(classes: int = 4) -> list[keras.layers.Layer]:
    return [layers.GlobalAveragePooling2D(), Dense(classes)]


def flat_head(classes: int = 3) -> list[keras.layers.Layer]:
    return [layers.Flatten(), Dense(classes)]


def windows(
    shape: tuple[int, ...], size: int, stride: int, dilation: int = 1
) -> Callable[[], keras.Model]:
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


def dilated_depthwise() -> keras.Model:
    narrow = depthwise(3, dilation_rate=3, padding="valid")
    return chain((14, 15, 3), *block(depthwise((5, 3), dilation_rate=2), narrow), *flat_head())


def depth_multiplier() -> keras.Model:
    wide = [depthwise(depth_multiplier=2), depthwise(depth_multiplier=3, strides=2)]
    return chain((9, 9, 3), *block(*wide, convolution(5, 1)), *head())


def depth_multiplier_of_one_channel() -> keras.Model:
    first = layers.DepthwiseConv2D(3, depth_multiplier=6, strides=2, activation="relu")
    return chain((9, 10, 1), first, *flat_head())


def separable() -> keras.Model:
    """A convolution and a depthwise separable one; only rectifiers enter linear layers."""
    return chain((8, 9, 3), *block(convolution(8), depthwise(), convolution(8, 1)), *head())


def bottleneck() -> keras.Model:
    """The same with a linear bottleneck, whose codes are signed."""
    linear = (convolution(8, 1), normalization())
    return chain(
        (8, 9, 3), *block(convolution(8), depthwise()), *linear, *block(convolution(9, 1)), *head()
    )


def flat_pixels() -> keras.Model:
    return chain((20,), Dense(12, activation="relu"), Dense(5))


def dense_on_a_sequence() -> keras.Model:
    return chain(
        (6, 5, 3),
        convolution(8),
        layers.Reshape((30, 8)),
        *block(Dense(8)),
        Dense(6),
        normalization(),
        layers.Reshape((5, 6, 6)),
        ReLU(),
        *head(),
    )


def residual(*, rectified: bool) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        image = layers.Input((8, 9, 3))
        x = ReLU()(normalization()(convolution(8)(image)))
        wide = normalization(name="wide")(convolution(8, 1)(x))
        x = layers.Add(name="first_sum")([normalization(name="deep")(convolution(8)(x)), wide])
        x = ReLU()(x) if rectified else x
        x = layers.Add()([x, normalization()(convolution(8)(x))])
        x = ReLU()(x) if rectified else x
        x = layers.GlobalAveragePooling2D()(x)
        return keras.Model(image, Dense(4)(x))

    return build


def sum_with_image(*, rectified: bool) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        image = layers.Input((8, 9, 3))
        x = layers.Add()([image, layers.Conv2D(3, 3, padding="same")(image)])
        x = ReLU()(x) if rectified else x
        x = ReLU()(normalization()(convolution(8)(x)))
        return keras.Model(image, Dense(4)(layers.GlobalAveragePooling2D()(x)))

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
    x = layers.GlobalAveragePooling2D()(ReLU()(normalization()(x)))
    return keras.Model(image, Dense(4)(x))


def two_readers() -> keras.Model:
    image = layers.Input((8, 8, 3))
    x = ReLU()(normalization()(convolution(8)(image)))
    coarse, fine = convolution(5, name="coarse")(x), convolution(5, name="fine")(x)
    x = layers.Add()([normalization()(coarse), normalization()(fine)])
    return keras.Model(image, Dense(4)(layers.GlobalAveragePooling2D()(ReLU()(x))))


def average_of_a_float_sum() -> keras.Model:
    image = layers.Input((8, 9, 3))
    x = layers.Add()([convolution(4)(image), convolution(4, 5)(image)])
    x = layers.AveragePooling2D(3, 2, "same")(x)
    return keras.Model(image, Dense(3)(layers.Flatten()(x)))


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
    x = layers.AveragePooling2D()(convolution(6, 1)(ReLU()(normalization()(x))))
    return keras.Model(image, Dense(4)(layers.GlobalAveragePooling2D()(ReLU()(x))))


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
    x = layers.ZeroPadding2D(3)(image)
    x = layers.Conv2D(8, 7, strides=2, use_bias=False)(x)
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for _ in range(2):
        y = ReLU()(normalization()(x))
        y = ReLU()(normalization()(convolution(4, 1)(y)))
        x = layers.Add()([x, convolution(8, 1)(ReLU()(normalization()(convolution(4)(y))))])
    x = ReLU()(normalization()(x))
    return keras.Model(image, Dense(4)(layers.GlobalAveragePooling2D()(x)))


def signed_mean(*rest: keras.layers.Layer) -> Callable[[], keras.Model]:
    """Averages that can be negative, and nothing but a rectifier or a dense layer behind."""
    return lambda: chain(
        (8, 9, 3),
        convolution(8),
        normalization(),
        layers.GlobalAveragePooling2D(),
        *(type(layer).from_config(layer.get_config()) for layer in rest),
        Dense(4),
    )


def average_of_a_convolution() -> keras.Model:
    """A flattening, another average and a sum read an average as it is."""
    image = layers.Input((9, 12, 3))
    x = layers.AveragePooling2D(3)(layers.Conv2D(8, 3, padding="same")(image))
    y = layers.AveragePooling2D(3)(layers.Conv2D(8, 3, padding="same")(image))
    flat = Dense(4)(layers.Flatten()(x))
    mean = Dense(4)(layers.GlobalAveragePooling2D()(x))
    total = Dense(4)(layers.Flatten()(layers.Add()([x, y])))
    return keras.Model(image, layers.Add()([layers.Add()([flat, mean]), total]))


def classifier(end: Callable[[], list[keras.layers.Layer]]) -> Callable[[], keras.Model]:
    return lambda: chain((8, 8, 3), *block(convolution(8)), *end())


def pooled_softmax() -> list[keras.layers.Layer]:
    return [layers.GlobalAveragePooling2D(), Dense(4, activation="softmax")]


def output_sum() -> keras.Model:
    image = layers.Input((8, 8, 3))
    x = ReLU()(normalization()(convolution(8)(image)))
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


def _windows() -> dict[str, Specimen]:
    shapes = {1: (12, 13, 1), 2: (11, 16, 3), 3: (15, 10, 4)}
    return {
        f"kernel_{size}_stride_{stride}": Specimen(windows(shape, size, stride))
        for size in (1, 3, 5, 7)
        for stride, shape in shapes.items()
    }


def _grids() -> dict[str, Specimen]:
    """Every grid at every width that fits int8; activations have as many bits."""
    widths = {"dorefa": range(1, 8), "narrow": range(2, 9), "rounded": range(2, 8)}
    zoo = {}
    for grid, bits in [(grid, bits) for grid, every in widths.items() for bits in every]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # narrow at 2 bits trains badly
            policy = BitPolicy.mobile(
                bits,
                weight_grid=grid,
                first_last_weight_bits=None,
                weight_range="channel" if bits % 2 else "layer",
            )
        zoo[f"{grid}_{bits}_bits"] = Specimen(
            lambda: chain((6, 7, 3), *block(convolution(8), depthwise()), *head()), policy
        )
    return zoo


ZOO: dict[str, Specimen] = {
    **_windows(),
    **_grids(),
    # Windows.
    "dilated": Specimen(windows((16, 15, 3), 3, 1, dilation=3)),
    "depthwise": Specimen(
        lambda: chain(
            (15, 12, 4),
            *block(depthwise(5), depthwise(3, strides=2, padding="valid"), depthwise(3, strides=2)),
            *head(),
        )
    ),
    "dilated_depthwise": Specimen(dilated_depthwise),
    "uneven_windows": Specimen(
        lambda: chain(
            (18, 19, 3),
            *block(convolution(8, (1, 5), strides=(2, 1))),
            layers.MaxPooling2D((3, 2), (1, 2), "same"),
            *block(convolution(7, (4, 2), dilation_rate=(1, 3))),
            layers.AveragePooling2D((1, 3), (2, 1)),
            *flat_head(),
        )
    ),
    "depth_multiplier": Specimen(depth_multiplier),
    "depth_multiplier_of_one_channel": Specimen(depth_multiplier_of_one_channel),
    # Dense layers.
    "flat_pixels": Specimen(flat_pixels),
    "flat_pixels_normalized": Specimen(
        lambda: chain(
            (20,), normalization(), *block(Dense(12), Dense(9)), Dense(5), normalization()
        )
    ),
    "flattened": Specimen(
        lambda: chain((6, 7, 1), layers.Flatten(), Dense(12, activation="relu"), Dense(5))
    ),
    "dense_on_pixels": Specimen(
        lambda: chain((6, 5, 3), *block(Dense(8)), Dense(7, activation="relu"), *head())
    ),
    "dense_on_a_sequence": Specimen(
        dense_on_a_sequence,
        # A coarse channel's scale is moved to give its constant: far from that, codes are others.
        largest=6,
    ),
    # Normalizations and rectifiers.
    "rectified_convolutions": Specimen(
        lambda: chain(
            (8, 8, 3),
            layers.Conv2D(6, 3, activation="relu"),
            layers.DepthwiseConv2D(3, activation="relu"),
            layers.Conv2D(6, 1, activation=keras.activations.relu),
            *flat_head(),
        )
    ),
    "normalizations_alone": Specimen(
        # Normalizations behind the image, a rectifier, each other and a pooling.
        lambda: chain(
            (8, 8, 6),
            normalization(),
            layers.Conv2D(8, 3, activation="relu"),
            normalization(),
            normalization(scale=False),
            ReLU(),
            convolution(8),
            normalization(center=False, epsilon=1e-5),
            layers.MaxPooling2D(),
            ReLU(),
            normalization(scale=False, center=False),
            layers.Flatten(),
            Dense(3, use_bias=False),
        )
    ),
    "relu6": Specimen(
        lambda: chain(
            (8, 8, 3),
            convolution(8),
            normalization(),
            ReLU(6.0),
            convolution(8),
            normalization(),
            ReLU(max_value=1.0),
            layers.Activation("relu6"),
            *head(),
        )
    ),
    "no_variance": Specimen(
        # The statistics say that these channels are dead, which they are not: their scales are
        # moved to give their constants, and all other sums may be off by half of the codes.
        bottleneck,
        _REQUANTIZED,
        change=forget_variances,
        largest=128,
    ),
    # Bits.
    "activations_of_8_bits": Specimen(separable, BitPolicy.mobile(2, activation_bits=8)),
    "activations_of_1_bit": Specimen(separable, BitPolicy.mobile(5, activation_bits=1)),
    "bottleneck": Specimen(bottleneck),
    "bottleneck_of_3_bits": Specimen(bottleneck, BitPolicy.mobile(3, stream_bits=3)),
    "bottleneck_of_2_bits": Specimen(
        bottleneck, BitPolicy.mobile(2, requantize_streams=True), differing=0.1
    ),
    "channels_of_their_own_range": Specimen(
        bottleneck, BitPolicy.mobile(3, weight_range="channel", rescale="stddev")
    ),
    "pixels_to_one": Specimen(bottleneck, BitPolicy.mobile(4, input_max=1.0)),
    "tiny_clipping_levels": Specimen(bottleneck, change=set_clipping_levels(1e-3)),
    "huge_clipping_levels": Specimen(bottleneck, change=set_clipping_levels(1e6)),
    "never_calibrated": Specimen(bottleneck, _REQUANTIZED, calibrated=False),
    # Sums.
    "residual": Specimen(residual(rectified=False), differing=0.1),
    "residual_rectified": Specimen(residual(rectified=True), differing=0.1),
    "residual_of_unequal_levels": Specimen(
        residual(rectified=False),
        _REQUANTIZED,
        change=scale_clipping_level("wide", 1e-2),
        differing=0.15,  # a bias in units of weights of 4 bits, on steps a hundredth of usual
    ),
    "residual_with_a_branch_next_to_nothing": Specimen(
        residual(rectified=False),
        _REQUANTIZED,
        change=scale_clipping_level("wide", 1e-4),
        largest=2,
    ),
    "sum_with_image": Specimen(sum_with_image(rectified=False), _REQUANTIZED),
    "sum_with_image_rectified": Specimen(sum_with_image(rectified=True)),
    "sums_of_other_shapes": Specimen(sums_of_other_shapes, _REQUANTIZED, differing=0.1),
    "preactivation": Specimen(preactivation),
    "preactivation_of_1_bit": Specimen(preactivation, BitPolicy.mobile(1)),
    "two_readers": Specimen(
        two_readers,
        BitPolicy.mobile(
            4, overrides={"coarse": {"activation_bits": 2}, "fine": {"activation_bits": 5}}
        ),
    ),
    # Float streams.
    "residual_float_streams": Specimen(residual(rectified=False), BitPolicy.paper(3)),
    "residual_rectified_float_streams": Specimen(
        # Rectified sums are observed, and then integers.
        residual(rectified=True),
        BitPolicy.paper(5),
    ),
    "preactivation_float_streams": Specimen(preactivation, BitPolicy.paper(4)),
    "signed_mean_float_streams": Specimen(signed_mean(), BitPolicy.paper(4)),
    "rectified_mean_float_streams": Specimen(signed_mean(ReLU()), BitPolicy.paper(4)),
    "average_float_streams": Specimen(average_of_a_convolution, BitPolicy.paper(4)),
    "sums_of_many": Specimen(
        sums_of_many,
        differing=0.5,  # partial sums are rounded to 8 bits too
        largest=2,
        combines_many=True,
    ),
    "pooled_stem": Specimen(pooled_stem),
    # Concatenations.
    "inception": Specimen(inception, _REQUANTIZED),
    "inception_float_streams": Specimen(inception, BitPolicy.paper(4)),
    "densely_connected": Specimen(densely_connected),
    "output_concatenated": Specimen(output_concatenated),
    # Data movement.
    "max_pooling": Specimen(
        lambda: chain(
            (15, 17, 3),
            layers.MaxPooling2D(2),
            *block(convolution(8)),
            layers.MaxPooling2D(3, 2, "same"),
            convolution(8, 1),
            normalization(),
            layers.MaxPooling2D(2, 1),
            convolution(6, 1),
            *head(),
        ),
        _REQUANTIZED,
    ),
    "average_pooling": Specimen(
        lambda: chain(
            (9, 12, 3),
            layers.AveragePooling2D(2),
            *block(convolution(8)),
            layers.AveragePooling2D((2, 3), (1, 2)),
            convolution(8, 1),
            normalization(),
            layers.AveragePooling2D((3, 1), 1),
            layers.AveragePooling2D(1, 2, "same"),
            convolution(6, 1),
            *flat_head(),
        )
    ),
    "padded_average_pooling": Specimen(
        # Windows that reach beyond the image, of coarse codes, of fine ones and of signed ones.
        lambda: chain(
            (9, 12, 3),
            layers.AveragePooling2D(3, 2, "same"),
            *block(convolution(8)),
            layers.AveragePooling2D(3, 1, "same"),
            *block(convolution(8, 1)),
            convolution(8, 1),
            normalization(),
            layers.AveragePooling2D((2, 3), 2, "same"),
            *flat_head(),
        ),
        _REQUANTIZED,
    ),
    "padded_average_pooling_float_streams": Specimen(
        lambda: chain(
            (9, 8, 3),
            *block(convolution(8)),
            layers.AveragePooling2D(3, 2, "same"),
            layers.AveragePooling2D(2),
            convolution(6, 1),
            *flat_head(),
        ),
        BitPolicy.paper(4),
    ),
    "average_of_a_float_sum": Specimen(average_of_a_float_sum, BitPolicy.paper(4)),
    "several_dense": Specimen(
        # An end like that of VGG: dense layers with biases, rectifiers and dropout.
        lambda: chain(
            (8, 8, 3),
            *(layers.Conv2D(6, 3, padding="same", activation="relu") for _ in range(2)),
            layers.MaxPooling2D(),
            layers.Flatten(),
            *(Dense(16, activation="relu"), layers.Dropout(0.5)),
            *(Dense(16, activation="relu"), layers.Dropout(0.5)),
            Dense(5),
        )
    ),
    "pooled_features_convolved": Specimen(
        lambda: chain(
            (8, 8, 3),
            *block(convolution(8)),
            layers.GlobalAveragePooling2D(keepdims=True),
            layers.Dropout(0.1),
            layers.Conv2D(5, 1),
            layers.Reshape((5,)),
            layers.Softmax(),
        )
    ),
    "zero_padding": Specimen(
        # Padding as keras.applications has it, and a stream that is padded.
        lambda: chain(
            (9, 8, 4),
            layers.ZeroPadding2D(((0, 1), (0, 1))),
            convolution(8, strides=2, padding="valid"),
            normalization(),
            ReLU(6.0),
            layers.ZeroPadding2D(1),
            depthwise(strides=2, padding="valid"),
            normalization(),
            layers.ZeroPadding2D(((1, 0), (0, 2))),
            *block(convolution(8)),
            *head(),
        )
    ),
    # Ends.
    "softmax": Specimen(classifier(pooled_softmax)),
    "softmax_of_pixels": Specimen(
        # A softmax over the channels, whose result is moved.
        lambda: chain(
            (6, 7, 3),
            *block(convolution(8)),
            layers.Conv2D(4, 1),
            layers.Softmax(),
            layers.Flatten(),
        )
    ),
    "float_head": Specimen(bottleneck, float_head=True),
    "float_head_with_softmax": Specimen(classifier(pooled_softmax), float_head=True),
    "annotated_by_hand": Specimen(by_hand, annotated=True),
    "output_rectified": Specimen(classifier(list)),
    "output_never_observed": Specimen(
        lambda: chain((8, 8, 3), convolution(8), normalization(), ReLU(6.0)), calibrated=False
    ),
    "output_pooled": Specimen(classifier(lambda: [layers.GlobalAveragePooling2D()])),
    "output_normalized": Specimen(classifier(lambda: [Dense(5), normalization()])),
    "output_sum": Specimen(output_sum),
    "output_moved": Specimen(classifier(lambda: [layers.MaxPooling2D(), layers.Flatten()])),
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
