import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.network import Network
from sat_tf.qat.configs import LayerConfig
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models

L = keras.layers


def _model(*layers):
    tensor = image = keras.Input((8, 8, 3), name="image")
    for layer in layers:
        tensor = layer(tensor)
    return Network(keras.Model(image, tensor, name="custom"))


def _error(network, policy=None, annotations=None):
    annotations = {**{node.name: None for node in network}, **(annotations or {})}
    with pytest.raises(ValueError, match="model ") as error:
        place(network, annotations, policy or BitPolicy())
    return str(error.value)


def test_one_error_names_every_layer_that_cannot_be_quantized():
    network = _model(
        L.Conv2D(4, 3, name="a"),
        L.UnitNormalization(name="odd"),
        L.Conv2DTranspose(4, 3, dilation_rate=2, name="dilated"),
        L.Activation(tf.sin, name="wave"),
        L.Conv2D(4, 3, activation="tanh", name="bent"),
        L.BatchNormalization(axis=1, name="rows"),
        L.MaxPooling2D(data_format="channels_last", name="pool"),
        L.LocallyConnected2D(2, 3, name="local"),
        L.Flatten(name="flat"),
        L.Dense(3, name="classifier"),
    )
    first, *lines, last = _error(network, annotations={"a": object()}).splitlines()
    assert first == "model 'custom': 7 problems"
    named = [line.removeprefix("  - ").split(":")[0] for line in lines]
    assert named == ["a", "odd", "dilated", "wave", "bent", "rows", "local"]
    assert "received UnitNormalization, which sat-tf does not quantize" in lines[1]
    assert "received dilation_rate=(2, 2), expected (1, 1)" in lines[2]
    assert "received activation='sin', expected one of linear, softmax, relu" in lines[3]
    assert "activation='tanh' inside a linear layer" in lines[4]
    assert "received axis=[1], expected the channel axis" in lines[5]
    assert "Conv2D, Conv2DTranspose" in last
    assert "unsupported='float'" in last


@pytest.mark.parametrize("unsupported", ["error", "float"])
def test_what_no_file_can_have_is_refused_before_it_is_trained(unsupported):
    network = _model(
        L.Conv2D(4, 3, name="a"),
        L.Softmax(axis=1, name="rows"),
        L.Softmax(axis=[1, 2], name="images"),
        L.Softmax(axis=3, name="fine"),
        L.Resizing(12, 12, "bicubic", name="resized"),
        L.UpSampling2D(2, interpolation="lanczos3", name="larger"),
        L.Resizing(12, 12, name="bilinear"),
        L.Flatten("channels_first", name="flat"),
        L.Dense(3, name="classifier"),
    )
    lines = _error(network, BitPolicy(unsupported=unsupported)).splitlines()
    assert lines[0] == "model 'custom': 5 problems"
    named = [line.removeprefix("  - ").split(":")[0] for line in lines[1:]]
    assert named == ["rows", "images", "resized", "larger", "flat"]
    assert "received axis=[1, 2], expected the last one; use axis=-1" in lines[2]
    assert "'bicubic', which no operator of TFLite computes, expected 'nearest'" in lines[3]


def test_an_annotation_of_another_kind_is_refused():
    assert "b: received a dict annotation, expected sat_tf.configs.LayerConfig" in _error(
        Network(float_models.build("plain")), annotations={"b": {"weight_bits": 8}}
    )


def test_a_model_without_a_linear_layer_has_nothing_to_quantize():
    message = _error(_model(L.ReLU(), L.GlobalAveragePooling2D()))
    assert "received no layer whose weights can be quantized, expected at least one" in message
    assert "tf.lite.TFLiteConverter.from_keras_model(model)" in message
    assert "annotate" not in message


def test_a_model_whose_linear_layers_have_no_annotation_is_told_to_annotate_them():
    model = _model(L.Conv2D(4, 3, name="stem"), L.GlobalAveragePooling2D(name="mean"))
    with pytest.raises(ValueError, match="received no annotated linear layer") as error:
        place(model, {"mean": None}, BitPolicy())
    assert "annotate them with quantize_annotate_model" in str(error.value)


