import contextlib
import os
import signal
import threading
import time

import pytest

from sat_tf import interruption
from sat_tf.commands.main import report_errors
from sat_tf.interruption import Terminated, end_on_signals, ending_at_once, ignore_signals

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def ask_to_stop(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


ENDS = pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)


@ENDS
@pytest.mark.parametrize("delay", [0.0, 0.1], ids=["at once", "busy"])
def test_a_signal_in_a_finalizer_is_raised_behind_it(
    number, kind, delay, kept_handlers, capsys, monkeypatch
):
    start, delays = threading.Timer.start, iter([delay])  # a busy computer starts threads late

    def late(timer):
        start(timer)
        time.sleep(next(delays, 0.0))

    class Finalized:
        def __del__(self):
            ask_to_stop(number)

    def work():
        Finalized()
        time.sleep(10)

    monkeypatch.setattr(threading.Timer, "start", late)
    end_on_signals()
    with pytest.raises(kind):
        work()
    assert capsys.readouterr().err == ""


@ENDS
def test_a_signal_that_a_function_in_c_turns_into_an_error_ends_the_command(
    number, kind, kept_handlers, monkeypatch, capsys
):
    monkeypatch.setattr(interruption, "_received", [])

    def fail():
        raise SystemError("bad argument to internal function")

    def work():
        with contextlib.suppress(KeyboardInterrupt):
            ask_to_stop(number)
            time.sleep(10)
        try:
            fail()
        except SystemError as error:
            raise ValueError("cannot be read") from error

    end_on_signals()
    with pytest.raises(SystemError):  # no signal has come
        report_errors(fail)
    assert report_errors(work) == 128 + number
    assert capsys.readouterr().err.endswith("; the files written so far are whole\n")


@ENDS
def test_nothing_comes_between_the_last_word_and_the_status(number, kind, kept_handlers):
    end_on_signals()
    ignore_signals()
    ask_to_stop(number)


@BOTH
def test_a_signal_ends_what_waits_for_others_at_once_and_is_caught_behind_it(number):
    before = signal.getsignal(number)
    with ending_at_once():
        assert signal.getsignal(number) is signal.SIG_DFL
    assert signal.getsignal(number) is before
