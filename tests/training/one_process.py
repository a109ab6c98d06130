"""A process that trains a small model through a stage; run by tests that kill it or start two.

    python -m tests.training.one_process FOLDER METHOD KEY=VALUE...

It prints the number of every step that is done and its loss, as JSON, and leaves the weights and
clipping levels in FOLDER/worker0.npz, ...
"""

import dataclasses
import json
import pathlib
import sys

import numpy as np
import tf_keras as keras

from sat_tf.interruption import end_on_signals
from sat_tf.messages import RunError
from sat_tf.training.config import parse_config
from sat_tf.training.distribution import make_strategy, shard_of, writes_files
from sat_tf.training.learner import Learner
from sat_tf.training.loop.runner import outside_failures_explained
from sat_tf.training.loop.stage import train_stage
from sat_tf.training.run_folder import EpochMetrics, RunState
from tests.training.loop.test_stage import make_run
from tests.training.small import small_quantized_model

CONFIG = """
name: small
data: {name: digits}
model: {name: mobilenet_v1}
stages:
  float: {epochs: 8, batch_size: 32, base_learning_rate: 0.4, warmup_epochs: 1}
training: {keep: last}
"""


def main(folder, method, overrides):
    strategy = make_strategy(parse_config(CONFIG, overrides).distribution)
    keras.utils.set_random_seed(0)
    keras.backend.experimental.enable_tf_random_generator()
    end_on_signals()
    run = make_run(folder, *overrides, strategy=strategy, text=CONFIG)
    state, rows = RunState.read(run.folder), EpochMetrics.read(run.folder)
    run = dataclasses.replace(run, writes=writes_files(strategy), state=state, rows=rows)
    fit = Learner.fit

    def reporting(self, *arguments, callbacks, **options):
        def report(batch, logs):
            row = {
                "step": int(self.optimizer.iterations.numpy()),
                "loss": float(logs["batch_loss"]),
            }
            # A run shows Keras' progress where its own is.
            print(json.dumps(row), file=sys.__stdout__, flush=True)

        reporter = keras.callbacks.LambdaCallback(on_batch_end=report)
        return fit(self, *arguments, callbacks=[reporter, *callbacks], **options)

    Learner.fit = reporting
    try:
        with outside_failures_explained(run.folder, strategy):
            _, model = train_stage(run, "float", small_quantized_model(method))
    except KeyboardInterrupt as interrupt:
        print(interrupt, flush=True)
        return 0
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    weights = {f"{index:03}": array for index, array in enumerate(model.get_weights())}
    np.savez(folder / f"worker{shard_of(strategy).worker}.npz", **weights)
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
