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


class _Clock:
    """Seconds that pass only when told."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(progress_bar, "time", clock)
    return clock


def _standard_error(monkeypatch, stream):
    # In the test itself: pytest connects its own again after the fixtures.
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


class _Handle:
    """What IPython's `display` returns."""

    def __init__(self, first):
        self.pictures = [first]

    def update(self, picture):
        self.pictures.append(picture)


@pytest.fixture
def notebook(monkeypatch):
    """IPython as in a kernel; a list of all that is displayed."""
    handles = []

    def display(picture, display_id):
        assert display_id
        handles.append(_Handle(picture))
        return handles[-1]

    shell = types.SimpleNamespace(kernel=object())
    parts = types.SimpleNamespace(HTML=str, display=display)
    package = types.SimpleNamespace(get_ipython=lambda: shell, display=parts)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", parts)
    return handles


def test_a_terminal_gets_a_bar_after_two_seconds(monkeypatch, clock):
    terminal = _standard_error(monkeypatch, _Terminal())
    with image_bar("[counting]", 40) as advance:
        advance(10)
        clock.now = 1.9
        advance(10)
        assert terminal.getvalue() == ""
        clock.now = 2.1
        advance(10)
    assert "[counting]" in terminal.getvalue()
    assert "30/40" in terminal.getvalue()


def test_a_notebook_gets_a_bar_of_its_own_that_disappears(notebook, monkeypatch, clock):
    terminal = _standard_error(monkeypatch, _Terminal())
    with image_bar("<counting>", 4000) as advance:
        advance(10)
        assert notebook == []
        clock.now = 3.0
        advance(1990)
        clock.now = 4.0
        advance(1000)
    (handle,) = notebook
    first, second, last = handle.pictures
    assert first == (
        '<progress value="2000" max="4000"></progress> &lt;counting&gt;: 2,000 of 4,000'
    )
    assert second.endswith("3,000 of 4,000, left 0:00:01")
    assert last == ""
    assert terminal.getvalue() == ""


def test_a_bar_disappears_after_an_error(notebook, clock):
    def interrupted():
        with image_bar("counting", None) as advance:
            clock.now = 3.0
            advance(2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert notebook[0].pictures == ["<progress></progress> counting: 2", ""]


def test_an_interpreter_without_a_kernel_is_no_notebook(monkeypatch, clock):
    package = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", package)
    _standard_error(monkeypatch, io.StringIO())
    with image_bar("counting", 2) as advance:
        assert advance is no_bar


def test_pipes_get_nothing(monkeypatch, clock):
    pipe = _standard_error(monkeypatch, io.StringIO())
    with image_bar("counting", 2) as advance:
        clock.now = 10.0
        advance(2)
    assert pipe.getvalue() == ""


def test_a_bar_can_be_left_out(notebook, clock):
    with image_bar("counting", 2, shown=False) as advance:
        clock.now = 10.0
        advance(2)
    assert notebook == []


def test_threads_share_a_bar(notebook, clock):
    with image_bar("counting", 400) as advance:
        clock.now = 3.0
        threads = [
            threading.Thread(target=lambda: [advance(1) for _ in range(100)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clock.now = 4.0
        advance(0)
    assert len(notebook) == 1
    assert "400 of 400" in notebook[0].pictures[-2]
