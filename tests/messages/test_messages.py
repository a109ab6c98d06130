import pytest

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
