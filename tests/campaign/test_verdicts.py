import json

import pytest

from tests.campaign.processes import Ended, server
from tests.campaign.verdicts import CLEAR, SOUND, Verdict, files_in, judge_command, judge_files

_FINE = "error: m.tflite: received text, expected a TFLite file.\n"


def ended(status=2, err=_FINE, *, seconds=1.0, grown=0, late=False, out=""):
    return Ended(status, seconds, grown, late, out, err)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ended(), CLEAR),
        (ended(0, ""), SOUND),
        (ended(1, "warning: m.tflite: something\n"), SOUND),
        (ended(err="Traceback (most recent call last):\n"), "traceback"),
        (ended(late=True), "hang"),
        (ended(seconds=11), "hang"),
        (ended(grown=2**31), "memory"),
        (ended(-11, ""), "crash"),
        (ended(70, ""), "crash"),
        (ended(err=""), "unclear"),
        (ended(err=_FINE.replace("m.tflite", "it")), "unclear"),
        (ended(err=_FINE + "x" * 2000), "unclear"),
        (ended(err=_FINE.replace("text", "\x1b[2J")), "unclear"),
        (ended(err="error: m.tflite is bad\n"), "unclear"),
        (ended(0, "", out="\x1b[2J"), "unclear"),
    ],
)
def test_the_end_of_a_command_has_one_verdict(end, expected):
    found = judge_command(end, about=["m.tflite"])
    assert found.name == expected
    assert found.is_finding == (expected not in (CLEAR, SOUND))


def test_a_wrong_result_is_a_finding():
    assert judge_command(ended(0, ""), wrong="other codes") == Verdict("wrong", "other codes")


def test_files_that_are_left_or_changed_are_findings(tmp_path):
    (tmp_path / "given").write_text("1")
    before = files_in(tmp_path)

    def judged(name):
        return judge_files(Verdict(name), before, tmp_path, ["out.json"]).name

    assert judged(SOUND) == SOUND
    (tmp_path / "out.json").write_text(json.dumps({}))
    assert judged(SOUND) == SOUND
    assert judged(CLEAR) == "left-over"
    (tmp_path / "out.json").write_text("{")
    assert judged(SOUND) == "left-over"
    (tmp_path / "out.json").unlink()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".temporary").write_text("")
    for patterns, expected in ((["run/*"], "left-over"), (["run/.temporary"], SOUND)):
        assert judge_files(Verdict(SOUND), before, tmp_path, patterns).name == expected
    (tmp_path / "given").write_text("12")
    assert judged(SOUND) == "left-over"


_ENDS = """
import os, signal, sys, time

def well(): print("said")
def badly(): sys.exit(2)
def raises(): raise OSError("no")
def grows(): return len(b"x" * 2**28) * 0
def grows_too_far(): return len(b"x" * 2**33) * 0
def waits(): time.sleep(60)
def crashes(): os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.thorough
def test_a_call_ends_as_it_would_in_a_process_of_its_own(tmp_path):
    (tmp_path / "case").mkdir()
    script = "import sys; sys.path.insert(0, '.')"
    (tmp_path / "case" / "ends_of_calls.py").write_text(_ENDS)

    def end(name, **settings):
        asked = (f"{script}; import ends_of_calls; ends_of_calls.{name}()",)
        return server("light").call("builtins:exec", *asked, cwd=tmp_path / "case", **settings)

    assert (end("well").status, end("well").out) == (0, "said\n")
    assert end("badly").status == 2
    assert "OSError: no" in end("raises").err
    assert 2**27 <= end("grows").grown_bytes < 2**29
    assert "MemoryError" in end("grows_too_far").err
    assert end("waits", seconds=0.3).is_late
    assert end("waits", kill=(15, 0.1)).status == -15
    assert end("crashes").status == -11
