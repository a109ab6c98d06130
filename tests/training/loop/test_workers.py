import pytest
import tensorflow as tf

from sat_tf.messages import RunError
from sat_tf.training.config import parse_config
from sat_tf.training.data.batches import ArraySource
from sat_tf.training.loop import start
from sat_tf.training.loop.start import expect_same_on_all_workers
from tests.training import processes
from tests.training.small import small_images

SOURCE = ArraySource(small_images())


def told(monkeypatch, *of_workers):
    """The words of workers with these settings, each of which has to say the same."""
    configs = [
        parse_config("{name: small, data: {name: digits}, model: {name: mobilenet_v2}}", settings)
        for settings in of_workers
    ]
    sent = []
    for passes in (False, True):  # all are sent before one is read
        said = set()
        for config in configs:
            monkeypatch.setattr(
                start,
                "from_all_workers",
                lambda strategy, text, passes=passes: (
                    sent if passes else sent.append(text) or [text]
                ),
            )
            try:
                expect_same_on_all_workers(tf.distribute.get_strategy(), config, SOURCE)
            except RunError as error:
                said.add(str(error))
    return said


def test_workers_with_the_same_settings_start(monkeypatch):
    assert not told(monkeypatch, ["seed=3"], ["seed=3"])
    here, there = (
        f"data={{name: folder, options: {{data_dir: {name}, image_size: 8}}}}" for name in "ab"
    )
    assert not told(monkeypatch, [here], [there])


def test_all_workers_name_the_settings_that_differ(monkeypatch):
    rate = "stages.float.base_learning_rate=0.1"
    (text,) = told(monkeypatch, ["seed=3"], ["seed=4", rate, "stages.quantized=null"])
    assert text.startswith("workers of one run that are not to do the same: 3 problems")
    assert "seed: 3 in worker 0, 4 in worker 1" in text
    assert "stages.float.base_learning_rate: 0.05 in worker 0, 0.1 in worker 1" in text
    assert text.endswith("Start the same command with the same settings on all of them.")


@pytest.mark.slow
def test_two_processes_with_other_seeds_refuse_to_start(tmp_path):
    words = ("train", "--out", str(tmp_path / "run"))
    own = [("--set", f"seed={index}") for index in range(2)]
    for said, status in processes.sat_tf_together(*words, own=own):
        assert status == 2, said
        assert "it waits for localhost" in said
        assert "seed: 0 in worker 0, 1 in worker 1" in said
    assert not (tmp_path / "run").exists()
