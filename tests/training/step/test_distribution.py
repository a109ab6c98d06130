import json
import socket

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.messages import RunError
from sat_tf.training.data.source import Shard
from sat_tf.training.distribution import make_strategy, shard_of, waiting_note, writes_files
from sat_tf.training.loop.stage import train_stage
from tests.conftest import mirrored
from tests.training import processes
from tests.training.loop.test_stage import make_run
from tests.training.small import small_float_model, small_quantized_model

TINY = """
name: tiny
data: {name: digits, options: {image_size: 8, test_fraction: 0.85}}
model: {name: mobilenet_v1, options: {width_multiplier: 0.25, stem_stride: 1}}
stages:
  float: {epochs: 1, batch_size: 32, base_learning_rate: 0.08, warmup_epochs: 0}
calibration: {num_images: 64, final_statistics: true}
export: {verify_images: 20}
distribution: multi_worker
"""
TASK = {"type": "worker", "index": 0}


def test_one_device_needs_no_strategy_and_this_process_writes(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TPU_NAME", raising=False)
    has_gpus = len(tf.config.list_physical_devices("GPU")) > 1
    for name in ("none",) if has_gpus else ("none", "auto"):
        strategy = make_strategy(name)
        assert strategy is tf.distribute.get_strategy()
        assert writes_files(strategy)
        assert shard_of(strategy) == Shard()
    strategy = make_strategy("mirrored")
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert writes_files(strategy)
    assert shard_of(mirrored()) == Shard(replicas=2)


def test_auto_takes_one_process_in_tf_config_for_no_cluster(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["here:1"]}, "task": TASK}))
    others = tf.distribute.MultiWorkerMirroredStrategy | tf.distribute.TPUStrategy
    assert not isinstance(make_strategy("auto"), others)


def test_a_port_in_use_is_named_before_anything_waits(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = {"cluster": {"worker": [f"localhost:{port}", "other:1"]}, "task": TASK}
        monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
        with pytest.raises(RunError, match=rf"the port {port} for this process, .*expected a free"):
            make_strategy("multi_worker")
        assert "worker 0" in waiting_note("auto")
        assert "waits for other:1" in waiting_note("auto")
    assert waiting_note("mirrored") is None


def test_a_host_that_no_process_can_have_is_named_before_anything_waits(monkeypatch):
    def lead(host):
        cluster = {"cluster": {"worker": [f"{host}:{port}"]}, "task": TASK}
        monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))

    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    lead("first..second")
    with pytest.raises(
        RunError, match=r"the host first\.\.second for this process, which has no add"
    ):
        waiting_note("multi_worker")
    lead("192.0.2.1")  # for documentation: no machine has it
    assert "no address of this machine: it waits until it" in waiting_note("multi_worker")
    assert waiting_note("auto") is None
    lead("localhost")
    assert waiting_note("multi_worker") is None


# 33 images do not divide evenly between two, and 96 do not between batches of 33.
@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [32, 33])
def test_two_replicas_train_like_one_device(tmp_path, batch_size):
    stage = f"{{batch_size: {batch_size}, steps: 20, base_learning_rate: 0.1}}"
    settings = [f"stages.quantized={stage}", "stages.float.batch_size=24"]
    starts, rows, weights = [], [], []
    for strategy in (None, mirrored()):
        run = make_run(tmp_path / str(len(rows)), *settings, strategy=strategy)
        run.folder.path.mkdir()
        _, trained = train_stage(run, "quantized", small_quantized_model())
        weights.append(trained.trainable_variables)
        of_start, *of_epochs = run.rows
        starts.append((of_start.held_out_loss, of_start.held_out_top1))
        rows.append([(row.loss, row.train_top1, row.held_out_top1) for row in of_epochs])
    # Sums over the batch are taken in another order, in float32: that moves a weight by an ulp,
    # and, after the first epoch, a code that lies on the boundary between two by a step.
    np.testing.assert_allclose(starts[1], starts[0], rtol=1e-5)
    one, two = (np.array(found) for found in rows)
    np.testing.assert_allclose(two[:1], one[:1], rtol=1e-5)
    np.testing.assert_allclose(two[:, 0], one[:, 0], rtol=2e-3)
    np.testing.assert_allclose(two[:, 1:], one[:, 1:], rtol=0.0, atol=1.01 / 33)
    levels = [v for v in weights[0] if "clipping_level" in v.name]
    assert len(levels) > 3
    for old, new in zip(*weights, strict=True):
        np.testing.assert_allclose(new, old, rtol=0.0, atol=5e-4, err_msg=old.name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["float", "quantized"])
def test_two_replicas_follow_the_statistics_of_one_device(tmp_path, name):
    settings = f"stages.{name}={{batch_size: 33, steps: 2, base_learning_rate: 0.1}}"
    statistics = []
    for strategy in (None, mirrored()):
        run = make_run(tmp_path / str(len(statistics)), settings, strategy=strategy)
        run.folder.path.mkdir()
        model = small_float_model() if name == "float" else small_quantized_model()
        _, trained = train_stage(run, name, model)
        statistics.append({v.name: v.numpy() for v in trained.weights if "moving_" in v.name})
    one, two = statistics
    assert len(one) == 6
    for key, values in one.items():
        np.testing.assert_allclose(two[key], values, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.slow
def test_two_workers_train_one_model_and_the_first_one_keeps_the_files(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    words = ("train", "--config", str(config), "--out", str(tmp_path / "run"))
    outputs, statuses = zip(*processes.sat_tf_together(*words), strict=True)
    assert statuses == (0, 0), "\n".join(outputs)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["codes_differing"] == 0
    assert "LiteRT against the simulation" in outputs[0]
    assert "epoch" not in outputs[1]
    for said in outputs:  # by TensorFlow, of what it sends, and of a worker that ends first
        assert not [word for word in ("all_reduce", "Collective", "crashed") if word in said]