def test_an_override_that_matches_nothing_is_refused_with_the_names_there_are():
    message = _error(
        Network(float_models.dense_only()), BitPolicy(overrides={"hiden": {"weight_bits": 8}})
    )
    assert "overrides['hiden'] matches no layer; the layers are hidden, classifier." in message


def test_a_softmax_inside_a_layer_inside_the_model_is_refused():
    network = _model(L.Flatten(), L.Dense(4, activation="softmax", name="gate"), L.Dense(3))
    assert "gate: received a softmax inside the model" in _error(network)


def test_one_bit_for_a_tensor_that_can_be_negative_is_refused():
    policy = BitPolicy.mobile(1, requantize_streams=True)
    message = _error(Network(float_models.build("mobile_block")), policy)
    assert "project_bn: received activation_bits=1 for a tensor that can be negative" in message
    assert "add: received activation_bits=1" in message


def test_fields_that_are_wrong_only_together_are_named_with_their_layer():
    policy = BitPolicy(weight_bits=1, overrides={"b": {"weight_grid": "narrow"}})
    assert "b: weight_bits=1 with weight_grid='narrow'" in _error(
        Network(float_models.build("plain")), policy
    )
    message = _error(
        Network(float_models.build("plain")),
        BitPolicy(weight_grid="rounded"),
        {"a": LayerConfig(weight_bits=1)},
    )
    assert "a: weight_bits=1 with weight_grid='rounded'" in message


def _sequences(masking, reader):
    steps = keras.Input((6, 5), name="steps")
    return Network(keras.Model(steps, L.Dense(3, name="classifier")(reader(masking(steps)))))


@pytest.mark.parametrize("unsupported", ["float", "error"])
@pytest.mark.parametrize(
    ("masking", "reader"),
    [
        (L.Masking(name="left"), L.LSTM(3)),
        (L.Masking(7.0, name="left"), L.GlobalAveragePooling1D()),
        (L.Masking(name="left"), L.Flatten()),
        (lambda x: L.Embedding(8, 4, mask_zero=True, name="left")(x[:, :, 0]), L.GRU(3)),
    ],
    ids=["lstm", "mean", "nobody", "embedding"],
)
def test_a_layer_that_makes_a_mask_is_refused(masking, reader, unsupported):
    error = _error(_sequences(masking, reader), BitPolicy(unsupported=unsupported))
    assert "left: received a" in error or "left: received an" in error
    assert "whose mask tells the layers after it which positions to ignore" in error
    assert error.count("left:") == 1


def _streams(behind):
    """A linear bottleneck, which can be negative, and what reads it."""
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, name="bottleneck")(L.Conv2D(4, 1, activation="relu", name="a")(image))
    tensor = behind(tensor)
    return Network(keras.Model(image, L.Dense(3)(L.Flatten()(tensor))))


@pytest.mark.parametrize(
    ("behind", "named"),
    [
        (
            lambda x: L.Add(name="sum")([L.Conv2D(4, 1, name="other")(x), x]),
            ["bottleneck", "other", "sum"],
        ),
        (lambda x: L.AveragePooling2D(name="mean")(x), ["bottleneck", "mean"]),
        (lambda x: L.LayerNormalization()(L.Cropping2D(1)(x)), ["bottleneck"]),
    ],
    ids=["sum", "mean", "float_function"],
)
def test_signed_streams_that_int8_does_not_clip_at_their_bits_are_refused(behind, named):
    policy = BitPolicy.mobile(4, stream_bits=4)
    lines = _error(_streams(behind), policy).splitlines()[1:]
    assert [line.removeprefix("  - ").split(":")[0] for line in lines] == named
    assert all("received stream_bits=4 for a tensor that can be negative" in line for line in lines)


@pytest.mark.parametrize(
    "behind",
    [
        lambda x: L.Conv2D(4, 1, name="reader")(x),
        lambda x: L.Conv2D(4, 1)(L.Cropping2D(1)(x)),
        lambda x: L.Add()([L.ReLU()(x), L.Conv2D(4, 1, activation="relu")(x)]),
    ],
    ids=["linear", "moved", "rectified"],
)
def test_streams_of_few_bits_are_placed_where_linear_layers_read_them_or_nothing_is_negative(
    behind,
):
    network = _streams(behind)
    policy = BitPolicy.mobile(4, stream_bits=4)
    assert place(network, {node.name: None for node in network}, policy)
