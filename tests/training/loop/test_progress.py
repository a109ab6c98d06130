"""The progress bar, on a clock that the tests move."""

import io
import re

import pytest
from rich.console import Console

from sat_tf.messages import RunError
from sat_tf.training.loop import callbacks as module
from sat_tf.training.loop.callbacks import ProgressBar
from sat_tf.training.step.schedule import Position, StagePlan

LOGS = {"loss": 0.5, "top1": 0.9, "val_loss": 0.6, "val_top1": 0.8}


class Clock:
    """Stands in for the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        return self.now


class Reading:
    """A logged value that knows how often it was fetched."""

    def __init__(self, value):
        self.value, self.times = value, 0

    def __float__(self):
        self.times += 1
        return self.value


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def plan(**changes):
    fields = {"stage": "float", "batch_size": 32, "steps_per_epoch": 10, "total_steps": 120}
    return StagePlan(**{**fields, **changes})


def run(bar, clock, epochs, steps, seconds=1.0, held_out=0.0, logs=LOGS):
    for epoch in range(epochs):
        bar.on_epoch_begin(epoch)
        for batch in range(steps):
            clock.now += seconds
            bar.on_train_batch_begin(batch)
            bar.on_train_batch_end(batch, logs)
        bar.on_test_begin()
        clock.now += held_out
        bar.on_epoch_end(epoch, logs)


@pytest.mark.parametrize("terminal", [True, False])
def test_an_epoch_ends_in_a_line_with_stage_speed_loss_top1_and_time_left(clock, terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120)
    with ProgressBar(plan(), console=console) as bar:
        run(bar, clock, 2, 10)
    lines = [line for line in text.getvalue().splitlines() if "held out" in line]
    assert len(lines) == 2
    for part in (
        "float",
        "epoch  1/12",
        "    32 images/s",
        "loss 0.5000",
        "top-1  90.0 %",
        "held out  80.0 %",
        "left 0:01:50",  # 110 steps of a second
    ):
        assert part in lines[0]
    assert "left 0:01:40" in lines[1]


def test_the_time_left_is_that_of_the_whole_stage_with_its_held_out_images(clock):
    text = io.StringIO()
    with ProgressBar(plan(), console=Console(file=text, width=120)) as bar:
        run(bar, clock, 3, 10, held_out=10.0)
    # 29 steps and 3 passes over held-out images took 59 s: 2.03 s a step, 90 of which are left.
    assert text.getvalue().splitlines()[-1].endswith("left 0:03:03")
    assert "    32 images/s" in text.getvalue()


def test_a_stage_that_goes_on_within_an_epoch_counts_from_there(clock):
    text = io.StringIO()
    bar = ProgressBar(plan(start=Position(3, 5)), console=Console(file=text, width=120))
    run(bar, clock, 1, 5)
    run(bar, clock, 1, 10)
    first, second = text.getvalue().splitlines()
    assert "epoch  4/12" in first
    assert "left 0:01:20" in first
    assert "epoch  5/12" in second
    assert bar.step == 50


def test_the_last_epoch_of_a_stage_given_in_steps_may_be_shorter(clock):
    text = io.StringIO()
    bar = ProgressBar(plan(total_steps=15), console=Console(file=text, width=120))
    run(bar, clock, 1, 10)
    run(bar, clock, 1, 5)
    first, second = text.getvalue().splitlines()
    assert "epoch 1/2" in first
    assert "left 0:00:05" in first
    assert "epoch 2/2" in second
    assert second.endswith("left 0:00:00")


def test_logs_are_read_five_times_a_second_at_most(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    loss, top1 = Reading(0.5), Reading(0.9)
    bar = ProgressBar(plan(total_steps=10_000), console=console)
    for batch in range(1000):
        clock.now += 0.001
        bar.on_train_batch_begin(batch)
        bar.on_train_batch_end(batch, {"loss": loss, "top1": top1})
    assert 4 <= loss.times <= 6
    assert top1.times == loss.times


def test_what_is_no_terminal_has_a_line_a_minute_in_long_epochs(clock):
    text = io.StringIO()
    bar = ProgressBar(plan(steps_per_epoch=150), console=Console(file=text, width=120))
    run(bar, clock, 1, 120)
    lines = text.getvalue().splitlines()
    assert len(lines) == 3
    assert "step 60/120" in lines[0]
    assert "step 120/120" in lines[1]


def test_the_bar_fits_into_eighty_columns(clock):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    with ProgressBar(plan(stage="quantized", total_steps=1500), console=console) as bar:
        bar.on_epoch_begin(0)
        for batch in range(3):
            clock.now += 1
            bar.on_train_batch_begin(batch)
            bar.on_train_batch_end(batch, LOGS)
        bar._bar.refresh()
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    assert "quantized 1/150 ━━━" in drawn
    assert "top-1" in drawn
    assert "left 0:24:57" in drawn
    assert max(len(line) for line in re.split(r"[\r\n]", drawn)) <= 80


def test_a_broken_stage_still_gives_the_terminal_back():
    text = io.StringIO()
    bar = ProgressBar(plan(), console=Console(file=text, force_terminal=True))

    def break_down():
        with bar:
            bar.on_epoch_begin(0)
            raise RunError("stop")

    with pytest.raises(RunError, match="stop"):
        break_down()
    # The sequence that shows the cursor again is the last thing a bar writes.
    assert "\x1b[?25h" in text.getvalue()
