import json
import os
import socket
import subprocess
import sys

import pytest
import tensorflow as tf

from sat_tf.training.distribution import make_strategy, writes_files

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


def test_by_default_there_is_one_device_and_this_process_writes():
    strategy = make_strategy("default")
    assert strategy is tf.distribute.get_strategy()
    assert writes_files(strategy)


def test_a_mirrored_strategy_writes_from_this_process():
    strategy = make_strategy("mirrored")
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert writes_files(strategy)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@pytest.mark.slow
def test_two_workers_train_one_model_and_the_first_one_keeps_the_files(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    workers = [f"localhost:{port}" for port in free_ports(2)]
    processes = []
    for index in range(2):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        arguments = ["train", "--config", str(config), "--run_dir", str(tmp_path / f"run{index}")]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "sat_tf", *arguments],
                env={**os.environ, "TF_CONFIG": json.dumps(task)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=900)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert not (tmp_path / "run1").exists()
    results = json.loads((tmp_path / "run0" / "results.json").read_text())
    assert results["codes_differing"] == 0
    assert "codes that differ" in outputs[0]
    assert "epoch" not in outputs[1]
