"""The words of a certificate on the quantized Keras model beside its file."""

import dataclasses

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.certificate.certificate import certificate_page
from sat_tf.exact.certificate.comparison import TrainedCounter
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.linear import Linear, requantization_multipliers
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.verify import TrainedModel
from sat_tf.graph.network import Network
from sat_tf.qat.policy import BitPolicy
from tests.export.proofs import calibrated, proved
from tests.export.zoo import images_for

L = keras.layers
VALUES = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)


def regression(numbers=3):
    keras.utils.set_random_seed(0)
    features = keras.Input((8,), name="features")
    hidden = L.Dense(16, activation="relu", name="hidden")(features)
    model = keras.Model(features, L.Dense(numbers, name="numbers")(hidden))
    return calibrated(model, BitPolicy.mobile(8, input_type="float32"), VALUES)


def range_of(quantized, name, factor):
    """Multiplies the ends of an observed range."""
    variables = quantized.get_layer(name).output_variables
    for end in ("lowest", "highest"):
        variables[end].assign(factor * variables[end])


def certified(quantized, values, tmp_path, **file):
    return proved(quantized, tmp_path / "model.tflite", values, file, runtimes=("xnnpack",))[1]


def with_output(found, **changes):
    """The certificate with another output."""
    runtime = found.runtimes["xnnpack"]
    changed = dataclasses.replace(runtime.outputs[0], **changes)
    runtime = dataclasses.replace(runtime, outputs=[changed])
    return dataclasses.replace(found, runtimes={"xnnpack": runtime})


def by_itself(found, **changes):
    """The first tensor, with codes that differ by themselves."""
    changes |= {"explained_share": 0.3, "alone_compared": 1000}
    return dataclasses.replace(found.trained[0], **changes)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """The certificate of few images."""
    return certified(regression(), VALUES[:8], tmp_path_factory.mktemp("few"))


def test_values_beyond_an_observed_range_are_counted_and_differ(tmp_path):
    quantized = regression()
    range_of(quantized, "quant_numbers", 0.3)
    found = certified(quantized, VALUES, tmp_path)
    outputs = quantized(VALUES, training=False).numpy()
    codes = deployed_graph(Network(quantized)).codes("numbers")
    low, high = codes.real_range
    half = 0.5 * codes.real_scale
    beyond = (outputs < low - half) | (outputs >= high + half)
    (count,) = (tensor for tensor in found.trained if tensor.name == "numbers_codes")
    assert count.saturated == np.count_nonzero(beyond) > 20
    assert count.worst_channel == np.argmax(np.sum(beyond, axis=0))
    assert count.worst_share == pytest.approx(np.max(np.mean(beyond, axis=0)))
    assert found.codes_differing == 0 < found.trained_differing
    assert count.codes_differing >= count.saturated
    # It is the range, not an operator that computes something else.
    assert not count.is_unexplained


def test_logits_that_are_clipped_in_front_of_a_softmax_are_compared_behind_it(tmp_path):
    images = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    images[:8] *= 20
    inputs = keras.Input((2,), name="features")
    logits = keras.layers.Dense(3, name="logits")(inputs)
    model = keras.Model(inputs, keras.layers.Softmax(name="probabilities")(logits))
    kernel = np.array([[3.0, -2.0, -1.0], [-1.0, 3.0, -2.0]])
    model.get_layer("logits").set_weights([kernel, np.zeros(3)])
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, input_type="int8"))
    sat_tf.calibrate(quantized, images)
    found = certified(quantized, images, tmp_path)
    assert np.min(images @ kernel) < quantized.get_layer("quant_logits").get_weights()[-3] < -1
    assert (found.saturated, found.verdict.kind) == (0, "good")


def test_a_file_that_saturates_is_not_headed_in_green(tmp_path):
    quantized = regression(1)
    assert certified(quantized, VALUES, tmp_path).verdict.kind == "good"
    range_of(quantized, "quant_numbers", 0.3)
    found = certified(quantized, VALUES, tmp_path)
    assert (found.verdict.kind, found.is_exact) == ("bad", False)
    assert found.verdict.words.startswith(f"0 of {found.codes_compared:,} codes differ, but its")
    parting, saturated = (note.words for note in found.trained_notes)
    assert parting.startswith("The file's answers differ: numbers: values differ by 0.")
    share = 100 * found.trained[-1].saturated_share
    assert f"the file saturates: {share:.2g} % of those of numbers" in saturated
    assert f"channel {found.trained[-1].worst_channel}" in saturated
    page = certificate_page(found)
    assert '<p class="verdict bad">' in page
    values = found.to_dict()
    assert values["saturated"] == found.saturated
    for note in found.trained_notes:
        assert note.words.replace("'", "&#39;") in page
        assert note._asdict() in values["trained_notes"]
        assert note.words in str(found._notes())


