import concurrent.futures
import errno
import io
import sys
import time
import types
from unittest import mock

import pytest

from sat_tf.messages import progress_bar
from sat_tf.messages.progress_bar import image_bar


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def drawn(monkeypatch):
    """Returns what standard error shows of work, which is done by a function of its progress."""

    def draw(stream, work, title="counting", total=40, **options):
        # Not in the fixture: pytest connects its own again after it.
        monkeypatch.setattr(sys, "stderr", stream)
        with image_bar(title, total, **options) as progress:
            work(progress)
        return stream.getvalue()

    return draw


@pytest.fixture
def at_once(monkeypatch):
    """Bars that do not wait."""
    monkeypatch.setattr(progress_bar, "_SECONDS_WITHOUT", 0.0)


def test_terminals_and_notebooks_get_a_bar_that_disappears(drawn, monkeypatch, at_once):
    shown = drawn(_Terminal(), lambda progress: progress(10), "[counting]\x1b[2J")
    assert r"[counting]\x1b[2J" in shown
    assert "/40" in shown
    assert shown.rpartition("\r")[0].endswith(" ")  # wiped
    # The error of a notebook is no terminal.
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", types.ModuleType("kernelapp"))
    assert "counting" in drawn(io.StringIO(), lambda progress: progress(2))


def test_what_is_done_soon_has_no_bar_what_takes_no_minute_no_line_and_a_bar_can_be_left_out(
    drawn, monkeypatch
):
    assert drawn(_Terminal(), lambda progress: progress(40)).strip() == ""
    monkeypatch.setattr(progress_bar, "_SECONDS_WITHOUT", 0.0)
    assert drawn(io.StringIO(), lambda progress: progress(2)) == ""
    assert drawn(_Terminal(), lambda progress: progress(2), shown=False) == ""


def test_a_bar_disappears_after_an_error(drawn, at_once):
    def interrupted(progress):
        progress(2)
        raise KeyboardInterrupt

    terminal = _Terminal()
    with pytest.raises(KeyboardInterrupt):
        drawn(terminal, interrupted, total=None)
    assert terminal.getvalue().rpartition("\r")[0].endswith(" ")


def test_a_bar_says_where_it_is(drawn, at_once):
    def work(progress):
        progress.at("block 2 of 3")
        progress.skip(10)
        time.sleep(0.11)  # tqdm draws ten times a second
        progress(10)

    assert "block 2 of 3" in drawn(_Terminal(), work)


def test_a_pipe_gets_whole_lines_of_what_is_done_and_left_where_that_is_known(drawn, monkeypatch):
    def work(progress):
        progress.at("block 2 of 3")
        time.sleep(0.02)
        progress(100)

    monkeypatch.setattr(progress_bar, "_SECONDS_BETWEEN_LINES", 0.01)
    words = r"reconstructing\x1b[2J, block 2 of 3: 100 of 400 done after 00:00, about 00:00 left"
    assert words in drawn(io.StringIO(), work, "reconstructing\x1b[2J", 400)
    lines = drawn(io.StringIO(), work, total=None).split("\n")
    assert set(lines) == {"counting, block 2 of 3: 100 done after 00:00", ""}


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_pipe_that_nobody_reads_ends_nothing(is_closed, monkeypatch):
    pipe = io.StringIO()
    pipe.write = mock.Mock(side_effect=BrokenPipeError(errno.EPIPE, "Broken pipe"))
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr(progress_bar, "_SECONDS_BETWEEN_LINES", 0.0)
    with image_bar("counting", 2) as progress:
        if is_closed:
            pipe.close()
        progress(1)


def test_threads_share_a_bar(drawn, at_once):
    def work(progress):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(progress, [1] * 400))
        progress(0)

    assert "counting" in drawn(_Terminal(), work, total=400)
