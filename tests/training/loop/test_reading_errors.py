"""A set that cannot be read on ends a run with its own words, and the run goes on once mended."""

import subprocess
import sys

import pytest
import tensorflow as tf

from sat_tf.messages import RunError
from sat_tf.training import data
from sat_tf.training.loop.runner import reading_errors_explained
from tests.training.data.photographs import encoded, photograph

CONFIG = """
name: x
seed: 0
data: {{name: folder, options: {{data_dir: {data_dir}, image_size: 16}}}}
model: {{name: mobilenet_v1, options: {{width_multiplier: 0.25, stem_stride: 1}}}}
stages:
  float: {{epochs: 1, batch_size: 8, base_learning_rate: 0.1, warmup_epochs: 0}}
  quantized: null
calibration: {{num_images: 0}}
export: {{verify_images: 5}}
"""


def make_pictures(root):
    paths = []
    for part, count in (("train", 16), ("val", 2)):
        for name in ("ant", "bee"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                paths.append(root / part / name / f"{number}.JPEG")
                paths[-1].write_bytes(encoded(photograph(20, 20, seed=len(paths))))
    return paths


@pytest.mark.thorough
def test_the_words_of_a_source_are_those_of_the_run(tmp_path):
    make_pictures(tmp_path)[0].write_bytes(b"")
    source = data.source("folder", data_dir=tmp_path, image_size=16)
    batches = source.training_batches(batch_size=32, seed=0)
    with (
        pytest.raises(RunError, match=r"ant/0\.JPEG: received .*; mend or delete it\.$") as found,
        reading_errors_explained(source),
    ):
        next(iter(batches))
    assert found.value.__suppress_context__
    with (
        pytest.raises(RunError, match="go on"),
        reading_errors_explained(source, advice="; go on"),
    ):
        source.training_sample(32, seed=0)


def test_errors_of_tensorflow_are_left_alone(tmp_path):
    make_pictures(tmp_path)
    source = data.source("folder", data_dir=tmp_path, image_size=16)
    with pytest.raises(tf.errors.OpError, match="no memory"), reading_errors_explained(source):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")


@pytest.mark.slow
def test_a_run_with_a_corrupt_picture_goes_on_when_it_is_mended(tmp_path, monkeypatch):
    # JAX sets it, for the processes that are started here too; commands are quiet without it.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    bad = {path: path.read_bytes() for path in make_pictures(tmp_path / "set")[:1]}
    config = tmp_path / "x.yaml"
    config.write_text(CONFIG.format(data_dir=tmp_path / "set"))
    command = [sys.executable, "-m", "sat_tf", "train", "--config", str(config)]
    command += ["--out", str(tmp_path / "run")]
    for path in bad:
        path.write_bytes(b"")
    # A process of its own, because what TensorFlow itself prints is settled when it is imported.
    broken = subprocess.run(command, capture_output=True, text=True, check=False)
    told = broken.stderr
    assert broken.returncode == 2
    assert "0.JPEG: received a picture that cannot be read" in told
    assert "the same command resumes the run" in told
    assert "Traceback" not in told
    for path, content in bad.items():
        path.write_bytes(content)
    subprocess.run(command, capture_output=True, check=True)
