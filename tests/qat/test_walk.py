import subprocess
import sys
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from PIL import Image

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.qat import images, walk
from sat_tf.qat.calibrate import estimate_statistics
from sat_tf.qat.images import Batches, FileArray, elements_of, fed_batches, gather, images_at_once
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.shared_grids import CoarseValuesWarning
from sat_tf.qat.walk import as_graph, call_node
from tests.qat import float_models
from tests.qat.float_models import L, model_of


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
    names = ("_BYTES_AT_ONCE", "_MOST_BYTES")
    return lambda at_once: [monkeypatch.setattr(walk, name, at_once) for name in names]


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
    layers = [L.Conv2D(16, 1, name="wide"), L.GlobalAveragePooling2D(name="mean")]
    model = model_of(*layers, L.Dense(3, name="last"), shape=(8, 8, 2))
    parted(20 * 8 * 8 * 16 * 4)
    _, sizes = _walked(Network(model), (np.ones((45, 8, 8, 2), np.float32),))
    assert sizes == {"wide": [16, 16, 13], "mean": [16, 16, 13], "last": [45]}
    _, sizes = _walked(Network(model), (np.ones((45, 8, 8, 2), np.float32),), whole=["mean"])
    assert sizes == {"wide": [16, 16, 13], "mean": [45], "last": [45]}


MIXED = [L.Lambda(lambda x: x - tf.reduce_mean(x, axis=0), name="mixed")]
OF_PIXELS = [
    L.Lambda(lambda x: tf.reshape(x, (-1, 3)), name="pixels"),
    L.Dense(2, name="dense"),
    L.Lambda(lambda x: tf.reshape(x, (-1, 8, 8, 2)), name="back"),
]


@pytest.mark.parametrize(
    ("layers", "parts"),
    [(MIXED, {"mixed": [9]}), (OF_PIXELS, {"pixels": [576], "dense": [576], "back": [9]})],
    ids=["layers that may mix images", "tensors with other rows than images"],
)
def test_what_may_mix_images_is_not_cut(parted, layers, parts):
    parted(1)
    model = model_of(*layers, L.Conv2D(2, 1, name="conv"))
    images = float_models.images(9)
    made, sizes = _walked(Network(model), (images,))
    assert sizes == {**parts, "conv": [1] * 9}
    np.testing.assert_allclose(made["conv"], model(images), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("at_once", "most"), [(1, 3), (2**24, 2)])
def test_a_tensor_is_forgotten_when_it_has_been_read(parted, at_once, most):
    parted(at_once)
    model = model_of(*(L.Conv2D(4, 1) for _ in range(4)), L.GlobalAveragePooling2D())
    made = []

    def call(node, inputs):
        found = call_node(node, inputs, False)
        if found.shape.rank == 4:
            made.append(weakref.ref(found))
            assert sum(part() is not None for part in made) <= most
        return found

    walk.walk(Network(model), (float_models.images(6),), walk.each_part(call))
    assert len(made) == 4 * (6 if at_once == 1 else 1)


@pytest.mark.parametrize(
    "layers",
    # Also more layers than calls can be nested.
    [[L.Conv2D(4, 1) for _ in range(3)], [L.ReLU() for _ in range(400)]],
    ids=["few", "many"],
)
def test_layers_are_called_in_their_order_and_parts_go_through_several_of_them(parted, layers):
    parted(1)
    calls = []

    def call(node, inputs):
        calls.append(node.name)
        return call_node(node, inputs, False)

    walk.walk(Network(model_of(*layers)), (float_models.images(2),), walk.each_part(call))
    names = [layer.name for layer in layers]
    assert calls == names * 2 if len(names) == 3 else sorted(calls) == sorted(names * 2)


