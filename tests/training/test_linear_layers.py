import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.layer_kinds import kernels_of
from sat_tf.training import models
from sat_tf.training.audit.linear_layers import (
    find_classifier,
    is_linear,
    linear_calls,
    mixes,
    neighbours,
    normalization_behind,
    pooled_area_before,
    read_through,
    unwrapped,
    users_name,
)

L = keras.layers


@pytest.fixture
def image():
    return keras.Input((8, 8, 3), name="image")


def conv(name, channels=4, kernel=3, **options):
    return L.Conv2D(channels, kernel, padding="same", name=name, **options)


def following(outputs, image):
    network = read_through(keras.Model(image, outputs))
    return {
        users_name(node): {users_name(to): area for to, area in neighbours(network, node)}
        for node in network
        if is_linear(node)
    }


def test_layers_in_a_row_follow_one_another(image):
    relu = L.ReLU()
    x = relu(L.BatchNormalization()(conv("a")(image)))
    x = relu(conv("b")(x))
    found = following(L.Dense(3, name="c")(L.Flatten()(x)), image)
    assert found == {"a": {"b": 1}, "b": {"c": 1}, "c": {}}


def test_branches_both_follow_what_they_read(image):
    x = conv("a")(image)
    y = L.Add()([conv("left")(x), conv("right", kernel=1)(x)])
    assert following(conv("end")(y), image) == {
        "a": {"left": 1, "right": 1},
        "left": {"end": 1},
        "right": {"end": 1},
        "end": {},
    }


def test_a_path_ends_at_the_sum_behind_a_layer_it_passed_by(image):
    # a -> add1 -> b -> add2 -> c, with add1 also going to add2 by itself.
    x = L.Add(name="add1")([conv("skip")(image), conv("a")(image)])
    y = L.Add(name="add2")([x, conv("b")(x)])
    found = following(conv("c")(y), image)
    assert found["a"] == found["skip"] == {"b": 1}
    assert found["b"] == {"c": 1}


def test_in_a_dense_block_the_next_layer_follows(image):
    x = conv("a")(image)
    y = L.Concatenate()([x, conv("b")(x)])
    z = L.Concatenate()([y, conv("c")(y)])
    found = following(conv("d")(z), image)
    assert found == {"a": {"b": 1}, "b": {"c": 1}, "c": {"d": 1}, "d": {}}


def test_a_gate_lets_both_of_its_inputs_through(image):
    # Squeeze and excitation: what is gated goes on to the layer behind.
    x = conv("a")(image)
    gate = L.Dense(4, activation="sigmoid", name="gate")(L.GlobalAveragePooling2D()(x))
    y = conv("b")(L.Multiply()([x, L.Reshape((1, 1, 4))(gate)]))
    found = following(y, image)
    assert found["a"] == {"gate": 64, "b": 1}
    assert found["gate"] == {"b": 1}


def test_a_gated_branch_goes_on_behind_the_sum_that_it_enters(image):
    # A residual block with squeeze and excitation.
    shortcut = conv("first")(image)
    x = conv("a")(shortcut)
    gate = L.Dense(4, activation="sigmoid", name="gate")(L.GlobalAveragePooling2D()(x))
    x = L.Multiply()([x, L.Reshape((1, 1, 4))(gate)])
    y = L.ReLU()(L.Add()([shortcut, x]))
    found = following(conv("c")(L.Add()([y, conv("b")(y)])), image)
    of_gate = {"a": {"gate": 64, "b": 1}, "gate": {"b": 1}}
    assert found == {"first": {"a": 1}, **of_gate, "b": {"c": 1}, "c": {}}


@pytest.mark.parametrize(
    ("pool", "area"),
    [
        (L.AveragePooling2D(2), 4),
        (L.GlobalAveragePooling2D(keepdims=True), 64),
        (L.MaxPooling2D(2), 1),
        (L.ZeroPadding2D(1), 1),
        (L.Lambda(lambda x: tf.reduce_mean(x, [1, 2], keepdims=True)), None),
    ],
)
def test_averages_between_two_layers_are_counted(pool, area, image):
    assert following(conv("b")(pool(conv("a")(image))), image)["a"] == {"b": area}


def test_operations_on_tensors_are_followed(image):
    x = conv("a")(image)
    x = x * tf.nn.relu6(x + 3.0) / 6.0
    x = tf.reduce_mean(x, [1, 2])
    assert following(L.Dense(3, name="b")(x), image)["a"] == {"b": 64}


