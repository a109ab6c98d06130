import os
import signal
import threading

import pytest

from sat_tf.training.interruption import Interruption, Stopped


def ask_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_request_takes_effect_at_once_where_nothing_is_at_stake():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), Interruption().catching_sigterm():
        ask_to_stop()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_deferred_request_waits_for_the_end_of_the_block():
    interruption, seen = Interruption(), []

    def work():
        with interruption.catching_sigterm():
            with interruption.deferred():
                ask_to_stop()
                seen.append(interruption.requested)
            seen.append("never")

    with pytest.raises(Stopped):
        work()
    assert seen == [True]


def test_an_error_in_the_block_is_not_replaced_by_the_request():
    interruption = Interruption()

    def work():
        with interruption.catching_sigterm(), interruption.deferred():
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
            with Interruption().catching_sigterm():
                pass
        except ValueError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
