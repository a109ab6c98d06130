"""The share of the thorough tests that a commit draws."""

from tests.conftest import drawn

NAMES = [f"tests/test_{index % 50}.py::test_fact[{index}]" for index in range(4000)]


def _drawn(draw):
    return {name for name in NAMES if drawn(name, 0.25, draw)}


def test_a_commit_draws_its_share_and_always_the_same():
    assert abs(len(_drawn("3033df4")) - 1000) < 120  # more than four standard deviations of it
    assert _drawn("3033df4") == _drawn("3033df4")


def test_forty_commits_draw_nearly_all_tests():
    commits = [f"commit {index}" for index in range(40)]
    # 0.75^40 of them are left out by all: 0.04 of 4,000.
    assert set().union(*map(_drawn, commits)) == set(NAMES)


def test_the_whole_share_is_all_tests():
    assert all(drawn(name, 1.0, "3033df4") for name in NAMES)
