import contextlib
import itertools
import operator
import re
import warnings

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.messages.progress_bar import Progress
from sat_tf.qat import images as qat_images
from sat_tf.qat.reconstruction import blocks, fit, reconstruct
from sat_tf.qat.reconstruction.fit import Checkpoint
from tests.export.proofs import proved
from tests.qat import float_models

STEPS = 10


def _calibrated(float_model, images, policy=None):
    quantized = sat_tf.quantize_model(float_model, policy or sat_tf.BitPolicy.mobile(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statistics that are not those of noise
        sat_tf.calibrate(quantized, images, progress=False)
    return quantized


@pytest.fixture(scope="module")
def images():
    return float_models.images(64)


@pytest.fixture(scope="module")
def float_model():
    return float_models.build("mobile_block")


@pytest.fixture(scope="module")
def _fitted(float_model, images):
    quantized = _calibrated(float_model, images)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    return quantized, before, found, quantized.get_weights()


@pytest.fixture
def fitted(_fitted):
    """A fitted model that no other test has changed, its weights before, and what was gained."""
    quantized, before, found, weights = _fitted
    quantized.set_weights(weights)
    return quantized, before, found


def _distance(model, other, images):
    one, of_float = (np.asarray(m(images, training=False), np.float64) for m in (model, other))
    return float(np.mean(np.square(one - of_float)) / np.mean(np.square(of_float)))


def test_the_outputs_come_nearer_to_the_float_model(fitted, float_model, images):
    quantized, before, found = fitted
    after = _distance(quantized, float_model, images)
    quantized.set_weights(before)
    assert after < _distance(quantized, float_model, images)
    assert found.kept
    assert found.error_after < found.error_before
    assert found.num_images == 64
    assert found.held_out == 12


def test_no_block_is_worse_on_the_held_out_images(fitted):
    *_, found = fitted
    assert all(block.error_after <= block.error_before for block in found.blocks)
    assert found.blocks[-1].block == ""
    assert len(found.blocks) > 2


@pytest.mark.thorough
def test_the_result_is_a_table_and_rows(fitted):
    *_, found = fitted
    assert isinstance(found, reconstruct.Reconstruction)
    assert "the whole network" in found.table()
    assert "on 12 held-out images" in repr(found)
    assert [row["block"] for row in found.to_rows()] == [one.block for one in found.blocks]


@pytest.mark.thorough
def test_equal_seeds_give_equal_models(fitted, float_model, images):
    quantized, before, found = fitted
    weights = quantized.get_weights()
    quantized.set_weights(before)
    again = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    np.testing.assert_equal(weights, quantized.get_weights())
    assert again.error_after == found.error_after


def _statistics(model):
    return [v.numpy() for v in model.variables if "moving_" in v.name]


def test_frozen_layers_and_normalizations_stay_as_they_are(float_model, images):
    quantized = _calibrated(float_model, images)
    frozen = [layer for layer in quantized.layers if re.search("quant_expand$|bn", layer.name)]
    assert len(frozen) > 1
    for layer in frozen:
        layer.trainable = False
    before = [layer.get_weights() for layer in frozen]
    found = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    assert found.kept
    for layer, weights in zip(frozen, before, strict=True):
        np.testing.assert_equal(weights, layer.get_weights())


def test_statistics_are_those_of_the_fitted_images_where_the_whole_network_was_fitted(
    fitted, images
):
    quantized, before, found = fitted
    assert found.blocks[-1].kept
    after = _statistics(quantized)
    chosen = np.random.default_rng(0).permutation(len(images))[found.held_out :]
    sat_tf.calibrate(quantized, images[chosen], clipping_levels=False, progress=False)
    for one, other in zip(after, _statistics(quantized), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    quantized.set_weights(before)
    assert any(map(np.any, map(np.not_equal, after, _statistics(quantized))))


@pytest.mark.parametrize(
    ("many", "held_out"),
    [
        (float_models.images(330), 64),
        (np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8), 8),
    ],
    ids=["no more than 64", "of integers"],
)
def test_one_image_in_five_is_held_out(many, held_out, fitted, float_model):
    quantized, before, _ = fitted
    quantized.set_weights(before)
    found = sat_tf.reconstruct(quantized, float_model, many, steps=1, progress=False)
    assert (found.num_images, found.held_out) == (len(many), held_out)


def test_what_helps_nothing_leaves_the_model_as_it_was(float_model, images, monkeypatch):
    # A rate at which every fit diverges.
    for name in ("_BLOCK", "_WHOLE"):
        plan = getattr(reconstruct, name)
        monkeypatch.setattr(reconstruct, name, plan._replace(rate=1e6))
    quantized = _calibrated(float_model, images)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    np.testing.assert_equal(before, quantized.get_weights())
    assert not found.kept
    assert "nothing was better" in repr(found)
    assert found.error_after == found.error_before


def test_blocks_are_undone_that_make_the_outputs_worse(float_model, images, monkeypatch):
    made = reconstruct._Reconstructor._whole

    def growing(self):
        """The whole network, whose errors are larger each time that they are measured."""
        whole, more = made(self), itertools.count()
        errors = whole.errors
        whole.errors = lambda chosen: errors(chosen) + next(more)
        return whole

    monkeypatch.setattr(reconstruct._Reconstructor, "_whole", growing)
    quantized = _calibrated(float_model, images)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, images, steps=STEPS, progress=False)
    np.testing.assert_equal(before, quantized.get_weights())
    assert len(found.blocks) > 2
    assert not any(block.kept for block in found.blocks)
    assert not found.kept


@pytest.mark.thorough
def test_its_file_computes_the_integers_of_the_model(fitted, images, tmp_path):
    quantized, *_ = fitted
    proved(quantized, tmp_path / "model.tflite", images[:32].astype(np.uint8))


class _Interrupted(Progress):
    """Interrupts the work after so many calls; sooner or later in a block, or in the whole."""

    def __init__(self, calls):
        super().__init__()
        self.calls, self.places = calls, []

    def __call__(self, count):
        super().__call__(count)
        self.calls -= 1
        if not self.calls:
            raise KeyboardInterrupt

    def at(self, place):
        super().at(place)
        self.places.append(place)


@pytest.fixture
def progress_of(monkeypatch):
    """Lets reconstructions be interrupted after so many steps, and saves each step."""
    monkeypatch.setattr(fit, "_SECONDS_BETWEEN", 0.0)

    def use(calls):
        progress = _Interrupted(calls)
        monkeypatch.setattr(
            reconstruct, "image_bar", lambda *args, **options: contextlib.nullcontext(progress)
        )
        return progress

    return use


@pytest.mark.thorough
def test_what_was_interrupted_goes_on_and_ends_bit_by_bit_as_without(
    fitted, float_model, images, progress_of, tmp_path
):
    quantized, before, found = fitted
    expected, path = quantized.get_weights(), tmp_path / "unfinished.npz"
    blocks = len(found.blocks) - 1
    told = []

    def run(calls):
        quantized.set_weights(before)
        progress = progress_of(calls)
        saved = Checkpoint(path, say=told.append)
        return progress, sat_tf.reconstruct(
            quantized, float_model, images, steps=STEPS, checkpoint=saved
        )

    # In the second block, and in the whole network.
    for calls in (STEPS + 4, STEPS * (blocks - 1) + 30):
        with pytest.raises(KeyboardInterrupt):
            run(calls)
        np.testing.assert_equal(before, quantized.get_weights())
    progress, again = run(-1)
    assert progress.places == ["the whole network"]
    assert "Going on with 1 of" in told[0]
    assert f"{blocks} of {blocks} blocks of the reconstruction, and " in told[-1]
    assert "steps of what follows, which" in told[-1]
    np.testing.assert_equal(expected, quantized.get_weights())
    errors = operator.attrgetter("block", "error_before", "error_after")
    assert [*map(errors, again.blocks)] == [*map(errors, found.blocks)]
    # Once more, nothing is left to do.
    progress, again = run(1)
    assert progress.calls == 1
    np.testing.assert_equal(expected, quantized.get_weights())


L = keras.layers


def _networks(float_model, policy=None):
    network = Network(sat_tf.quantize_model(float_model, policy or sat_tf.BitPolicy.mobile(4)))
    reference, problems = blocks.find_reference(network, float_model)
    assert not problems
    return network, reference


def _ends(name, policy=None):
    return [*blocks.find_blocks(*_networks(float_models.build(name), policy)).values()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("plain", ["a_relu", "b_relu", "classifier"]),
        ("mobile_block", ["a_relu", "project_bn", "add", "last_relu", "classifier"]),
        ("residual", ["a_relu", "add_relu", "classifier"]),
        ("branches", ["a_relu", "joined", "d_relu", "classifier"]),
        ("softmax_in_the_classifier", ["a_relu", "classifier"]),
    ],
)
def test_blocks_end_where_all_later_layers_read_one_tensor(name, ends):
    assert _ends(name) == ends


