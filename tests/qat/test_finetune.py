"""A quantized model is fine-tuned at a rate that a trial finds, and never ends below its start."""

import itertools
import re

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.finetune import TRIED_RATES, finetune
from sat_tf.qat.images import cut
from sat_tf.qat.reconstruction.fit import row_of
from sat_tf.qat.transition_rate import TransitionRate
from tests.training.small import small_float_model, small_images

IMAGES = small_images(train=64, test=33)
TRAIN = IMAGES.train_images, IMAGES.train_labels
HELD_OUT = IMAGES.test_images, IMAGES.test_labels

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*images give unreliable statistics"),
    pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning"),
]


def _calibrated(float_model=None, bits=4):
    model = sat_tf.quantize_model(float_model or small_float_model(), bits)
    return sat_tf.calibrate(model, TRAIN[0], keep_function=True, progress=False)


def _tuned(
    model, *, images=TRAIN[0], labels=TRAIN[1], held_out=HELD_OUT, float_model=None, **options
):
    settings = {"epochs": 1, "batch_size": 16, "learning_rate": 0.01, "sample": TRAIN[0]}
    settings |= {"held_out": held_out, **options}
    return finetune(model, float_model or small_float_model(), images, labels, **settings)


def _answers(model, images=HELD_OUT[0]):
    return np.argmax(model.predict(images.astype(np.float32), verbose=0), axis=-1)


def test_the_trial_takes_the_rate_that_leaves_the_model_nearest_to_the_float_one():
    said = []
    tuned = _tuned(_calibrated(), learning_rate=None, say=said.append)
    assert tuple(tuned.tried) == TRIED_RATES
    assert all(distance is None or distance >= 0 for distance in tuned.tried.values())
    assert tuned.tried[tuned.learning_rate] == min(filter(None, tuned.tried.values()))
    assert said[1] == "trying 6 learning rates, for 16 steps each"
    assert said[2].startswith(f"learning rate {tuned.learning_rate:g}: distance from the float")


def test_a_training_that_destroys_the_model_gives_back_its_start():
    model = _calibrated()
    start = model.get_weights()
    tuned = _tuned(model, epochs=2, learning_rate=1e6)
    assert tuned.kept_epoch == 0
    assert tuned.tried == {}
    np.testing.assert_equal(start, model.get_weights())


@pytest.mark.essential
def test_the_model_is_that_of_the_epoch_with_the_highest_score():
    model = _calibrated()
    tuned = _tuned(model, epochs=3)
    scores = [epoch.score for epoch in tuned.epochs]
    assert [epoch.epoch for epoch in tuned.epochs] == [0, 1, 2, 3]
    assert tuned.epochs[tuned.kept_epoch].score == max(scores)
    expected = np.mean(_answers(model) == HELD_OUT[1])
    assert tuned.epochs[tuned.kept_epoch].score == pytest.approx(expected)


@pytest.mark.thorough
def test_a_schedule_of_transition_rates_needs_no_trial(monkeypatch):
    made, said = [], []

    def schedule(*arguments, **options):
        made.append(TransitionRate(*arguments, **options))
        return made[-1]

    monkeypatch.setattr("sat_tf.qat.finetune.TransitionRate", schedule)
    tuned = _tuned(_calibrated(), learning_rate=None, transition_rate=0.02, say=said.append)
    assert tuned.tried == {}
    assert not any("trying" in words for words in said)
    assert made[0].state["step"] == made[0].total_steps == 4


@pytest.mark.thorough
@pytest.mark.parametrize("transition_rate", [None, 0.02])
def test_a_training_that_is_stopped_ends_with_the_model_of_one_that_is_not(
    tmp_path, transition_rate
):
    whole, parted, again = _calibrated(), _calibrated(), _calibrated()
    options = {"epochs": 3, "learning_rate": None, "transition_rate": transition_rate}
    expected = _tuned(whole, **options)
    options["folder"] = tmp_path
    steps = itertools.count()

    def interrupt(batch, logs):
        """Ctrl-C in the step behind the first epoch, of four."""
        if next(steps) == 4:
            raise KeyboardInterrupt

    ctrl_c = keras.callbacks.LambdaCallback(on_train_batch_begin=interrupt)
    with pytest.raises(KeyboardInterrupt):
        _tuned(parted, callbacks=[ctrl_c], **options)
    said = []
    resumed = _tuned(again, is_expected=True, say=said.append, **options)
    assert said[0].startswith("going on after epoch 1 of 3")
    assert sum(words.startswith("epoch ") for words in said) == 2
    np.testing.assert_array_equal(np.array(resumed.epochs), np.array(expected.epochs))
    assert resumed.kept_epoch == expected.kept_epoch
    assert resumed.tried == expected.tried
    np.testing.assert_equal(whole.get_weights(), again.get_weights())
    # That of other settings, labels or images is not gone on with.
    other_labels = (HELD_OUT[0], (HELD_OUT[1] + 1) % 5)
    other_images = np.where(np.arange(len(TRAIN[0]))[:, None, None, None] == 7, 0, TRAIN[0])
    for other in ({"epochs": 2}, {"held_out": other_labels}, {"images": other_images}):
        with pytest.raises(sat_tf.messages.RunError, match="received no unfinished training"):
            _tuned(_calibrated(), is_expected=True, **{**options, **other})


