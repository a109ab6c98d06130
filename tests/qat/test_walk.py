import subprocess
import sys
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.qat import walk
from sat_tf.qat.calibrate import call_node, estimate_statistics
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.shared_grids import CoarseValuesWarning
from sat_tf.qat.walk import as_graph
from tests.qat import float_models

L = keras.layers


def _walked(network, images, **options):
    """The tensors that a walk makes, and the images in each part."""
    made, sizes = {}, {}

    def call(node, parts):
        found = [call_node(node, inputs, False) for inputs in parts]
        sizes[node.name] = [int(part.shape[0]) for part in found]
        made[node.name] = np.concatenate([part.numpy() for part in found])
        return iter(found)

    walk.walk(network, images, call, **options)
    return made, sizes


@pytest.fixture
def parted(monkeypatch):
    """Sets how large parts are; nothing is too small for them."""

    def set_size(at_once):
        monkeypatch.setattr(walk, "_BYTES_AT_ONCE", at_once)
        monkeypatch.setattr(walk, "_MOST_BYTES", at_once)

    return set_size


@pytest.mark.parametrize("name", ["mobile_block", "dropout", "without_normalization"])
@pytest.mark.parametrize("at_once", [1, 2000, 10_000])
def test_a_network_in_parts_computes_what_it_does_on_the_whole_batch(parted, name, at_once):
    network = Network(float_models.build(name))
    images = (float_models.images(45),)
    expected, whole = _walked(network, images)
    assert all(sizes == [45] for sizes in whole.values())
    parted(at_once)
    found, several = _walked(network, images)
    assert any(len(sizes) > 1 for sizes in several.values())
    for node in network:
        if node.name not in network.inputs:
            largest = np.abs(expected[node.name]).max()
            np.testing.assert_allclose(
                found[node.name], expected[node.name], rtol=1e-5, atol=1e-5 * largest
            )


def test_parts_have_as_many_images_as_memory_takes(parted):
    image = keras.Input((8, 8, 2))
    wide = L.Conv2D(16, 1, name="wide")(image)
    model = keras.Model(image, L.Dense(3, name="last")(L.GlobalAveragePooling2D(name="mean")(wide)))
    parted(20 * 8 * 8 * 16 * 4)
    _, sizes = _walked(Network(model), (np.ones((45, 8, 8, 2), np.float32),))
    assert sizes == {"wide": [16, 16, 13], "mean": [16, 16, 13], "last": [45]}
    _, sizes = _walked(Network(model), (np.ones((45, 8, 8, 2), np.float32),), whole=["mean"])
    assert sizes == {"wide": [16, 16, 13], "mean": [45], "last": [45]}


def test_layers_that_may_mix_images_get_the_whole_batch(parted):
    parted(1)
    image = keras.Input((8, 8, 3))
    mixed = L.Lambda(lambda x: x - tf.reduce_mean(x, axis=0), name="mixed")(image)
    model = keras.Model(image, L.Conv2D(2, 1, name="conv")(mixed))
    images = float_models.images(9)
    made, sizes = _walked(Network(model), (images,))
    assert sizes == {"mixed": [9], "conv": [1] * 9}
    np.testing.assert_allclose(made["conv"], model(images), rtol=1e-4, atol=1e-3)


def test_tensors_with_other_rows_than_images_are_not_cut(parted):
    parted(1)
    image = keras.Input((8, 8, 3))
    pixels = L.Lambda(lambda x: tf.reshape(x, (-1, 3)), name="pixels")(image)
    dense = L.Dense(2, name="dense")(pixels)
    back = L.Lambda(lambda x: tf.reshape(x, (-1, 8, 8, 2)), name="back")(dense)
    model = keras.Model(image, L.Conv2D(2, 1, name="conv")(back))
    images = float_models.images(9)
    made, sizes = _walked(Network(model), (images,))
    assert sizes == {"pixels": [576], "dense": [576], "back": [9], "conv": [1] * 9}
    np.testing.assert_allclose(made["conv"], model(images), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("at_once", "most"), [(1, 3), (2**24, 2)])
def test_a_tensor_is_forgotten_when_it_has_been_read(parted, at_once, most):
    parted(at_once)
    model = keras.Sequential([keras.Input((8, 8, 3)), *(L.Conv2D(4, 1) for _ in range(4))])
    model.add(L.GlobalAveragePooling2D())
    made = []

    def call(node, inputs):
        found = call_node(node, inputs, False)
        if found.shape.rank == 4:
            made.append(weakref.ref(found))
            assert sum(part() is not None for part in made) <= most
        return found

    walk.walk(Network(model), (float_models.images(6),), walk.each_part(call))
    assert len(made) == 4 * (6 if at_once == 1 else 1)


def test_layers_are_called_in_their_order_and_parts_go_through_several_of_them(parted):
    parted(1)
    model = keras.Sequential([keras.Input((8, 8, 3)), *(L.Conv2D(4, 1) for _ in range(3))])
    calls = []

    def call(node, inputs):
        calls.append(node.name)
        return call_node(node, inputs, False)

    walk.walk(Network(model), (float_models.images(2),), walk.each_part(call))
    names = [layer.name for layer in model.layers]
    assert calls == names * 2


def test_a_network_may_have_more_layers_than_calls_can_be_nested(parted):
    parted(1)
    model = keras.Sequential([keras.Input((8, 8, 1)), *(L.ReLU() for _ in range(400))])
    made = []

    def call(node, inputs):
        made.append(call_node(node, inputs, False))
        return made[-1]

    walk.walk(Network(model), (np.ones((2, 8, 8, 1), np.float32),), walk.each_part(call))
    assert len(made) == 2 * 400


