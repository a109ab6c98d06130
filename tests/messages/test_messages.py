import os
import shlex

import pytest

from tests.commands.light import run_alone
from tests.messages import session

HOW = "python -m tests.messages.session writes the messages anew; review the difference."


@pytest.mark.parametrize("name", session.SESSIONS)
def test_every_call_is_answered_by_the_message_of_the_table(name):
    differing = [
        f"{row.call}\nwas: {row.message or 'no message'}\nis:  {now.message or 'no message'}\n"
        for row, now in zip(session.read(name), session.run(name), strict=True)
        if row != now
    ]
    assert not differing, "\n".join([f"{name}.txt:", *differing, HOW])


@pytest.mark.thorough
def test_words_alone_are_answered_without_tensorflow_and_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = [row.call for row in session.read("words")]
    exec("\n".join(call[4:] for call in calls if call.startswith(">>> ")), {})
    before = set(os.listdir(tmp_path))
    for call in (call for call in calls if call.startswith("$ ")):
        told = run_alone(*shlex.split(call)[2:], cwd=tmp_path)
        assert (told.status, told.loaded, "Traceback" in told.err) == (2, set(), False), call
    assert set(os.listdir(tmp_path)) == before