def test_models_inside_models_are_followed(image):
    inner_image = keras.Input((8, 8, 3))
    inner = keras.Model(inner_image, conv("b")(L.ReLU()(inner_image)), name="inner")
    outer = following(conv("c")(inner(conv("a", 3)(image))), image)
    assert outer == {"a": {"inner/b": 1}, "inner/b": {"c": 1}, "c": {}}


def behind(outputs, image):
    network = read_through(keras.Model(image, outputs))
    return {node.name: normalization_behind(network, node) for node in network if is_linear(node)}


def test_only_a_normalization_right_behind_counts(image):
    x = L.BatchNormalization()(conv("a")(image))
    x = L.LayerNormalization()(conv("b")(x))
    y = conv("rectified", activation="relu")(x)
    y = L.BatchNormalization()(y)
    z = conv("read_twice")(y)
    z = L.Add()([z, L.BatchNormalization()(z)])
    assert behind(conv("end")(z), image) == {
        "a": "BatchNormalization",
        "b": "LayerNormalization",
        "rectified": None,
        "read_twice": None,
        "end": None,
    }


@pytest.mark.thorough
def test_a_preactivation_network_has_sums_behind_its_last_layers():
    network = read_through(models.build("preresnet50", image_size=32, num_classes=10, seed=0))
    found = {node.name: normalization_behind(network, node) for node in network if is_linear(node)}
    assert found["block_3_reduce_conv"] == found["block_3_spatial_conv"] == "BatchNormalization"
    assert found["block_3_expand_conv"] is None


@pytest.mark.parametrize(
    ("tail", "name"),
    [
        ([L.Softmax()], "logits"),
        ([L.Dropout(0.1), L.Activation("softmax")], "logits"),
        ([L.ReLU()], None),
        ([L.Dense(3, activation="softmax", name="other")], "other"),
    ],
)
def test_the_classifier_is_what_makes_the_output(tail, name, image):
    x = L.Dense(3, name="logits")(L.Flatten()(image))
    for layer in tail:
        x = layer(x)
    classifier = find_classifier(read_through(keras.Model(image, x)))
    assert (classifier.name if classifier else None) == name


def test_the_smallest_area_of_paths_that_meet_counts(image):
    x = conv("a")(image)
    x = L.Add()([L.GlobalAveragePooling2D()(x), L.GlobalMaxPooling2D()(x)])
    network = read_through(keras.Model(image, L.Dense(3)(x)))
    assert pooled_area_before(network, find_classifier(network)) == 1


# Counted by hand: how many inputs reach one output, and how many outputs one input reaches.
COUNTS = [
    (L.Dense(7), (5,), [(5, 7)]),
    (L.Conv2D(8, (3, 2)), (9, 9, 4), [(24, 48)]),
    (L.Conv2D(8, 3, groups=2), (9, 9, 4), [(18, 36)]),
    (L.Conv1D(6, 5), (9, 4), [(20, 30)]),
    (L.Conv3D(2, 2), (5, 5, 5, 3), [(24, 16)]),
    (L.DepthwiseConv2D(3, depth_multiplier=2), (9, 9, 4), [(9, 18)]),
    (L.DepthwiseConv1D(5), (9, 4), [(5, 5)]),
    (L.SeparableConv2D(6, 3, depth_multiplier=2), (9, 9, 4), [(9, 18), (8, 6)]),
    (L.Conv2DTranspose(8, 3), (9, 9, 4), [(36, 72)]),
]


@pytest.mark.parametrize(
    ("layer", "shape", "counts"), COUNTS, ids=[type(row[0]).__name__ for row in COUNTS]
)
def test_neurons_are_counted_as_by_hand(layer, shape, counts):
    image = keras.Input(shape)
    calls = linear_calls(read_through(keras.Model(image, layer(image))))
    assert [(call.fan_in, call.fan_out) for call in calls.values()] == counts


def test_a_subclass_is_not_known_and_wrappers_are_taken_off():
    class Standardized(L.Conv2D):
        pass

    assert kernels_of(Standardized(3, 3)) == ()
    inner = L.Dense(3)
    assert unwrapped(L.TimeDistributed(inner)) is inner
    assert unwrapped(inner) is inner


def test_an_unknown_layer_mixes_where_it_holds_a_matrix(image):
    class Unknown(L.Layer):
        def build(self, shape):
            self.weight = self.add_weight("weight", shape[-self.rank :])

        def call(self, inputs):
            return inputs * self.weight

    matrix, vector = Unknown(name="matrix"), Unknown(name="vector")
    matrix.rank, vector.rank = 2, 1
    network = read_through(keras.Model(image, vector(matrix(image))))
    assert mixes(network["matrix"])
    assert not mixes(network["vector"])
    assert not mixes(network["image"])