@pytest.mark.filterwarnings("ignore")
def test_without_quantized_activations_blocks_are_the_same():
    policy = sat_tf.BitPolicy(weight_bits=4, activation_bits=None)
    assert _ends("mobile_block", policy) == _ends("mobile_block")


def _of_everything():
    """Two inputs, three outputs, a shared layer, a model inside, and squeeze-and-excitation."""
    one, other = keras.Input((8, 8, 3), name="one"), keras.Input((8, 8, 3), name="other")
    shared = L.Conv2D(4, 3, padding="same", activation="relu", name="shared")
    total = L.Add(name="add")([shared(one), shared(other)])
    layers = [L.Input((8, 8, 4)), L.Conv2D(6, 3, name="conv"), L.ReLU(name="relu")]
    inside = keras.Sequential(layers, "inside")
    features = inside(total)
    gate = L.GlobalAveragePooling2D(keepdims=True, name="squeeze")(features)
    gate = L.Conv2D(2, 1, activation="relu", name="reduce")(gate)
    gate = L.Conv2D(6, 1, activation="sigmoid", name="excite")(gate)
    features = L.Multiply(name="gated")([features, gate])
    pooled = L.GlobalAveragePooling2D(name="pool")(features)
    heads = {
        "classes": L.Dense(3, activation="softmax", name="classes")(pooled),
        "box": L.Dense(4, name="box")(pooled),
        "score": L.Dense(1, activation="sigmoid", name="score")(pooled),
    }
    return keras.Model({"one": one, "other": other}, heads, name="everything")


