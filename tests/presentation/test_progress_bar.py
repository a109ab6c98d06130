import io
import sys
import threading
import types

import pytest

from sat_tf.presentation import progress_bar
from sat_tf.presentation.progress_bar import image_bar, no_bar


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


def test_pipes_get_nothing(monkeypatch, at_once):
    pipe = _standard_error(monkeypatch, io.StringIO())
    with image_bar("counting", 2) as advance:
        assert advance is no_bar
        advance(2)
    assert pipe.getvalue() == ""


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