def _statistics(model, images):
    estimate_statistics(model, images)
    return [v.numpy() for v in model.variables if "moving_" in v.name]


def test_statistics_in_parts_are_those_of_whole_batches(parted):
    images = np.concatenate([float_models.images(64), 0.5 * float_models.images(40, seed=1)])
    whole = _statistics(float_models.build("mobile_block"), images)
    parted(4000)
    cut = _statistics(float_models.build("mobile_block"), images)
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [3, 16, 40, 43])
def test_a_normalization_in_parts_is_that_of_the_whole_batch_bit_for_bit(parted, channels):
    draw = np.random.default_rng(0)
    images = draw.normal(2.0, 3.0, (150, 8, 8, channels)).astype(np.float32)
    found = []
    for at_once in (2**24, 5000):
        parted(at_once)
        # The second one shows what the first one makes of the batch.
        model = keras.Sequential([keras.Input((8, 8, channels))])
        model.add(L.BatchNormalization(gamma_initializer="ones", epsilon=0.3))
        model.add(L.ReLU())
        model.add(L.BatchNormalization())
        found.append(_statistics(model, images))
    np.testing.assert_equal(*found)


def test_a_normalization_that_is_called_twice_is_in_parts_that_of_whole_batches(parted):
    images = np.random.default_rng(0).normal(2.0, 3.0, (150, 8, 8, 16)).astype(np.float32)
    found = []
    for at_once in (2**24, 5000):
        parted(at_once)
        image = keras.Input((8, 8, 16))
        twice = L.BatchNormalization(gamma_initializer="ones", epsilon=0.3)
        # The second call has other statistics, and the last layer shows what both make of theirs.
        behind = twice(L.ReLU()(twice(image)))
        model = keras.Model(image, L.BatchNormalization()(L.Add()([behind, image])))
        found.append(_statistics(model, images))
    np.testing.assert_equal(*found)


@pytest.mark.filterwarnings("ignore::sat_tf.qat.layout.GuessedClippingLevelsWarning")
def test_values_that_get_few_codes_are_warned_of_in_parts_as_in_whole_batches(parted):
    image = keras.Input((8, 8, 3))
    large, small = (L.Conv2D(4, 1, kernel_initializer="ones", name=n) for n in ("large", "small"))
    joined = L.Concatenate(name="joined")([large(image), small(image)])
    model = keras.Model(image, L.Dense(2)(L.GlobalAveragePooling2D()(joined)))
    large.kernel.assign(1000.0 * large.kernel)
    found = []
    for at_once in (2**24, 1):
        parted(at_once)
        quantized = sat_tf.quantize_model(model, BitPolicy.mobile(8))
        with pytest.warns(CoarseValuesWarning, match="parts of joined: 1 of 2") as warned:
            sat_tf.calibrate(quantized, float_models.images(45))
        found.append([str(one.message) for one in warned if "joined" in str(one.message)])
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", [BitPolicy.mobile(4), BitPolicy.mobile(8), BitPolicy.paper(2)])
def test_calibration_in_parts_gives_the_same_levels(parted, policy):
    images = float_models.images(96)
    found = []
    for at_once in (2**24, 4000):
        parted(at_once)
        quantized = sat_tf.quantize_model(float_models.build("mobile_block"), policy)
        found.append(sat_tf.calibrate(quantized, images).get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


_PEAK = """
import resource, sys
import numpy as np, tf_keras as keras, sat_tf
from sat_tf.qat import images
images.MOST_BYTES_IN_MEMORY = 2**22
L = keras.layers
image = keras.Input((96, 96, 3))
x = L.ReLU()(L.BatchNormalization()(L.Conv2D(64, 3, padding="same", use_bias=False)(image)))
x = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, padding="same", use_bias=False)(x)))
model = keras.Model(image, L.Dense(4)(L.GlobalAveragePooling2D()(x)))
quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
rng = np.random.default_rng(0)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def batches(count):
    for _ in range(count // 32):
        yield rng.integers(0, 256, (32, 96, 96, 3)).astype(np.float32)
before = peak()
for count in map(int, sys.argv[1:]):
    sat_tf.calibrate(quantized, batches(count), num_images=count, keep_function=True)
    print(peak() - before)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_the_peak_of_calibration_does_not_grow_with_the_images():
    # A tensor of 64 images is 151 MB, and 448 images are 50 MB.
    command = [sys.executable, "-W", "ignore", "-c", _PEAK, "64", "448"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    few, many = map(float, run.stdout.split())
    assert few < 2.5 * 151
    assert many < few + 24


class Probe:
    def __init__(self, factor):
        self.factor, self.traced = factor, 0
        self.measure = as_graph(self.run)

    def run(self, x):
        self.traced += 1
        return self.factor * x


def test_a_measurement_is_traced_once_for_equal_shapes():
    probe = Probe(3.0)
    assert [float(probe.measure(tf.constant(x))) for x in (1.0, 2.0)] == [3.0, 6.0]
    assert probe.traced == 1


def test_probes_of_many_models_are_no_reason_to_warn(caplog):
    # TensorFlow warns from the fifth of the last ten calls that trace on.
    for factor in range(8):
        Probe(float(factor)).measure(tf.constant(1.0))
    assert "retracing" not in caplog.text