def test_answers_that_part_by_rounded_biases_are_told_why_and_what_to_do(tmp_path):
    found = certified(regression(), VALUES, tmp_path)
    (output,) = found.runtimes["xnnpack"].outputs
    off = with_output(found, values=dataclasses.replace(output.values, off=1))
    told = {}
    for differing in (0, 50):
        parts = dataclasses.replace(off, trained=[by_itself(found, alone_differing=differing)])
        (told[differing],) = (note.words for note in parts.trained_notes)
    assert told[50].startswith(f"{told[0]}; the file has rounded biases and the model has not: ")
    assert "export with snap_biases=True" in told[50]
    tensor = by_itself(found, alone_differing=50, codes_differing=found.trained[0].codes_compared)
    for has_biases in (False, True):
        parts = dataclasses.replace(found, trained=[tensor], has_biases_of_file=has_biases)
        (told[has_biases],) = (note.words for note in parts.trained_notes)
    assert "export with snap_biases=True" in told[False]
    name = tensor.name
    assert told[True].startswith(f"100 % of the codes of Keras differ: 50 of 1,000 codes of {name}")


def test_what_a_clipping_level_clips_in_keras_too_does_not_saturate(tmp_path):
    quantized = regression()
    level = quantized.get_layer("quant_hidden").output_variables["clipping_level"]
    level.assign(0.3 * level)
    range_of(quantized, "quant_numbers", 2.0)
    found = certified(quantized, VALUES, tmp_path)
    assert (found.saturated, found.verdict.kind) == (0, "good")


@pytest.mark.parametrize("join", [L.Minimum, L.Maximum, L.Concatenate])
def test_what_keras_clips_behind_a_join_does_not_saturate_in_front_of_it(join, tmp_path):
    keras.utils.set_random_seed(0)
    features = keras.Input((8,), name="features")
    large = keras.initializers.RandomNormal(stddev=3.0)
    parts = [L.Dense(16, kernel_initializer=large)(features), L.Dense(16)(features)]
    model = keras.Model(features, L.Dense(3)(join(name="join")(parts)))
    quantized = calibrated(model, BitPolicy.mobile(8, input_type="float32"), VALUES)
    (level,) = (one for one in quantized.weights if one.name.endswith("join/clipping_level:0"))
    level.assign(0.3 * level)
    sat_tf.calibrate(quantized, VALUES, clipping_levels=False)
    found = certified(quantized, VALUES, tmp_path)
    assert (found.saturated, found.verdict.kind) == (0, "good")
    assert found.trained_differing < 0.001


def test_a_sigmoid_of_nearly_1_does_not_saturate(tmp_path):
    features = keras.Input((8,), name="features")
    hidden = L.Dense(16, activation="relu")(features)
    sure = L.Dense(1, activation="sigmoid", name="sure")(hidden)
    model = keras.Model(features, L.Reshape((1, 1))(sure))
    model.get_layer("sure").bias.assign([9.0])
    policy = BitPolicy.mobile(8, input_type="float32", target="ethos-u55")
    found = certified(calibrated(model, policy, VALUES), VALUES, tmp_path)
    assert np.max([count.codes_differing for count in found.trained]) > 200  # 255/256 for 1
    assert (found.saturated, found.output_mismatches) == (0, [])


def test_sums_at_the_flat_end_of_a_sigmoid_are_alike(tmp_path):
    """Int8 ends a code below Keras' symmetric grid, for which the table has the same code."""
    keras.utils.set_random_seed(0)
    features = keras.Input((8,), name="features")
    parts = [L.Dense(16, kernel_initializer="random_normal")(20.0 * features) for _ in range(2)]
    gates = L.Activation("sigmoid")(L.Add(name="sums")(parts))
    model = keras.Model(features, L.Dense(3)(gates))
    quantized = calibrated(model, BitPolicy.mobile(8, input_type="float32"), VALUES)
    variables = quantized.get_layer("quant_sums").output_variables
    variables["clipping_level"].assign(5.0)
    variables["skew"].assign(0.0)
    (sums,) = [
        one for one in certified(quantized, VALUES[:16], tmp_path).trained if one.name == "sums"
    ]
    assert (sums.alone_compared, sums.alone_differing) == (16 * 16, 0)


def test_an_input_beyond_its_range_saturates_in_keras_too(tmp_path):
    quantized = regression()
    range_of(quantized, "quant_numbers", 9.0)
    found = certified(quantized, 3.0 * VALUES, tmp_path)
    (count,) = (tensor for tensor in found.trained if tensor.saturated)
    low, high = deployed_graph(Network(quantized)).codes(count.name).real_range
    outside = np.mean(np.abs(3.0 * VALUES - (low + high) / 2) > (high - low) / 2)
    assert count.saturated_share == pytest.approx(outside, abs=0.01)
    assert count.codes_differing == 0
    assert (found.verdict.kind, found.is_exact) == ("good", True)


