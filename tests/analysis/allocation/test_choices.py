import itertools

import tf_keras as keras

import sat_tf
from sat_tf.analysis.allocation.choices import ModelChoices
from sat_tf.qat.policy import BitPolicy
from tests.analysis.allocation.small_models import joined, residual

L = keras.layers
BITS = (2, 4, 8)
EVERYWHERE = {"first_last_weight_bits": None}


def choices(model, policy=None, **options):
    return ModelChoices(model, policy or BitPolicy.mobile(4), BITS, BITS, **options)


def named(found):
    return {layer.name: layer for layer in found.layers}


def test_the_policy_settles_the_ends_and_streams():
    found = named(choices(residual()))
    assert found["stem"].choices == [(8, 8)]
    assert found["classifier"].choices == [(8, 8)]
    # It reads the stream of the first sum as it is.
    assert found["one"].choices == [(2, 8), (4, 8), (8, 8)]
    assert found["two"].choices == list(itertools.product(BITS, BITS))


def test_ends_are_chosen_for_where_the_policy_leaves_them():
    found = named(choices(residual(), BitPolicy.mobile(4, **EVERYWHERE)))
    assert found["stem"].choices == [(2, 8), (4, 8), (8, 8)]


def test_bits_given_by_overrides_stay():
    overrides = {"two": {"weight_bits": 3}, "four": {"activation_bits": 5}}
    found = named(choices(residual(), BitPolicy.mobile(4, overrides=overrides)))
    assert found["two"].choices == [(3, 2), (3, 4), (3, 8)]
    assert found["four"].choices == [(2, 5), (4, 5), (8, 5)]


def test_layers_that_read_one_tensor_are_tied():
    found = named(choices(residual()))
    assert found["three"].tie == found["shortcut"].tie >= 0
    assert {found[name].tie for name in ("two", "four")} == {-1}


def test_layers_that_read_one_stream_are_tied_where_streams_are_requantized():
    image = keras.Input((8, 8, 3))
    stem = L.Conv2D(4, 3, padding="same", name="stem")(image)
    parts = [L.Conv2D(4, 1, name=name)(stem) for name in ("one", "two")]
    tensor = L.Flatten()(L.Add()([*parts, stem]))
    model = keras.Model(image, L.Dense(3, name="classifier")(tensor))
    found = named(choices(model, BitPolicy.mobile(4, requantize_streams=True)))
    assert found["one"].chooses_activations
    assert found["one"].tie == found["two"].tie >= 0
    as_they_are = named(choices(model))
    assert not as_they_are["one"].chooses_activations


def test_readers_of_a_concatenation_are_tied():
    found = named(choices(joined()))
    assert found["up"].tie == found["down"].tie >= 0
    assert found["left"].tie == found["right"].tie >= 0
    assert found["left"].tie != found["up"].tie


def test_calls_of_one_layer_tie_what_they_read():
    image = keras.Input((8, 8, 4))
    again = L.Conv2D(4, 3, padding="same", activation="relu", name="again")
    first = L.Conv2D(4, 3, padding="same", activation="relu", name="first")(image)
    one = again(first)
    side = L.Conv2D(4, 1, name="side")(one)
    two = again(one)
    tensor = L.Flatten()(L.Add()([two, side]))
    model = keras.Model(image, L.Dense(3, name="classifier")(tensor))
    found = choices(model)
    layers = named(found)
    assert list(layers) == ["first", "again", "side", "classifier"]
    assert layers["again"].tie == layers["side"].tie >= 0
    plan = sat_tf.explain(model, found.policy_at(2, 8))
    assert (plan["again"].weights.bits, plan["again"].reading_bits) == (2, 8)
    assert plan["again@2"].reading_bits == plan["side"].reading_bits == 8


def test_the_policy_has_the_bits_in_the_layers_that_were_chosen():
    model = residual()
    found = choices(model)
    policy = found.policy_of({"two": (2, 8), "three": (8, 2), "shortcut": (4, 2), "stem": (2, 2)})
    plan = sat_tf.explain(model, policy)
    bits = {row.name: (row.weights.bits, row.reading_bits) for row in plan.rows if row.weights}
    assert bits == {
        "stem": (8, 8),
        "one": (4, 8),
        "two": (2, 8),
        "three": (8, 2),
        "four": (4, 4),
        "shortcut": (4, 2),
        "classifier": (8, 8),
    }
    # Equal bits need no operator between grids.
    assert not [row for row in plan.insertions if "_to_" in row.name]


def test_open_image_sizes_leave_values_unknown():
    image = keras.Input((None, None, 3))
    tensor = L.Conv2D(4, 3, activation="relu", name="stem")(image)
    tensor = L.Conv2D(4, 1, activation="relu", name="conv")(tensor)
    model = keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(tensor)))
    conv = named(choices(model))["conv"]
    assert conv.values_read is None
