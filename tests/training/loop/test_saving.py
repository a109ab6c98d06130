import os
import signal
from unittest import mock

import pytest

from sat_tf.training.config.sections import TrainingConfig
from sat_tf.training.interruption import Interruption, Stopped
from sat_tf.training.loop.callbacks import CheckpointSaver
from sat_tf.training.step.schedule import Position


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_has_saved_itself_knows_what_stopped_it(number):
    checkpoints, interruption, flush = mock.Mock(), Interruption(), mock.Mock()
    saver = CheckpointSaver(checkpoints, interruption, TrainingConfig(), flush=flush)
    saver.set_model(mock.Mock(metrics=[]))

    def step():
        with interruption.catching_signals(), interruption.deferred():
            saver.start_at(Position(), steps=3)
            os.kill(os.getpid(), number)
            saver.on_train_batch_end(0, {"stop": 0.0, "save": 0.0})
            saver.model.signal.assert_called_once_with("stop")
            saver.on_train_batch_end(1, {"stop": 1.0, "save": 0.0})

    with pytest.raises(Stopped) as stopped:
        step()
    assert stopped.value.by_keyboard is (number == signal.SIGINT)
    flush.assert_called_once_with()
    checkpoints.save.assert_called_once_with(Position(0, 2))
