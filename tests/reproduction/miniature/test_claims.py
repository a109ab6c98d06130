from sat_tf.reproduction.miniature.claims import CHAPTERS, CLAIMS
from sat_tf.reproduction.miniature.groups import GROUPS, SHORT


def _rows(claim):
    return {*claim.plus, *claim.minus}


def test_every_row_of_a_claim_is_run_and_every_row_has_a_claim():
    run = {row for group in GROUPS for row in group.rows}
    assert {row for claim in CLAIMS for row in _rows(claim)} == run


def test_the_short_run_measures_all_that_is_checked():
    checked = [claim for claim in CLAIMS if claim.checked]
    assert {row for claim in checked for row in _rows(claim)} == set(SHORT)
    margins = {(*claim.plus, *claim.minus): claim.low for claim in checked}
    assert margins == {
        ("glyphs/float/clamp_constant", "glyphs/float/clamp"): 2.0,
        ("glyphs/2bits/pact_sat_cg", "glyphs/2bits/pact"): 8.0,
        ("glyphs/2bits/pact_cg", "glyphs/2bits/pact"): 3.0,
        ("glyphs/2bits/pact_sat_cg", "glyphs/2bits/pact_sat"): 3.0,
    }


def test_claims_are_differences():
    for claim in CLAIMS:
        assert len(claim.plus) == len(claim.minus)
        assert claim.low < claim.high
        # A claim of the paper names its place; its figures are there in words.
        assert claim.printed or not claim.source or "released code" in claim.source


def test_a_chapter_says_nothing_twice():
    for chapter in CHAPTERS:
        texts = [claim.text for claim in chapter.claims]
        assert len(set(texts)) == len(texts)