def test_values_that_saturate_without_another_answer_are_no_failure(tmp_path):
    quantized = regression(1)
    variables = quantized.get_layer("quant_numbers").output_variables
    ends = np.quantile(quantized(VALUES, training=False), [0.02, 0.98])
    for end, value in zip(("lowest", "highest"), ends, strict=True):
        variables[end].assign(value)
    found = certified(quantized, VALUES, tmp_path)
    assert (found.verdict.kind, found.is_exact, found.output_mismatches) == ("watch", True, [])
    assert "but it saturates values of the trained model" in found.verdict.words


@pytest.mark.parametrize("is_moved", [True, False])
def test_only_the_tensor_whose_codes_differ_by_themselves_is_named(small, is_moved):
    graph, images = deployed_graph(Network(small)), images_for(small, 16)
    made = [operation for operation in graph.operations if isinstance(operation, Linear)][1]
    shift = is_moved * np.ceil(1.0 / requantization_multipliers(graph, made)).astype(int)
    moved = dataclasses.replace(made, bias=made.bias + shift)
    operations = tuple(moved if operation is made else operation for operation in graph.operations)
    graph = dataclasses.replace(graph, operations=operations)
    counter = TrainedCounter(TrainedModel(Network(small), graph), graph)
    counter.add(images, simulate(graph, images), {})
    found = counter.result()
    assert [count.name for count in found if count.is_unexplained] == [made.output] * is_moved
    # Tensors that are made of it differ because of it.
    behind = [count for count in found if count.codes_differing > count.alone_differing]
    assert behind or not is_moved


def test_answers_part_where_more_than_a_few_classes_are_others(few):
    for differing, places, is_bad in ((6, 64, True), (5, 8, False), (6, 200, False)):
        changes = {"values": None, "places": places, "agreement": 1.0 - differing / places}
        found = with_output(few, classes_by="labels", **changes)
        assert (bool(found.output_mismatches), found.is_exact) == (is_bad, not is_bad)


@pytest.mark.parametrize(
    ("images", "differing", "places", "kind"),
    [
        *((count, count, 1, "watch") for count in (5, 6, 29)),
        *((30, 30, 1, "bad"), (29, 0, 1, "watch"), (30, 0, 1, "good")),
        # Many pixels tell that answers differ; few images do not tell that they are kept.
        (5, 40, 64, "bad"),
        (5, 0, 64, "watch"),
    ],
)
def test_few_images_do_not_tell_whether_answers_are_kept(images, differing, places, kind, few):
    changes = {"places": images * places, "agreement": 1.0 - differing / (images * places)}
    found = with_output(few, classes_by="softmax", values=None, **changes)
    found = dataclasses.replace(found, num_images=images)
    (output,) = found.runtimes["xnnpack"].outputs
    beside_float = dataclasses.replace(found, reference="simulation", float_outputs=[output])
    for one in (found, beside_float):
        assert one.verdict.kind == kind
        is_told = f"{images} images cannot tell whether answers are kept" in one.verdict.words
        assert is_told == (images < 30 and not one.output_mismatches)
        assert f'<p class="verdict {kind}">' in certificate_page(one)
        assert one.to_dict()["verdict"] == one.verdict._asdict()
        assert one.verdict.words in str(one)
    # Codes are equal or not, on one image as on many.
    file_alone = dataclasses.replace(found, reference="simulation", trained=[])
    assert file_alone.verdict.kind == "good"
    different = dataclasses.replace(found.tensors[0], codes_differing=1)
    runtime = dataclasses.replace(found.runtimes["xnnpack"], tensors=[different])
    assert dataclasses.replace(found, runtimes={"xnnpack": runtime}).verdict.kind == "bad"


def test_channels_that_one_scale_leaves_no_codes_part(tmp_path):
    quantized = regression(4)
    kernel = quantized.get_layer("quant_numbers").layer.kernel
    kernel.assign(kernel * np.array([1.0, 0.002, 0.002, 0.002]))
    with pytest.warns(UserWarning, match="fewer than 16 of the 256 codes"):
        sat_tf.calibrate(quantized, VALUES, progress=False)
    found = certified(quantized, VALUES, tmp_path)
    assert found.codes_differing == 0
    assert len(found.output_mismatches) == 1
    assert "3 channels are off" in found.trained_notes[0].words
    assert (found.verdict.kind, found.is_exact) == ("bad", False)


def test_numbers_behind_sigmoids_part_where_values_and_classes_do(few):
    (output,) = few.runtimes["xnnpack"].outputs
    parts = {}
    for is_off in (False, True):
        values = dataclasses.replace(output.values, off=int(is_off))
        changes = {"classes_by": "sigmoid", "values": values, "places": 200, "agreement": 0.9}
        parts[is_off] = with_output(few, **changes).trained_notes
    assert not parts[False]
    assert "another class for 20 of 200 images" in parts[True][0].words


