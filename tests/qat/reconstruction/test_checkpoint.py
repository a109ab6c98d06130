import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.messages import RunError
from sat_tf.qat.reconstruction import fit
from sat_tf.qat.reconstruction.fit import Checkpoint, FitState, key_of
from tests.qat import float_models

FIT = {"block": "conv", "error_after": 0.5}


@pytest.fixture
def model():
    return keras.Sequential([keras.layers.Dense(2, input_shape=(3,))])


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(fit, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(fit, "_COST", 0.0)


def _opened(model, path, key="key", **options):
    told, draw = [], np.random.default_rng(0)
    opened = Checkpoint(path, say=told.append, **options)
    opened.open(key, model, draw, blocks=3)
    return opened, draw, " ".join(told)


def _state(done):
    return FitState(done, np.arange(4), np.zeros(2), [np.ones(3)], [np.float32(7)], [])


def test_weights_draws_and_fits_come_back_as_they_were(model, tmp_path):
    path = tmp_path / "unfinished.npz"
    first, draw, told = _opened(model, path)
    assert told == ""
    draw.random(5)
    model.set_weights([np.full((3, 2), 0.25), np.full(2, 0.5)])
    first.finish(FIT)
    assert first.saved == "1 of 3 blocks of the reconstruction"
    finished = model.get_weights()
    draw.random(2)
    model.set_weights([np.ones((3, 2)), np.ones(2)])
    assert first.is_due
    first.keep(_state(4))
    following = draw.random(3)
    model.set_weights([np.zeros((3, 2)), np.zeros(2)])
    again, draw, told = _opened(model, path)
    assert f"Going on with {again.saved}, which {path} holds." == told
    assert again.saved == "1 of 3 blocks of the reconstruction, and 4 steps of the next one"
    assert again.fits == [FIT]
    assert again.seconds > 0
    np.testing.assert_array_equal(draw.random(3), following)
    # They are those of the last finished fit; the fit under way has its own.
    np.testing.assert_equal(finished, model.get_weights())
    np.testing.assert_equal(_state(4), again.under_way)
    for _ in range(3):
        again.finish(FIT)
    assert _opened(model, path)[0].saved == "all of the reconstruction"


def test_a_file_of_another_reconstruction_is_passed_over(model, tmp_path):
    path = tmp_path / "unfinished.npz"
    _opened(model, path)[0].finish(FIT)
    before = model.get_weights()
    other, _, told = _opened(model, path, key="other")
    assert "passed over, as it is of another model, other images or settings." in told
    assert (other.fits, other.saved) == ([], "")
    np.testing.assert_equal(before, model.get_weights())
    with pytest.raises(RunError, match="received no unfinished reconstruction of this model"):
        _opened(model, path, key="other", is_expected=True)
    with pytest.raises(RunError, match="leave out --resume"):
        _opened(model, tmp_path / "nowhere.npz", is_expected=True)


@pytest.mark.parametrize("kept", [0, 10, -200])
def test_a_damaged_file_is_passed_over(kept, model, tmp_path):
    path = tmp_path / "unfinished.npz"
    _opened(model, path)[0].finish(FIT)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.warns(UserWarning, match="passed over, as it is damaged"):
        assert _opened(model, path)[0].fits == []


def test_a_disk_that_is_full_ends_nothing(model, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    opened = _opened(model, tmp_path / "unfinished.npz")[0]
    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="No space left .* goes on from its beginning"):
        opened.finish(FIT)
    assert not opened.is_due
    opened.finish(FIT)
    assert list(tmp_path.iterdir()) == []


def test_without_a_path_nothing_is_kept(model):
    opened = _opened(model, None)[0]
    opened.finish(FIT)
    assert not opened.is_due


def test_all_that_changes_the_result_changes_the_key_and_names_do_not():
    images = float_models.images(4)

    def key(bits=3, images=images, nudged=0.0, **settings):
        model = float_models.build("mobile_block")
        network = Network(sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(bits)))
        kernel = next(
            one for node in network for one in node.layer.variables if len(one.shape) == 4
        )
        kernel.assign_add(np.full(kernel.shape, nudged, np.float32))
        return key_of(network, Network(model), [np.asarray(images)], **settings)

    changed = np.array(images)
    changed[-1, 0, 0, 0] += 1
    keys = [key(), key(bits=4), key(images=changed), key(images=images[:3]), key(nudged=0.01)]
    keys += [key(steps=10), key(steps=11)]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
