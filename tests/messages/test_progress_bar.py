import errno
import io
import sys
import threading
import time
import types

import pytest

from sat_tf.messages import progress_bar
from sat_tf.messages.progress_bar import image_bar


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    """Bars that do not wait."""
    monkeypatch.setattr(progress_bar, "_SECONDS_WITHOUT", 0.0)


def _standard_error(monkeypatch, stream):
    # In the test itself: pytest connects its own again after the fixtures.
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_terminal_gets_a_bar_that_disappears(monkeypatch, at_once):
    terminal = _standard_error(monkeypatch, _Terminal())
    with image_bar("[counting]\x1b[2J", 40) as advance:
        advance(10)
    drawn = terminal.getvalue()
    assert r"[counting]\x1b[2J" in drawn
    assert "/40" in drawn
    assert drawn.rpartition("\r")[0].endswith(" ")  # wiped


def test_what_is_done_soon_has_no_bar(monkeypatch):
    terminal = _standard_error(monkeypatch, _Terminal())
    with image_bar("counting", 40) as advance:
        advance(40)
    assert terminal.getvalue().strip() == ""


def test_a_bar_disappears_after_an_error(monkeypatch, at_once):
    terminal = _standard_error(monkeypatch, _Terminal())

    def interrupted():
        with image_bar("counting", None) as advance:
            advance(2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue().rpartition("\r")[0].endswith(" ")


def test_a_notebook_gets_a_bar_though_its_error_is_no_terminal(monkeypatch, at_once):
    cell = _standard_error(monkeypatch, io.StringIO())
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", types.ModuleType("kernelapp"))
    with image_bar("counting", 2) as advance:
        advance(2)
    assert "counting" in cell.getvalue()


def test_a_bar_says_where_it_is(monkeypatch, at_once):
    terminal = _standard_error(monkeypatch, _Terminal())
    with image_bar("fitting", 40) as progress:
        progress.at("block 2 of 3")
        progress.skip(10)
        time.sleep(0.11)  # tqdm draws ten times a second
        progress(10)
    assert "block 2 of 3" in terminal.getvalue()


def test_a_pipe_gets_lines_of_what_is_done_and_left(monkeypatch):
    pipe = _standard_error(monkeypatch, io.StringIO())
    monkeypatch.setattr(progress_bar, "_SECONDS_BETWEEN_LINES", 0.01)
    with image_bar("reconstructing\x1b[2J", 400) as progress:
        progress.at("block 2 of 3")
        time.sleep(0.02)
        progress(100)
    words = r"reconstructing\x1b[2J, block 2 of 3: 100 of 400 done after 00:00, about 00:00 left"
    assert words in pipe.getvalue()


def test_what_takes_less_than_a_minute_says_nothing_in_a_pipe(monkeypatch, at_once):
    pipe = _standard_error(monkeypatch, io.StringIO())
    with image_bar("counting", 2) as progress:
        progress(2)
    assert pipe.getvalue() == ""


class _Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_pipe_that_nobody_reads_ends_nothing(is_closed, monkeypatch):
    pipe = _standard_error(monkeypatch, _Broken())
    monkeypatch.setattr(progress_bar, "_SECONDS_BETWEEN_LINES", 0.0)
    with image_bar("counting", 2) as progress:
        if is_closed:
            pipe.close()
        progress(1)


def test_a_pipe_gets_whole_lines_and_no_time_that_is_not_known(monkeypatch):
    pipe = _standard_error(monkeypatch, io.StringIO())
    monkeypatch.setattr(progress_bar, "_SECONDS_BETWEEN_LINES", 0.01)
    with image_bar("counting", None) as progress:
        time.sleep(0.02)
        progress(12)
    assert set(pipe.getvalue().split("\n")) == {"counting: 12 done after 00:00", ""}


def test_a_bar_can_be_left_out(monkeypatch, at_once):
    terminal = _standard_error(monkeypatch, _Terminal())
    with image_bar("counting", 2, shown=False) as advance:
        advance(2)
    assert terminal.getvalue() == ""


def test_threads_share_a_bar(monkeypatch, at_once):
    terminal = _standard_error(monkeypatch, _Terminal())
    with image_bar("counting", 400) as advance:
        threads = [
            threading.Thread(target=lambda: [advance(1) for _ in range(100)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        advance(0)
    assert "counting" in terminal.getvalue()