def of_streams() -> keras.Model:
    """Functions, sums, means of windows and a product, of what no rectifier has made."""
    keras.utils.set_random_seed(0)
    image = keras.Input((12, 12, 3), name="image")
    hidden = L.BatchNormalization(name="normed")(L.Conv2D(8, 3)(image))
    hidden = L.Activation("tanh")(hidden)
    gate = L.Activation("sigmoid")(L.Conv2D(8, 1, name="gate")(hidden))
    hidden = L.Multiply()([L.Conv2D(8, 1, name="gated")(hidden), gate])
    hidden = L.Add(name="sum")([hidden, L.Conv2D(8, 3, padding="same", name="added")(hidden)])
    windows = L.AveragePooling2D(2, name="windows")(hidden)
    hidden = L.Activation("swish")(L.BatchNormalization()(windows))
    hidden = L.Activation("softsign")(L.Dense(6, name="pooled")(L.Flatten()(hidden)))
    return keras.Model(image, L.Dense(3, name="numbers")(hidden))


@pytest.mark.essential
@pytest.mark.parametrize(
    "policy",
    [
        BitPolicy.mobile(8, stream_bits=None),
        pytest.param(BitPolicy.paper(4), marks=pytest.mark.thorough),
        pytest.param(BitPolicy.paper(8), marks=pytest.mark.thorough),
    ],
    ids=["mobile8", "paper4", "paper8"],
)
def test_float_streams_are_in_keras_what_the_file_makes_of_them(policy, tmp_path):
    quantized = calibrated(of_streams(), policy)
    observers = {
        layer.layer.name: layer.quantize_config.output
        for layer in quantized.layers
        if getattr(getattr(layer, "quantize_config", None), "output", None) is not None
    }
    streams = {name for name, observer in observers.items() if observer.trains_float}
    assert {"normed", "gate", "gated", "added", "pooled"} <= streams
    assert not {"numbers", "windows"} & streams  # an output, and float in the file
    found = certified(quantized, images_for(quantized, 16), tmp_path, snap_biases=True)
    assert not any(count.is_unexplained for count in found.trained)
    assert found.trained_differing < 0.001


def behind_float_layers(first) -> keras.Model:
    """Preprocessing, and layers left float behind a convolution of what it makes."""
    keras.utils.set_random_seed(0)
    image = keras.Input((12, 12, 1), name="image")
    hidden = L.Reshape((9, 16))(L.Conv2D(16, 4, 4, name="patches")(first(image)))
    hidden = L.LayerNormalization(name="between")(L.Dense(16, name="mixed")(hidden))
    hidden = L.LayerNormalization(name="behind")(L.Dense(16, name="again")(hidden))
    return keras.Model(image, L.Dense(5, name="numbers")(L.Flatten()(hidden)))


PREPROCESSING = {
    "tf": lambda: L.Rescaling(1 / 127.5, -1.0, name="first"),
    "ties": lambda: L.Rescaling(1 / 255, 1.0, name="first"),
    "channels": lambda: L.Normalization(mean=[117.3], variance=[57.1**2], name="first"),
}


@pytest.mark.parametrize("first", PREPROCESSING)
def test_constants_of_preprocessing_give_keras_the_codes_of_its_file(first, tmp_path):
    model = behind_float_layers(PREPROCESSING[first]())
    quantized = calibrated(model, BitPolicy.mobile(8, unsupported="float"))
    found = certified(quantized, images_for(model, 8), tmp_path, snap_biases=True)
    assert found.trained[1].name == "first"
    assert found.trained[1].codes_differing == 0
    assert not any(count.is_unexplained for count in found.trained)


def test_tensors_behind_float_layers_are_not_accused_of_what_these_read(tmp_path):
    model = behind_float_layers(PREPROCESSING["ties"]())
    quantized = calibrated(model, BitPolicy.mobile(8, unsupported="float"))
    layer = quantized.get_layer("quant_first")
    layer.output_variables["clipping_level"].assign(2.0)  # half of all pixels are ties
    found = certified(quantized, images_for(model, 8), tmp_path, snap_biases=True)
    by_itself = {count.name: count.alone_share for count in found.trained}
    behind = {name: share for name, share in by_itself.items() if name != "first"}
    assert by_itself["first"] > 0.05
    assert max(behind.values()) < 0.01
    assert max(count.codes_differing for count in found.trained[-4:]) > 20
    (note,) = (note.words for note in found.trained_notes if "More codes differ" in note.words)
    assert note.endswith("explains: first (DEPTHWISE_CONV_2D) " + note.rsplit(" ", 2)[-2] + " %")