@pytest.mark.parametrize(
    ("is_called_twice", "channels"), [*((False, n) for n in (3, 16, 40, 43)), (True, 16)]
)
def test_a_normalization_in_parts_is_that_of_the_whole_batch_bit_for_bit(
    parted, is_called_twice, channels
):
    draw = np.random.default_rng(0)
    images = draw.normal(2.0, 3.0, (150, 8, 8, channels)).astype(np.float32)
    statistics = []
    for at_once in (2**24, 5000):
        parted(at_once)
        norm = L.BatchNormalization(gamma_initializer="ones", epsilon=0.3)
        image = keras.Input((8, 8, channels))
        x = L.ReLU()(norm(image))
        # The second call has other statistics.
        x = L.Add()([norm(x), image]) if is_called_twice else x
        # The last layer shows what the others make of the batch.
        model = keras.Model(image, L.BatchNormalization()(x))
        estimate_statistics(model, images)
        statistics.append([v.numpy() for v in model.variables if "moving_" in v.name])
    np.testing.assert_equal(*statistics)


@pytest.mark.filterwarnings("ignore::sat_tf.qat.layout.GuessedClippingLevelsWarning")
def test_values_that_get_few_codes_are_warned_of_in_parts_as_in_whole_batches(parted):
    large, small = (L.Conv2D(4, 1, kernel_initializer="ones", name=n) for n in ("large", "small"))
    joined = L.Concatenate(name="joined")
    layers = [lambda x: joined([large(x), small(x)]), L.GlobalAveragePooling2D(), L.Dense(2)]
    model = model_of(*layers)
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


def test_measurements_are_traced_once_for_equal_shapes_and_no_reason_to_warn(caplog):
    traced = []

    def scaled(x):
        traced.append(x.shape)
        return 3.0 * x

    # TensorFlow warns from the fifth of the last ten calls that trace on.
    for count in range(1, 9):
        measure = as_graph(scaled)
        assert [float(measure(tf.constant(x))) for x in (1.0, 2.0)] == [3.0, 6.0]
        assert len(traced) == count
    assert "retracing" not in caplog.text


# Seventy images of the size of the test models, with which rows can be told apart.
ROWS = np.arange(70 * 8 * 8 * 3, dtype=np.float32).reshape(70, 8, 8, 3)


def test_arrays_above_the_bound_are_in_a_file(monkeypatch):
    monkeypatch.setattr(images, "MOST_BYTES_IN_MEMORY", 40)
    small, large = FileArray((10,), np.float32), FileArray((11,), np.float32)
    for rows in (small, large):
        rows[:] = np.arange(len(rows))
        np.testing.assert_array_equal(rows[:], np.arange(len(rows), dtype=np.float32))
    # Python has no public name for it.
    assert [rows._file._rolled for rows in (small, large)] == [False, True]
    assert (large.ndim, large.size, large.shape, len(large)) == (1, 11, (11,), 11)
    # Rows of a file are those of the array.
    file = FileArray((0, 8, 8, 3), np.float32)
    file.append(ROWS[:20])
    file.append(ROWS[20:])
    for rows in (slice(0, 64), slice(64, 200), slice(5, 5), slice(None), np.array([3, 69, 3, 0])):
        np.testing.assert_array_equal(file[rows], ROWS[rows])
    assert file[np.array([], int)].shape == (0, 8, 8, 3)
    file[8:10] = -ROWS[:2]
    np.testing.assert_array_equal(file[7:11], [ROWS[7], -ROWS[0], -ROWS[1], ROWS[10]])


def test_gathered_batches_are_the_same_in_a_file(monkeypatch):
    # Anything but the smallest arrays goes to files.
    monkeypatch.setattr(images, "MOST_BYTES_IN_MEMORY", 1000)
    network, batches = Network(float_models.build("dropout")), [ROWS[:30], ROWS[30:31], ROWS[31:]]
    (rows,) = gather(iter(batches), 512, network)
    assert isinstance(rows, FileArray)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows[:], ROWS)
    (few,) = gather(iter(batches), 40, network)
    np.testing.assert_array_equal(few[:], ROWS[:40])
    # Batches of several types have the type of all, and an array of images is not copied.
    pixels = np.full((40, 8, 8, 3), 7, np.uint8)
    (mixed,) = gather([pixels, ROWS, pixels], 512, network)
    np.testing.assert_array_equal(mixed[:], np.concatenate([pixels, ROWS, pixels]))
    (same,) = gather(ROWS, 64, network)
    assert np.shares_memory(same, ROWS)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(20, [20]), (64, [64]), (70, [70]), (96, [64, 32]), (129, [64, 65]), (168, [64, 64, 40])],
)
def test_a_last_batch_of_less_than_half_is_part_of_the_one_before(count, sizes):
    numbers = np.arange(count)
    batches = Batches((numbers,))
    assert (len(batches), batches.num_images) == (len(sizes), count)
    assert [len(batch[0]) for batch in batches] == sizes
    np.testing.assert_array_equal(np.concatenate([b[0] for b in batches]), numbers)


