"""Stops a run behind a step of a stage, as Ctrl-C does."""

import os
import signal

from sat_tf.training.loop.callbacks import StopWhenNotFinite


def stop_behind(monkeypatch, step):
    """Sends SIGINT to this process behind so many steps of any stage."""
    check = StopWhenNotFinite.on_train_batch_end

    def on_train_batch_end(callback, batch, logs=None):
        check(callback, batch, logs)
        if int(callback.model.optimizer.iterations.numpy()) == step:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(StopWhenNotFinite, "on_train_batch_end", on_train_batch_end)
