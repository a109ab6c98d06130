import numpy as np
import pytest

from sat_tf.training.callbacks.recording import RunningMeans


@pytest.mark.parametrize("every", [1, 3, 4, 100])
def test_readings_are_means_over_the_steps_since_the_last_one(every):
    losses = np.random.RandomState(0).uniform(0, 5, (3, 10))
    means, read, waiting = RunningMeans(["loss"]), [], []
    expected = []
    for epoch in losses:
        for step in range(1, len(epoch) + 1):
            means.advance()
            waiting.append(epoch[step - 1])
            if step % every == 0:
                read.append(means.take({"loss": np.float32(epoch[:step].mean())})["loss"])
                expected.append(np.mean(waiting))
                waiting = []
        means.end_epoch({"loss": np.float32(epoch.mean())})
    # Running means are float32, and ten of them are added up.
    np.testing.assert_allclose(read, expected, rtol=1e-5)


def test_a_name_that_is_not_logged_has_no_mean():
    means = RunningMeans(["loss", "top5"])
    means.advance()
    means.advance()
    assert means.take({"loss": 1.0}) == {"loss": 1.0, "top5": None}


def test_within_an_epoch_that_goes_on_readings_begin_with_the_next_step():
    means = RunningMeans(["loss"])
    means.resume(6, {"loss": 4.0})
    means.advance()
    means.advance()
    assert means.take({"loss": 3.5})["loss"] == pytest.approx(2.0)
