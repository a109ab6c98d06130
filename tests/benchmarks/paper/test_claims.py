import dataclasses

import pytest

from benchmarks.paper.claims import CHAPTERS, CLAIMS, Claim, Verdict, by_row, judge
from benchmarks.paper.miniature import GROUPS, SHORT
from tests.training.reproduction.fake import outcome

BETTER = Claim("a is better", "", "", plus="a", minus="b", low=2.0)
ALIKE = dataclasses.replace(BETTER, low=-2.0, high=2.0)
ABOVE = dataclasses.replace(BETTER, low=0.0)


@pytest.mark.parametrize(
    ("claim", "top1", "verdict"),
    [
        (BETTER, {"a": {0: 52.0}, "b": {0: 50.0}}, Verdict.SHOWS),
        (BETTER, {"a": {0: 51.9}, "b": {0: 50.0}}, Verdict.DOES_NOT_SHOW),
        (BETTER, {"a": {0: 47.0}, "b": {0: 50.0}}, Verdict.DOES_NOT_SHOW),
        (BETTER, {"a": {0: 60.0, 1: 53.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.SHOWS),
        # The margin is asked of the mean, the sign of every seed.
        (BETTER, {"a": {0: 60.0, 1: 51.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.SHOWS),
        (BETTER, {"a": {0: 90.0, 1: 49.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.DOES_NOT_SHOW),
        (BETTER, {"a": {0: 52.5, 1: 51.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.DOES_NOT_SHOW),
        (ALIKE, {"a": {0: 52.0, 1: 48.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.SHOWS),
        (ALIKE, {"a": {0: 52.1}, "b": {0: 50.0}}, Verdict.DOES_NOT_SHOW),
        (ALIKE, {"a": {0: 55.0, 1: 45.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.DOES_NOT_SHOW),
        (ABOVE, {"a": {0: 50.1}, "b": {0: 50.0}}, Verdict.SHOWS),
        (ABOVE, {"a": {0: 50.0}, "b": {0: 50.0}}, Verdict.DOES_NOT_SHOW),
    ],
)
def test_what_is_better_is_so_on_average_and_what_is_alike_is_so_for_every_seed(
    claim, top1, verdict
):
    assert judge(claim, top1).verdict is verdict


@pytest.mark.parametrize(
    "top1", [{}, {"a": {0: 52.0}}, {"a": {0: 52.0}, "b": {}}, {"a": {0: 52.0}, "b": {1: 50.0}}]
)
def test_a_claim_is_not_run_where_no_seed_has_all_its_rows(top1):
    judged = judge(BETTER, top1)
    assert judged.verdict is Verdict.NOT_RUN
    assert judged.measured == ""


def test_seeds_are_compared_with_themselves():
    judged = judge(BETTER, {"a": {0: 60.0, 1: 70.0, 2: 99.0}, "b": {0: 50.0, 1: 65.0, 7: 0.0}})
    assert judged.differences == {0: 10.0, 1: 5.0}
    # The deviation of two values is their distance over the square root of 2.
    assert judged.measured == "+7.5 ± 3.5 (2 seeds)"


def test_one_seed_has_no_deviation():
    judged = judge(BETTER, {"a": {3: 40.0}, "b": {3: 50.0}})
    assert judged.measured == "-10.0 (1 seed)"


def test_a_difference_can_be_one_of_differences():
    claim = dataclasses.replace(BETTER, plus="a d", minus="b c")
    top1 = {"a": {0: 40.0}, "b": {0: 30.0}, "c": {0: 72.0}, "d": {0: 71.0}}
    assert judge(claim, top1).differences == {0: 9.0}


def test_outcomes_of_other_data_and_other_settings_do_not_count():
    outcomes = [
        outcome(row="a", seed=0, top1=50.0),
        outcome(row="a", seed=1, top1=60.0),
        outcome(row="a", data="digits", seed=2),
        outcome(row="a", seed=3, changes="seed=3", top1=1.0),
    ]
    assert by_row(outcomes) == {"a": {0: 50.0, 1: 60.0}}
    assert by_row(outcomes, "seed=3") == {"a": {3: 1.0}}


def _rows(claim):
    return {*claim.plus.split(), *claim.minus.split()}


def test_every_row_of_a_claim_is_run_and_every_row_has_a_claim():
    run = {row for group in GROUPS for row in group.rows}
    assert {row for claim in CLAIMS for row in _rows(claim)} == run


def test_the_short_run_measures_all_that_is_checked():
    checked = [claim for claim in CLAIMS if claim.checked]
    assert {row for claim in checked for row in _rows(claim)} == set(SHORT)
    assert {(claim.plus, claim.minus): claim.low for claim in checked} == {
        ("glyphs/float/clamp_constant", "glyphs/float/clamp"): 2.0,
        ("glyphs/2bits/pact_sat_cg", "glyphs/2bits/pact"): 8.0,
        ("glyphs/2bits/pact_cg", "glyphs/2bits/pact"): 3.0,
        ("glyphs/2bits/pact_sat_cg", "glyphs/2bits/pact_sat"): 3.0,
    }


def test_claims_are_differences():
    for claim in CLAIMS:
        assert len(claim.plus.split()) == len(claim.minus.split())
        assert claim.low < claim.high
        # A claim of the paper names its place; its figures are there in words.
        assert claim.printed or not claim.source or "released code" in claim.source


def test_a_chapter_says_nothing_twice():
    for chapter in CHAPTERS:
        texts = [claim.text for claim in chapter.claims]
        assert len(set(texts)) == len(texts)
