import os
import signal
import sys
import threading
import time

import pytest

from sat_tf.interruption import Terminated, end_on_signals, ending_at_once, ignore_signals
from sat_tf.training.interruption import Interruption, Stopped

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def ask_to_stop(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@BOTH
def test_a_request_takes_effect_at_once_where_nothing_is_at_stake(number):
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped, Interruption().catching_signals():
        ask_to_stop(number)
    assert signal.getsignal(number) is before
    assert stopped.value.by_keyboard is (number == signal.SIGINT)


def test_the_first_ctrl_c_waits_and_the_second_one_aborts(capsys):
    interruption, seen = Interruption(), []

    def work():
        with interruption.catching_signals(), interruption.deferred():
            ask_to_stop(signal.SIGINT)
            seen.append("the step ends")
            ask_to_stop(signal.SIGINT)
            seen.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == ["the step ends"]
    assert "Ctrl-C again aborts" in capsys.readouterr().err


@BOTH
def test_a_deferred_request_waits_for_the_end_of_the_block(number):
    interruption, seen = Interruption(), []

    def work():
        with interruption.catching_signals():
            with interruption.deferred():
                ask_to_stop(number)
                seen.append(interruption.requested)
            seen.append("never")

    with pytest.raises(Stopped):
        work()
    assert seen == [True]


def test_an_error_in_the_block_is_not_replaced_by_the_request():
    interruption = Interruption()

    def work():
        with interruption.catching_signals(), interruption.deferred():
            ask_to_stop()
            raise ValueError("broke")

    with pytest.raises(ValueError, match="broke"):
        work()


def test_a_stop_is_no_error_that_others_handle():
    assert not issubclass(Stopped, Exception)


def test_threads_other_than_the_main_one_leave_signals_alone():
    failures = []

    def work():
        try:
            with Interruption().catching_signals():
                pass
        except ValueError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures


@pytest.fixture
def kept_handlers(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


ENDS = pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)


@ENDS
def test_a_signal_in_a_finalizer_is_raised_behind_it(number, kind, kept_handlers, capsys):
    class Finalized:
        def __del__(self):
            ask_to_stop(number)

    def work():
        Finalized()
        time.sleep(10)

    end_on_signals()
    with pytest.raises(kind):
        work()
    assert capsys.readouterr().err == ""


@BOTH
def test_a_stop_in_a_finalizer_is_raised_behind_it(number, kept_handlers, capfd):
    class Finalized:
        def __del__(self):
            ask_to_stop(number)

    def work():
        with Interruption().catching_signals():
            Finalized()
            time.sleep(10)

    end_on_signals()
    with pytest.raises(Stopped) as stopped:
        work()
    assert stopped.value.by_keyboard is (number == signal.SIGINT)
    assert capfd.readouterr().err == ""


@ENDS
def test_nothing_comes_between_the_last_word_and_the_status(number, kind, kept_handlers):
    end_on_signals()
    ignore_signals()
    ask_to_stop(number)


@BOTH
def test_a_signal_ends_what_waits_for_others_at_once_and_is_caught_behind_it(number):
    with Interruption().catching_signals():
        before = signal.getsignal(number)
        with ending_at_once():
            assert signal.getsignal(number) is signal.SIG_DFL
        assert signal.getsignal(number) is before