def test_batches_are_smaller_where_tensors_are_large():
    found = []
    for rows in (64, 65):
        layers = [L.Conv2D(128, 1, use_bias=False), L.GlobalAveragePooling2D()]
        found.append(images_at_once(Network(model_of(*layers, shape=(rows, rows, 1)))))
    assert found == [64, 32]
    sizes = [len(batch) for (batch,) in Batches((np.arange(79),), size=32)]
    assert sizes == [32, 47]


def test_batches_of_chosen_images_are_in_their_order_and_pixels_fed_batch_by_batch():
    chosen = np.arange(70)[::-1]
    done = []
    (batch,) = Batches((ROWS, ROWS[:, 0]), chosen, advance=done.append)
    np.testing.assert_array_equal(batch[0], ROWS[chosen])
    np.testing.assert_array_equal(batch[1], ROWS[chosen, 0])
    assert done == [70]
    pixels = np.arange(70, dtype=np.uint8)
    parts = list(fed_batches(pixels, lambda some: some / 2.0))
    assert [len(part) for part in parts] == [64, 6]
    np.testing.assert_array_equal(np.concatenate(parts), pixels / 2.0)


@pytest.fixture
def pictures(tmp_path):
    """Eighty pictures of the model's size, in two folders of classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 3), np.uint8)
    for index, image in enumerate(pixels):
        folder = tmp_path / "photos" / ("cat", "dog")[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{index:02}.png")
    return tmp_path / "photos"


def _in_order(folder):
    paths = sorted(folder.rglob("*.png"), key=lambda path: (path.parent.name, path.name))
    return np.stack([np.asarray(Image.open(path)) for path in paths])


def _quantized(**fields):
    model = float_models.build("mobile_block")
    return sat_tf.quantize_model(model, BitPolicy.mobile(4, **fields))


def test_a_folder_calibrates_as_its_pictures_do(pictures):
    of_folder = sat_tf.calibrate(_quantized(), str(pictures))
    of_array = sat_tf.calibrate(_quantized(), _in_order(pictures).astype(np.float32))
    np.testing.assert_equal(of_folder.get_weights(), of_array.get_weights())


@pytest.mark.thorough
def test_pictures_of_a_folder_take_the_range_of_the_input(pictures):
    of_folder = sat_tf.calibrate(_quantized(input_range=(-1.0, 1.0)), pictures)
    fed = (_in_order(pictures) / 127.5 - 1.0).astype(np.float32)
    of_array = sat_tf.calibrate(_quantized(input_range=(-1.0, 1.0)), fed)
    for mine, yours in zip(of_folder.get_weights(), of_array.get_weights(), strict=True):
        np.testing.assert_allclose(mine, yours, rtol=1e-4, atol=1e-5)  # x / 127.5 - 1 rounds


@pytest.mark.thorough
def test_pictures_to_train_on_are_taken_where_there_are_others(pictures, tmp_path):
    expected = _in_order(pictures).astype(np.float32)
    data = tmp_path / "data"
    data.mkdir()
    pictures.rename(data / "train")
    for name in ("cat", "dog"):  # other classes than those of train would be refused
        (data / "val" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), "white").save(data / "val" / name / "white.png")
    one, other = (sat_tf.calibrate(_quantized(), images) for images in (data, expected))
    np.testing.assert_equal(one.get_weights(), other.get_weights())


def test_a_data_set_that_fails_while_it_is_read_says_why():
    values = tf.data.Dataset.from_tensor_slices([1.0, np.nan])
    dataset = values.map(lambda one: tf.debugging.check_numerics(one, "odd one"))
    with pytest.raises(ValueError, match=r"(?s)fails while it is read \(.*odd one.*mend it"):
        list(elements_of(dataset))