@pytest.mark.filterwarnings("ignore")
def test_blocks_of_shared_layers_models_inside_gates_and_several_outputs():
    network, reference = _networks(_of_everything())
    ends = [*blocks.find_blocks(network, reference).values()]
    assert ends[:3] == ["add", "inside/relu", "gated"]
    assert {*ends[3:]} == {"classes", "box", "score_sigmoid"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", float_models.EVERY)
def test_every_block_ends_at_tensors_of_one_shape(name):
    network, reference = _networks(float_models.build(name))
    found = blocks.find_blocks(network, reference)
    assert [*found][-1] in network.outputs
    for node, known in found.items():
        assert network[node].shape == reference[known].shape


@pytest.mark.essential
@pytest.mark.filterwarnings("ignore")
def test_a_front_holds_what_is_still_read_and_computes_what_the_model_does(monkeypatch):
    monkeypatch.setattr(qat_images, "MOST_BYTES_IN_MEMORY", 2000)
    network, reference = _networks(float_models.build("mobile_block"))
    given = float_models.images(70)
    front = blocks.Front(network, [given])
    for end in blocks.find_blocks(network, reference):
        span = front.up_to([end])
        front.advance(span, keep=[end])
        read = {node.name for node in network if node.name in front.tensors}
        assert read - {end} <= {name for node in network for name in node.inputs}
        assert len(front.tensors) <= 2
    (logits,) = front.tensors.values()
    computed = dict(network.computed({network.input: given}))[network.output].numpy()
    np.testing.assert_allclose(logits[:], computed, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_weights_that_training_has_moved_are_those_of_the_model(bits):
    float_model = float_models.build("mobile_block")
    quantized = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(bits))
    draw = np.random.default_rng(bits)
    for layer in quantized.layers:
        for variable in layer.trainable_variables:
            # Noise as large as the weights leaves a correlation of 0.7.
            value = variable.numpy()
            variable.assign(value + draw.normal(0.0, max(np.std(value), 1e-3), value.shape))
    _, problems = blocks.find_reference(Network(quantized), float_model)
    assert not problems