@pytest.mark.thorough
def test_without_labels_the_float_model_says_what_is_right():
    model = _calibrated()
    expected = np.mean(_answers(model) == _answers(small_float_model()))
    said = []
    tuned = _tuned(model, labels=None, held_out=(HELD_OUT[0], None), say=said.append)
    assert tuned.epochs[0].score == pytest.approx(expected)
    assert said[0].startswith("before training: held-out agreement ")
    # At the start, the loss is the divergence from the float model alone.
    assert 0 <= tuned.epochs[1].loss < _tuned(_calibrated()).epochs[1].loss


@pytest.mark.thorough
def test_probabilities_train_as_their_logits_do():
    logits = small_float_model()
    softmax = keras.Model(logits.input, keras.layers.Softmax()(logits.output))
    of_logits, of_softmax = _calibrated(), _calibrated(softmax)
    one = _tuned(of_logits)
    other = _tuned(of_softmax, float_model=softmax)
    assert other.epochs[1].loss == pytest.approx(one.epochs[1].loss, rel=1e-4)
    assert other.epochs[1].held_out_loss == pytest.approx(one.epochs[1].held_out_loss, rel=1e-3)


def test_pictures_that_cannot_be_read_are_passed_over(tmp_path):
    class Broken(list):
        def __getitem__(self, place):
            if place in (3, 63):
                raise OSError("not there")
            return super().__getitem__(place)

    tuned = _tuned(_calibrated(), images=Broken(TRAIN[0]), folder=tmp_path)
    assert tuned.passed_over == (3, 63)


@pytest.mark.parametrize("size", [(40, 40), (30, 200), (7, 5)])
@pytest.mark.parametrize("shape", [(8, 8, 3), (6, 12, 1)])
def test_a_cut_is_a_part_of_the_picture_with_nearly_the_aspect_of_the_input(size, shape):
    _, columns = np.mgrid[: size[0], : size[1]]
    # The brightness tells the place.
    place = np.round(255 * columns / max(size[1] - 1, 1)).astype(np.uint8)
    picture = np.repeat(place[..., None], shape[2], axis=-1)
    for seed in range(20):
        part = cut(picture, shape, np.random.default_rng(seed))
        assert part.shape == shape
        assert part.dtype == np.uint8
        width = (part.max().astype(int) - part.min()) / 255 * size[1]
        widest = size[0] * shape[1] / shape[0] * 4 / 3
        assert width <= min(widest, size[1]) + 2
        if size[0] == size[1] and shape[0] == shape[1]:
            assert width >= size[1] * (0.6 * 3 / 4) ** 0.5 - size[1] / shape[1] - 1
    # What is no picture is not cut.
    values = np.zeros((8, 8, 3), np.float32)
    assert cut(values, (8, 8, 3), np.random.default_rng(0)) is values
    codes = np.zeros((8, 2), np.uint8)
    assert cut(codes, (8, 2), np.random.default_rng(0)) is codes


def test_the_rate_rises_and_falls_to_nothing_on_half_a_cosine():
    rates, model = [], _calibrated()
    noted = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_: rates.append(float(noted.model.optimizer.learning_rate))
    )
    tuned = _tuned(model, epochs=5, learning_rate=0.5, callbacks=[noted])
    # Two of the 20 steps warm up.
    falling = [0.25 * (1 + np.cos(np.pi * step / 18)) for step in range(18)]
    np.testing.assert_allclose(rates, [0.0, 0.25, *falling], rtol=1e-6)
    assert [epoch.learning_rate for epoch in tuned.epochs] == [0.0, *rates[3::4]]


def test_what_cannot_be_trained_is_refused():
    model = _calibrated()
    model.trainable = False
    with pytest.raises(ValueError, match="finetune: received a frozen model, expected one to"):
        _tuned(model)
    values = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
    refused = "a model with outputs of shape (1,) that are no row of classes"
    assert row_of(values) == ("", refused)
    with pytest.raises(ValueError, match=re.escape(refused)):
        _tuned(_calibrated(), float_model=values)
    assert row_of(small_float_model())[1] == ""
